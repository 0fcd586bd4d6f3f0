// SPDX-License-Identifier: Apache-2.0
// reduce_pack must be what pack followed by reduce is, for every structure, slice and type.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

struct Types {
  DType in, out;
};
constexpr Types kPairs[] = {
    {DType::f32, DType::f32},   {DType::f64, DType::f64}, {DType::f16, DType::f16},
    {DType::bf16, DType::bf16}, {DType::i8, DType::i8},   {DType::u8, DType::u8},
    {DType::i32, DType::i32},   {DType::i64, DType::i64}, {DType::f16, DType::f32},
    {DType::i8, DType::i32},    {DType::u8, DType::i32},  {DType::i32, DType::i64},
};

void fill_random(Rng& rng, std::byte* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    p[i] = static_cast<std::byte>(rng());
  }
}

class ReducePackTest : public testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  RestoreIsa restore_;
  Rng rng_{7};
};
INSTANTIATE_TEST_SUITE_P(Isa, ReducePackTest, testing::ValuesIn(versions()),
                         [](const auto& p) { return name_of(p.param); });

void check(const Case& c, Types t, const Slice& s, size_t num, size_t own, Op op, Rng& rng) {
  SCOPED_TRACE(testing::Message() << c.name << " " << prunex::name_of(t.in) << " to "
                                  << prunex::name_of(t.out) << " kept [" << s.kept_begin << ", "
                                  << s.kept_end << ") own " << own << " of " << num);
  const size_t kept = s.kept_end - s.kept_begin;
  Fenced buffer(c.layout.count * size_of(t.in), Fenced::At::end);
  fill_random(rng, buffer.data(), buffer.size());
  std::vector<std::vector<std::byte>> others(num, std::vector<std::byte>(kept * size_of(t.in) + 1));
  std::vector<const void*> src;
  for (auto& o : others) {
    fill_random(rng, o.data(), o.size());
    src.push_back(o.data());
  }

  std::vector<std::byte> own_packed(kept * size_of(t.in) + 1);
  AuditCount counted;
  pack(c.layout, t.in, buffer.data(), s, own_packed.data(), &counted);
  std::vector<std::byte> want(kept * size_of(t.out));
  src[own] = own_packed.data();
  reduce(want.data(), t.out, src, t.in, kept, op, num);

  src[own] = nullptr;  // never read
  for (const bool audited : {false, true}) {
    Fenced got(kept * size_of(t.out), Fenced::At::end);
    AuditCount nonzero{5, 0};
    reduce_pack(got.data(), t.out, src, own, c.layout, t.in, buffer.data(), s, op, num,
                audited ? &nonzero : nullptr);
    EXPECT_TRUE(kept == 0 || std::memcmp(got.data(), want.data(), want.size()) == 0);
    EXPECT_EQ(nonzero.lossless, audited ? 5 + counted.lossless : 5);
  }
}

TEST_P(ReducePackTest, equals_pack_and_reduce_for_every_structure_and_type) {
  for (const Case& c : all_cases(21)) {
    for (const Types t : kPairs) {
      const size_t num = 1 + below(rng_, 4);
      check(c, t, cut(c, 0, c.layout.kept), num, below(rng_, num), Op::sum, rng_);
      check(c, t, cut(c, 0, c.layout.kept), 3, below(rng_, 3), Op::max, rng_);
    }
  }
}

TEST_P(ReducePackTest, equals_pack_and_reduce_for_random_slices) {
  for (const Case& c : all_cases(22)) {
    for (int i = 0; i < 25; ++i) {
      const Types t = kPairs[below(rng_, std::size(kPairs))];
      const uint64_t begin = below(rng_, c.layout.kept + 1);
      const uint64_t end = begin + below(rng_, c.layout.kept - begin + 1);
      const double where = static_cast<double>(below(rng_, 3)) / 2;
      check(c, t, cut(c, begin, end, where), 2, below(rng_, 2), Op::sum, rng_);
    }
  }
}

// Larger than many tiles, with rows longer and shorter than one.
TEST_P(ReducePackTest, rows_longer_than_a_tile) {
  for (const size_t columns : std::initializer_list<size_t>{9000, 4097, 1100, 130}) {
    for (const double density : {0.05, 0.5, 1.0}) {
      MaskBuilder b(6 * columns);
      const int32_t p = b.pattern(random_bits(rng_, columns, density));
      const auto mask = b.panel(0, 6, columns, columns, p).build();
      const Case c = make_case("long rows", {mask, nullptr}, {6 * columns, 3000});
      for (const DType type : {DType::f32, DType::u8, DType::f64}) {
        check(c, {type, type}, cut(c, 0, c.layout.kept), 3, 1, Op::sum, rng_);
      }
    }
  }
}

TEST_P(ReducePackTest, the_destination_may_be_another_source) {
  const std::vector<Case> cases = all_cases(23);
  const Case& c = cases.back();
  std::vector<float> buffer(c.layout.count), other(c.layout.kept), packed(c.layout.kept);
  for (float& v : buffer) {
    v = static_cast<float>(below(rng_, 100));
  }
  for (float& v : other) {
    v = static_cast<float>(below(rng_, 100));
  }
  const Slice s{0, c.layout.kept, 0, c.layout.count};
  pack(c.layout, DType::f32, buffer.data(), s, packed.data());
  std::vector<float> want(c.layout.kept);
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] = packed[i] + other[i];
  }
  const void* src[] = {other.data(), nullptr};
  reduce_pack(other.data(), DType::f32, src, 1, c.layout, DType::f32, buffer.data(), s, Op::sum);
  EXPECT_EQ(other, want);
}

}  // namespace
}  // namespace prunex::test
