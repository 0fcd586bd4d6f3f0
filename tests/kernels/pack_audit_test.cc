// SPDX-License-Identifier: Apache-2.0
// What the audit counts, what the report says, and which instruction sets can be chosen.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

class AuditTest : public testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  RestoreIsa restore_;
};
INSTANTIATE_TEST_SUITE_P(Isa, AuditTest, testing::ValuesIn(versions()),
                         [](const auto& p) { return name_of(p.param); });

// Rule 1: -0.0 is zero, NaN is not, and neither is the smallest subnormal.
TEST_P(AuditTest, audit_knows_negative_zero_nan_and_subnormals) {
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
    for (const uint64_t at :
         std::initializer_list<uint64_t>{0, 49, 51, 63, 64, 99, 100, 163, 199}) {
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
