// SPDX-License-Identifier: Apache-2.0
// Pack, audit and unpack against an element-by-element reference, for every instruction set.
#include "kernels/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "kernels/half.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

constexpr std::byte kPoison{0xa5};

constexpr DType kAllTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                               DType::i8,  DType::u8,  DType::i32, DType::i64};

// Is this element something else than ±0? From its value, not from its bits.
bool differs_from_zero(DType type, const std::byte* p) {
  const auto load = [&](auto v) {
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const auto nonzero = [](double v) { return !(std::fabs(v) <= 0); };
  switch (type) {
    case DType::f32:
      return nonzero(static_cast<double>(load(float{})));
    case DType::f64:
      return nonzero(load(double{}));
    case DType::f16:
      return nonzero(static_cast<double>(half_to_float(load(uint16_t{}))));
    case DType::bf16:
      return nonzero(static_cast<double>(bfloat_to_float(load(uint16_t{}))));
    case DType::i8:
    case DType::u8:
      return load(uint8_t{}) != 0;
    case DType::i32:
      return load(int32_t{}) != 0;
    case DType::i64:
      return load(int64_t{}) != 0;
  }
  return false;
}

void put_negative_zero(DType type, std::byte* p) {
  const size_t size = size_of(type);
  std::memset(p, 0, size);
  if (is_float(type)) {
    p[size - 1] = std::byte{0x80};
  }
}

void put_nan(DType type, std::byte* p, bool negative) {
  const size_t size = size_of(type);
  std::memset(p, 0xff, size);
  if (!negative) {
    p[size - 1] = std::byte{0x7f};
  }
}

// Kept elements: any bits. Dropped ones: +0, -0, and one in `one_in` something else (0: none).
void fill(const Case& c, DType type, Rng& rng, uint64_t one_in, std::byte* buffer) {
  const size_t size = size_of(type);
  for (uint64_t i = 0; i < c.layout.count; ++i) {
    std::byte* p = buffer + i * size;
    const uint64_t bits = rng() | 1;
    if (c.keep[i] != 0 || (one_in != 0 && below(rng, one_in) == 0)) {
      std::memcpy(p, &bits, size);
      if (below(rng, 8) == 0) {
        put_nan(type, p, bits & 2);
      }
    } else if (bits & 2) {
      std::memset(p, 0, size);
    } else {
      put_negative_zero(type, p);
    }
  }
}

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

// Rule 1: -0.0 is zero, NaN is not, and neither is the smallest subnormal.
TEST_P(PackTest, audit_knows_negative_zero_nan_and_subnormals) {
  const Case c = [] {
    MaskBuilder b(200);
    Bits bits(100, 0);
    bits[50] = 1;
    const int32_t p = b.pattern(bits);
    const auto mask = b.panel(0, 1, 100, 100, p).build();  // and 100 elements that no panel names
    return make_case("audit", {mask}, {200});
  }();
  const Slice s{0, 1, 0, 200};
  for (const DType type : kAllTypes) {
    const size_t size = size_of(type);
    for (const uint64_t at : {0, 49, 51, 63, 64, 99, 100, 163, 199}) {
      SCOPED_TRACE(testing::Message() << prunex::name_of(type) << " element " << at);
      std::vector<std::byte> buffer(200 * size);
      for (uint64_t i = 0; i < 200; ++i) {
        put_negative_zero(type, buffer.data() + i * size);
      }
      EXPECT_EQ(audit(c.layout, type, buffer.data(), s).lossless, 0u);
      std::byte* p = buffer.data() + at * size;
      for (const bool negative : {false, true}) {
        put_nan(type, p, negative);
        EXPECT_EQ(audit(c.layout, type, buffer.data(), s).lossless, 1u);
      }
      put_negative_zero(type, p);
      p[0] = std::byte{1};  // ± the smallest subnormal, or an integer that is not zero
      EXPECT_EQ(audit(c.layout, type, buffer.data(), s).lossless, 1u);
      std::vector<std::byte> packed(size);
      AuditCount nonzero;
      pack(c.layout, type, buffer.data(), s, packed.data(), &nonzero);
      EXPECT_EQ(nonzero.lossless, 1u);
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

TEST(AuditReportTest, names_the_first_offender_and_the_energies) {
  MaskBuilder b(12);
  const int32_t p = b.pattern({1, 0, 1, 0});
  const auto mask = b.panel(0, 3, 4, 4, p).build();
  const Case c = make_case("report", {nullptr, mask, nullptr}, {5, 12, 3});
  std::vector<float> v(20, 2.0F);
  for (const int i : {1, 3, 5, 7, 9, 11}) {
    v[static_cast<size_t>(5 + i)] = i == 5 ? -0.0F : 0.0F;
  }
  AuditReport r = audit_segment(c.layout, 1, DType::f32, v.data());
  EXPECT_EQ(r.nonzero, 0u);
  EXPECT_EQ(r.dropped_energy, 0.0);
  EXPECT_EQ(r.kept_energy, 6 * 4.0);

  v[5 + 7] = 3.0F;
  v[5 + 9] = std::numeric_limits<float>::quiet_NaN();
  v[5 + 11] = -std::numeric_limits<float>::infinity();
  r = audit_segment(c.layout, 1, DType::f32, v.data());
  EXPECT_EQ(r.nonzero, 3u);
  EXPECT_EQ(r.nonfinite, 2u);
  EXPECT_EQ(r.first_element, 12u);
  EXPECT_EQ(r.dropped_energy, 9.0) << "of the finite ones";
  EXPECT_EQ(r.kept_energy, 6 * 4.0);
  EXPECT_EQ(audit_segment(c.layout, 0, DType::f32, v.data()).kept_energy, 5 * 4.0);
}

TEST(AuditReportTest, agrees_with_the_fast_audit_for_every_structure_and_type) {
  Rng rng(7);
  for (const Case& c : all_cases(17)) {
    for (const DType type : kAllTypes) {
      std::vector<std::byte> buffer(c.layout.count * size_of(type));
      fill(c, type, rng, 6, buffer.data());
      uint64_t total = 0;
      uint64_t first = UINT64_MAX;
      for (size_t s = 0; s < c.layout.segments.size(); ++s) {
        const AuditReport r = audit_segment(c.layout, s, type, buffer.data());
        total += r.nonzero;
        if (r.nonzero > 0 && first == UINT64_MAX) {
          first = r.first_element;
        }
      }
      EXPECT_EQ(
          total,
          audit(c.layout, type, buffer.data(), {0, c.layout.kept, 0, c.layout.count}).lossless);
      for (uint64_t i = 0; i < c.layout.count; ++i) {
        if (c.keep[i] == 0 && differs_from_zero(type, buffer.data() + i * size_of(type))) {
          EXPECT_EQ(first, i) << c.name;
          break;
        }
      }
    }
  }
}

TEST(SelectIsaTest, takes_what_the_cpu_has_and_refuses_the_rest) {
  const RestoreIsa restore;
  EXPECT_TRUE(isa_available(Isa::automatic));
  EXPECT_TRUE(isa_available(Isa::scalar));
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    const Result<> r = select_isa(isa);
    EXPECT_EQ(r.has_value(), isa_available(isa));
    if (r) {
      EXPECT_EQ(active_isa(), isa);
    } else {
      EXPECT_NE(r.error().text.find("PRUNEX_ISA"), std::string::npos);
      EXPECT_EQ(active_isa(), Isa::scalar) << "a refused choice changes nothing";
      ASSERT_TRUE(select_isa(Isa::scalar).has_value());
    }
  }
  ASSERT_TRUE(select_isa(Isa::automatic).has_value());
  EXPECT_NE(active_isa(), Isa::automatic);
}

}  // namespace
}  // namespace prunex::test
