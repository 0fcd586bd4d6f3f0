// SPDX-License-Identifier: Apache-2.0
// 16- and 8-bit float conversions against arithmetic on doubles, for all values and all rounding
// borders.
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

// A binary float of `exponent_bits` and `fraction_bits`, decoded by its definition.
double decode(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  }
  return sign * std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
}

// The nearest 16-bit float, ties to the even fraction, by arithmetic on the grid of its binade.
uint16_t encode(double v, int exponent_bits, int fraction_bits, uint16_t nan) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (std::isnan(v)) {
    return nan;
  }
  const auto sign = static_cast<uint32_t>(std::signbit(v) ? 0x8000 : 0);
  const double magnitude = std::fabs(v);
  const auto infinity = static_cast<uint32_t>(((1 << exponent_bits) - 1) << fraction_bits);
  if (std::isinf(v) || v == 0) {
    return static_cast<uint16_t>(sign | (v == 0 ? 0 : infinity));
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  const int lowest = 1 - bias;
  const int binade = std::max(exponent - 1, lowest);
  // Steps of the binade's grid; the bits of a float count these steps from zero.
  const double steps = std::ldexp(magnitude, fraction_bits - binade);
  const double floor = std::floor(steps);
  double nearest = steps - floor > 0.5 ? floor + 1 : floor;
  if (steps - floor == 0.5) {
    nearest = std::fmod(floor, 2) == 0 ? floor : floor + 1;
  }
  const double per_binade = std::ldexp(1.0, fraction_bits);
  const double bits = nearest + (binade - lowest) * per_binade;
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : static_cast<uint32_t>(bits)));
}

bool same_float(float a, double b) {
  return std::isnan(b) ? std::isnan(a)
                       : static_cast<double>(a) == b && std::signbit(a) == std::signbit(b);
}

// Floats around every place where rounding to `fraction_bits` can turn: for each leading pattern of
// sign, exponent and kept fraction bits, the border cases of the bits below.
std::vector<float> borders(int kept_bits) {
  const int low_bits = 32 - kept_bits;
  const uint32_t half = 1u << (low_bits - 1);
  std::vector<float> all;
  for (uint64_t top = 0; top < uint64_t{1} << kept_bits; ++top) {
    const uint32_t base = static_cast<uint32_t>(top << low_bits);
    for (const uint32_t low : {0u, 1u, half - 1, half, half + 1, 2 * half - 1}) {
      all.push_back(std::bit_cast<float>(base | low));
    }
  }
  return all;
}

TEST(HalfTest, every_half_to_float) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const double want = decode(h, 5, 10);
    const float got = half_to_float(static_cast<uint16_t>(h));
    ASSERT_TRUE(same_float(got, want)) << std::hex << h;
    if (std::isnan(want)) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), 0x7fc00000u) << std::hex << h;
    } else {
      ASSERT_EQ(float_to_half(got), h) << std::hex << h;
    }
  }
}

TEST(HalfTest, every_bfloat_to_float) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const double want = decode(b, 8, 7);
    const float got = bfloat_to_float(static_cast<uint16_t>(b));
    ASSERT_TRUE(same_float(got, want)) << std::hex << b;
    ASSERT_EQ(float_to_bfloat(got), std::isnan(want) ? 0x7fc0 : b) << std::hex << b;
  }
}

TEST(HalfTest, float_to_half_at_every_border) {
  for (const float f : borders(19)) {  // sign, 8 exponent bits, 10 fraction bits
    ASSERT_EQ(float_to_half(f), encode(static_cast<double>(f), 5, 10, 0x7e00))
        << std::hex << std::bit_cast<uint32_t>(f);
  }
  Rng rng(1);
  for (int i = 0; i < 1'000'000; ++i) {
    // Anywhere between 2^-27 and 2^17, where subnormal halves round at other bits.
    const auto bits = static_cast<uint32_t>(((100 + below(rng, 45)) << 23) | (rng() & 0x807fffff));
    const float f = std::bit_cast<float>(bits);
    ASSERT_EQ(float_to_half(f), encode(static_cast<double>(f), 5, 10, 0x7e00)) << std::hex << bits;
  }
  // Half way between two neighbouring halves, and one float to either side.
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const double middle = (decode(h, 5, 10) + (h == 0x7bff ? 65536.0 : decode(h + 1, 5, 10))) / 2;
    const float f = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(f), middle);
    ASSERT_EQ(float_to_half(f), h % 2 == 0 ? h : h + 1);
    ASSERT_EQ(float_to_half(std::nextafter(f, 0.0F)), h);
    ASSERT_EQ(float_to_half(std::nextafter(f, HUGE_VALF)), h + 1);
    ASSERT_EQ(float_to_half(-f), 0x8000 | (h % 2 == 0 ? h : h + 1));
  }
}

TEST(HalfTest, float_to_bfloat_at_every_border) {
  for (const float f : borders(16)) {
    ASSERT_EQ(float_to_bfloat(f), encode(static_cast<double>(f), 8, 7, 0x7fc0))
        << std::hex << std::bit_cast<uint32_t>(f);
  }
}

// The nearest 8-bit float; beyond the largest finite one, that one. E4M3 has numbers where other
// formats have infinities, but for one NaN.
double decode_e4m3(uint32_t bits) {
  const double top[] = {256, 288, 320, 352, 384, 416, 448};
  if ((bits & 0x78) != 0x78) {
    return decode(bits, 4, 3);
  }
  return (bits & 7) == 7 ? std::nan("") : top[bits & 7] * ((bits & 0x80) != 0 ? -1 : 1);
}
double decode_e5m2(uint32_t bits) { return decode(bits, 5, 2); }

uint8_t nearest_of(const std::vector<double>& ascending, double v) {
  if (std::isnan(v)) {
    return 0x7f;
  }
  const uint32_t sign = std::signbit(v) ? 0x80 : 0;
  const double magnitude = std::fabs(v);
  if (magnitude >= ascending.back()) {
    return static_cast<uint8_t>(sign | (ascending.size() - 1));
  }
  const auto above = std::upper_bound(ascending.begin(), ascending.end(), magnitude);
  const auto below = static_cast<uint32_t>(above - ascending.begin() - 1);
  const double down = magnitude - ascending[below], up = *above - magnitude;
  const bool round_up = up < down || (up == down && below % 2 == 1);
  return static_cast<uint8_t>(sign | (below + (round_up ? 1 : 0)));
}

void check_f8(double (*decode_one)(uint32_t), float (*to_float)(uint8_t),
              uint8_t (*of_float)(float), uint32_t codes) {
  std::vector<double> ascending;
  for (uint32_t v = 0; v < codes; ++v) {
    ascending.push_back(decode_one(v));
  }
  for (uint32_t v = 0; v < 256; ++v) {
    ASSERT_TRUE(same_float(to_float(static_cast<uint8_t>(v)), decode_one(v))) << std::hex << v;
  }
  for (const float f : borders(13)) {  // sign, 8 exponent bits, 3 fraction bits and one below
    ASSERT_EQ(of_float(f), nearest_of(ascending, static_cast<double>(f)))
        << std::hex << std::bit_cast<uint32_t>(f);
  }
  Rng rng(1);
  for (int i = 0; i < 300'000; ++i) {  // from under the least subnormal to over the largest
    const auto bits = static_cast<uint32_t>(((108 + below(rng, 38)) << 23) | (rng() & 0x807fffff));
    const float f = std::bit_cast<float>(bits);
    ASSERT_EQ(of_float(f), nearest_of(ascending, static_cast<double>(f))) << std::hex << bits;
  }
}

TEST(HalfTest, e4m3_both_ways) { check_f8(decode_e4m3, e4m3_to_float, float_to_e4m3, 0x7f); }
TEST(HalfTest, e5m2_both_ways) { check_f8(decode_e5m2, e5m2_to_float, float_to_e5m2, 0x7c); }

class VectorHalfTest : public testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  RestoreIsa restore_;
};
INSTANTIATE_TEST_SUITE_P(Isa, VectorHalfTest, testing::ValuesIn(versions()),
                         [](const auto& p) { return name_of(p.param); });

// The kernels' own conversions, as reductions of one source.
TEST_P(VectorHalfTest, kernels_convert_every_half_the_same) {
  std::vector<uint16_t> halves(65536);
  for (size_t h = 0; h < halves.size(); ++h) {
    halves[h] = static_cast<uint16_t>(h);
  }
  std::vector<float> wide(halves.size());
  const void* src[] = {halves.data()};
  reduce(wide.data(), DType::f32, src, DType::f16, halves.size(), Op::sum);
  for (size_t h = 0; h < halves.size(); ++h) {
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[h]), std::bit_cast<uint32_t>(half_to_float(halves[h])))
        << std::hex << h;
  }
  std::vector<uint16_t> same(halves.size());
  for (const DType type : {DType::f16, DType::bf16}) {
    reduce(same.data(), type, src, type, halves.size(), Op::sum);
    for (uint32_t h = 0; h < 65536; ++h) {
      const bool nan = std::isnan(type == DType::f16 ? decode(h, 5, 10) : decode(h, 8, 7));
      const uint32_t canonical = type == DType::f16 ? 0x7e00 : 0x7fc0;
      ASSERT_EQ(same[h], nan ? canonical : h) << std::hex << h;
    }
  }
}

TEST_P(VectorHalfTest, kernels_round_every_border_the_same) {
  const std::vector<float> all = borders(19);
  std::vector<uint16_t> narrow(all.size());
  const void* src[] = {all.data()};
  reduce(narrow.data(), DType::f16, src, DType::f32, all.size(), Op::sum);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(narrow[i], float_to_half(all[i])) << std::hex << std::bit_cast<uint32_t>(all[i]);
  }
}

// bf16 has no wide partner: a product of two bf16 values has more bits than fit and must round.
TEST_P(VectorHalfTest, kernels_round_bfloat_products_the_same) {
  Rng rng(2);
  std::vector<uint16_t> a(100'003), b(a.size()), product(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<uint16_t>(rng());
    b[i] = static_cast<uint16_t>(rng());
  }
  const void* src[] = {a.data(), b.data()};
  reduce(product.data(), DType::bf16, src, DType::bf16, a.size(), Op::prod);
  for (size_t i = 0; i < a.size(); ++i) {
    const double exact = decode(a[i], 8, 7) * decode(b[i], 8, 7);  // 16 significant bits
    const auto once = static_cast<double>(static_cast<float>(exact));
    ASSERT_EQ(product[i], encode(once, 8, 7, 0x7fc0)) << std::hex << a[i] << " * " << b[i];
  }
}

}  // namespace
}  // namespace prunex::test
