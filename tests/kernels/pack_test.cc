// SPDX-License-Identifier: Apache-2.0
// Pack, audit and unpack against an element-by-element reference, for every instruction set.
#include "kernels/pack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

constexpr std::byte kPoison{0xa5};

struct Reference {
  std::vector<std::byte> packed, unpacked;  // of the slice
  uint64_t nonzero = 0;
};

Reference reference(const Case& c, DType type, const std::byte* buffer, const Slice& s) {
  const size_t size = size_of(type);
  Reference r;
  for (uint64_t i = s.elem_begin; i < s.elem_end; ++i) {
    const std::byte* p = buffer + i * size;
    if (c.keep[i] != 0) {
      r.packed.insert(r.packed.end(), p, p + size);
      r.unpacked.insert(r.unpacked.end(), p, p + size);
    } else {
      r.nonzero += differs_from_zero(type, p) ? 1 : 0;
      r.unpacked.insert(r.unpacked.end(), size, std::byte{0});
    }
  }
  return r;
}

bool equal(const std::byte* a, const std::vector<std::byte>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size()) == 0;
}

bool poisoned(const std::byte* begin, const std::byte* end) {
  for (; begin != end; ++begin) {
    if (*begin != kPoison) {
      return false;
    }
  }
  return true;
}

// Packs, audits and unpacks one slice of a fenced buffer into fenced memory.
void check_slice(const Case& c, DType type, const std::byte* buffer, const Slice& s,
                 Fenced::At at) {
  SCOPED_TRACE(testing::Message() << c.name << " " << prunex::name_of(type) << " kept ["
                                  << s.kept_begin << ", " << s.kept_end << ") elements ["
                                  << s.elem_begin << ", " << s.elem_end << ")");
  const size_t size = size_of(type);
  const Reference want = reference(c, type, buffer, s);
  ASSERT_EQ(want.packed.size(), (s.kept_end - s.kept_begin) * size);

  Fenced packed(want.packed.size(), at);
  pack(c.layout, type, buffer, s, packed.data());
  EXPECT_TRUE(equal(packed.data(), want.packed)) << "pack";

  std::memset(packed.data(), 0xa5, packed.size());
  AuditCount nonzero{1000, 0};
  pack(c.layout, type, buffer, s, packed.data(), &nonzero);
  EXPECT_TRUE(equal(packed.data(), want.packed)) << "pack with audit";
  EXPECT_EQ(nonzero.lossless, 1000 + want.nonzero) << "count is added to what was there";
  EXPECT_EQ(audit(c.layout, type, buffer, s).lossless, want.nonzero);

  Fenced whole(c.layout.count * size, at);
  std::memset(whole.data(), 0xa5, whole.size());
  unpack(c.layout, type, packed.data(), s, whole.data());
  const std::byte* slice_begin = whole.data() + s.elem_begin * size;
  const std::byte* slice_end = whole.data() + s.elem_end * size;
  EXPECT_TRUE(equal(slice_begin, want.unpacked)) << "unpack";
  EXPECT_TRUE(poisoned(whole.data(), slice_begin)) << "unpack wrote before the slice";
  EXPECT_TRUE(poisoned(slice_end, whole.data() + whole.size())) << "unpack wrote past the slice";
}

// Each version twice: buffers unpacked through the caches, and all of them past the caches.
class PackTest : public testing::TestWithParam<std::tuple<host::Version, bool>> {
 protected:
  void SetUp() override {
    const auto [version, stream] = GetParam();
    host::use_version(version, stream ? 0 : SIZE_MAX);
  }
  RestoreIsa restore_;
};

INSTANTIATE_TEST_SUITE_P(Isa, PackTest,
                         testing::Combine(testing::ValuesIn(versions()), testing::Bool()),
                         [](const auto& p) {
                           return std::string(name_of(std::get<0>(p.param))) +
                                  (std::get<1>(p.param) ? "_stream" : "");
                         });

TEST_P(PackTest, whole_buffers_of_every_structure_and_type) {
  Rng rng(1);
  for (const Case& c : all_cases(11)) {
    for (const DType type : kAllTypes) {
      for (const auto at : {Fenced::At::end, Fenced::At::begin}) {
        Fenced buffer(c.layout.count * size_of(type), at);
        fill(c, type, rng, 5, buffer.data());
        check_slice(c, type, buffer.data(), cut(c, 0, c.layout.kept), at);
      }
    }
  }
}

TEST_P(PackTest, random_slices_cut_anywhere) {
  Rng rng(2);
  for (const Case& c : all_cases(12)) {
    for (const DType type : kAllTypes) {
      Fenced buffer(c.layout.count * size_of(type), Fenced::At::end);
      fill(c, type, rng, 7, buffer.data());
      for (int i = 0; i < 12; ++i) {
        const uint64_t begin = below(rng, c.layout.kept + 1);
        const uint64_t end = begin + below(rng, c.layout.kept - begin + 1);
        const double where = static_cast<double>(below(rng, 5)) / 4;
        check_slice(c, type, buffer.data(), cut(c, begin, end, where), Fenced::At::end);
      }
    }
  }
}

// Every place where a slice can end, in the layout that has all structures in one buffer.
TEST_P(PackTest, every_boundary_splits_without_loss) {
  Rng rng(3);
  const std::vector<Case> cases = all_cases(13);
  for (const char* name : {"bucket", "strided pattern", "wide short runs", "short rows 9"}) {
    for (const Case& c : cases) {
      if (c.name != name) {
        continue;
      }
      for (const DType type : {DType::f32, DType::bf16}) {
        const size_t size = size_of(type);
        std::vector<std::byte> buffer(c.layout.count * size);
        fill(c, type, rng, 3, buffer.data());
        const Reference want =
            reference(c, type, buffer.data(), {0, c.layout.kept, 0, c.layout.count});
        for (uint64_t k = 0; k <= c.layout.kept; ++k) {
          const double where = static_cast<double>(k % 3) / 2;
          const Slice low = cut(c, 0, k, where);
          Slice high = cut(c, k, c.layout.kept, where);
          high.elem_begin = low.elem_end;
          std::vector<std::byte> packed(c.layout.kept * size, kPoison);
          AuditCount nonzero;
          pack(c.layout, type, buffer.data(), high, packed.data() + k * size, &nonzero);
          pack(c.layout, type, buffer.data(), low, packed.data(), &nonzero);
          ASSERT_EQ(packed, want.packed) << c.name << " cut at " << k;
          ASSERT_EQ(nonzero.lossless, want.nonzero) << c.name << " cut at " << k;
          std::vector<std::byte> back(buffer.size(), kPoison);
          unpack(c.layout, type, packed.data() + k * size, high, back.data());
          unpack(c.layout, type, packed.data(), low, back.data());
          ASSERT_EQ(back, want.unpacked) << c.name << " cut at " << k;
        }
      }
    }
  }
}

// Writing the low part after the high one must leave the high one alone: whole vectors are stored,
// but never past the slice's own packed elements.
TEST_P(PackTest, packed_neighbours_are_left_alone) {
  Rng rng(4);
  for (const Case& c : all_cases(14)) {
    const DType type = DType::f16;
    std::vector<std::byte> buffer(c.layout.count * 2);
    fill(c, type, rng, 0, buffer.data());
    for (int i = 0; i < 10; ++i) {
      const uint64_t begin = below(rng, c.layout.kept + 1);
      const uint64_t end = begin + below(rng, c.layout.kept - begin + 1);
      std::vector<std::byte> packed(c.layout.kept * 2, kPoison);
      pack(c.layout, type, buffer.data(), cut(c, begin, end), packed.data() + begin * 2);
      EXPECT_TRUE(poisoned(packed.data(), packed.data() + begin * 2)) << c.name;
      EXPECT_TRUE(poisoned(packed.data() + end * 2, packed.data() + packed.size())) << c.name;
    }
  }
}

TEST_P(PackTest, pointers_at_every_alignment) {
  Rng rng(5);
  const std::vector<Case> cases = all_cases(15);
  for (const Case& c : cases) {
    if (c.name != "bucket" && c.name != "channels 1x1") {
      continue;
    }
    for (const DType type : kAllTypes) {
      const size_t size = size_of(type);
      std::vector<std::byte> aligned(c.layout.count * size);
      fill(c, type, rng, 4, aligned.data());
      const Slice s{0, c.layout.kept, 0, c.layout.count};
      const Reference want = reference(c, type, aligned.data(), s);
      for (size_t shift = 0; shift < 64; shift += 1 + shift / 8) {
        std::vector<std::byte> from(aligned.size() + 64), to(want.packed.size() + 64);
        std::vector<std::byte> back(aligned.size() + 64);
        std::memcpy(from.data() + shift, aligned.data(), aligned.size());
        std::byte* packed = to.data() + (shift * 5) % 64;
        AuditCount nonzero;
        pack(c.layout, type, from.data() + shift, s, packed, &nonzero);
        ASSERT_TRUE(equal(packed, want.packed)) << prunex::name_of(type) << " shift " << shift;
        ASSERT_EQ(nonzero.lossless, want.nonzero);
        unpack(c.layout, type, packed, s, back.data() + (shift * 3) % 64);
        ASSERT_TRUE(equal(back.data() + (shift * 3) % 64, want.unpacked));
      }
    }
  }
}

// NaN and Inf of dropped places reach nobody; +0 is written there, not -0.
TEST_P(PackTest, unpack_writes_positive_zero) {
  Rng rng(6);
  for (const Case& c : all_cases(16)) {
    std::vector<float> packed(c.layout.kept, 1.5F);
    std::vector<float> buffer(c.layout.count, std::numeric_limits<float>::quiet_NaN());
    unpack(c.layout, DType::f32, packed.data(), {0, c.layout.kept, 0, c.layout.count},
           buffer.data());
    for (uint64_t i = 0; i < c.layout.count; ++i) {
      ASSERT_EQ(buffer[i], c.keep[i] != 0 ? 1.5F : 0.0F) << c.name << " element " << i;
      ASSERT_FALSE(std::signbit(buffer[i]));
    }
  }
}

}  // namespace
}  // namespace prunex::test
