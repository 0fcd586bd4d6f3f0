// SPDX-License-Identifier: Apache-2.0
// Reductions against scalar models written here, for every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"
#include "tests/kernels/reduce_support.h"

namespace prunex::test {
namespace {

// Products of a few full-range integers leave 64 bits, and then dividing them means nothing.
bool meaningful(Op op, uint64_t divisor, bool integer) {
  return !(integer && op == Op::prod && divisor > 1);
}

template <class In, class Out>
void check_pair(Rng& rng) {
  constexpr bool kInteger = std::is_integral_v<typename In::Memory> && !is_float(In::kType);
  for (const size_t num : std::initializer_list<size_t>{1, 2, 3, 5, 9}) {
    for (const size_t count : std::initializer_list<size_t>{0, 1, 7, 8, 255, 256, 257, 1003}) {
      auto src = random_sources<In>(rng, num, count);
      if (In::kType == DType::i64 ||
          In::kType == DType::u64) {  // sums must stay inside, the model has 128 bits
        for (auto& s : src) {
          for (auto& v : s) {
            v = static_cast<typename In::Memory>(static_cast<double>(v) / 16);
          }
        }
      }
      const auto ptrs = pointers(src);
      for (const Op op : kAllOps) {
        for (const uint64_t divisor : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{num}}) {
          if (!meaningful(op, divisor, kInteger)) {
            continue;
          }
          SCOPED_TRACE(testing::Message()
                       << prunex::name_of(In::kType) << " to " << prunex::name_of(Out::kType) << " "
                       << name_of(op) << " / " << divisor << ", " << num << " x " << count);
          const auto want = model<In, Out>(src, op, divisor);
          Fenced out(count * sizeof(typename Out::Memory), Fenced::At::end);
          reduce(out.data(), Out::kType, ptrs, In::kType, count, op, divisor);
          std::vector<typename Out::Memory> got(count);
          if (count > 0) {
            std::memcpy(got.data(), out.data(), out.size());
          }
          ASSERT_TRUE(same_bits(got.data(), want));
        }
      }
    }
  }
}

class ReduceTest : public testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  RestoreIsa restore_;
  Rng rng_{42};
};
INSTANTIATE_TEST_SUITE_P(Isa, ReduceTest, testing::ValuesIn(versions()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(ReduceTest, equals_the_model_in_every_type_op_and_count) {
  check_pair<F32, F32>(rng_);
  check_pair<F64, F64>(rng_);
  check_pair<F16, F16>(rng_);
  check_pair<BF16, BF16>(rng_);
  check_pair<F8E4M3, F8E4M3>(rng_);
  check_pair<F8E5M2, F8E5M2>(rng_);
  check_pair<I8, I8>(rng_);
  check_pair<U8, U8>(rng_);
  check_pair<I32, I32>(rng_);
  check_pair<I64, I64>(rng_);
  check_pair<U32, U32>(rng_);
  check_pair<U64, U64>(rng_);
}

TEST_P(ReduceTest, equals_the_model_in_every_pair_of_partial_type) {
  check_pair<F16, F32>(rng_);
  check_pair<I8, I32>(rng_);
  check_pair<U8, I32>(rng_);
  check_pair<I32, I64>(rng_);
  check_pair<F32, F16>(rng_);
  check_pair<I32, I8>(rng_);
  check_pair<I32, U8>(rng_);
  check_pair<I64, I32>(rng_);
  check_pair<U32, I64>(rng_);
  check_pair<I64, U32>(rng_);
}

// Integer-valued data: the exact sum, whatever the type.
template <class T>
void check_exact(Rng& rng, const std::function<typename T::Memory(int)>& make) {
  constexpr size_t kNum = 7, kCount = 777;
  Sources<typename T::Memory> src(kNum, std::vector<typename T::Memory>(kCount));
  std::vector<int> sum(kCount, 0);
  for (auto& s : src) {
    for (size_t i = 0; i < kCount; ++i) {
      const int v = static_cast<int>(below(rng, 15));
      sum[i] += v;
      s[i] = make(v);
    }
  }
  const auto ptrs = pointers(src);
  std::vector<typename T::Memory> got(kCount);
  reduce(got.data(), T::kType, ptrs, T::kType, kCount, Op::sum);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(got[i], make(sum[i])) << prunex::name_of(T::kType) << " element " << i;
  }
}

TEST_P(ReduceTest, integer_valued_sums_are_exact) {
  check_exact<F32>(rng_, [](int v) { return static_cast<float>(v); });
  check_exact<F64>(rng_, [](int v) { return static_cast<double>(v); });
  check_exact<F16>(rng_, [](int v) { return float_to_half(static_cast<float>(v)); });
  check_exact<BF16>(rng_, [](int v) { return float_to_bfloat(static_cast<float>(v)); });
  check_exact<I8>(rng_, [](int v) { return static_cast<int8_t>(v); });
  check_exact<U8>(rng_, [](int v) { return static_cast<uint8_t>(v); });
  check_exact<I32>(rng_, [](int v) { return v; });
  check_exact<I64>(rng_, [](int v) { return int64_t{v}; });
  check_exact<U32>(rng_, [](int v) { return static_cast<uint32_t>(v); });
  check_exact<U64>(rng_, [](int v) { return static_cast<uint64_t>(v); });
}

// |computed - exact| <= (n - 1) u sum|x| for the additions, plus one rounding into the result's
// type.
template <class T>
void check_bound(Rng& rng, double add_unit, double result_unit, double result_tiny) {
  constexpr size_t kNum = 8, kCount = 5000;
  Sources<typename T::Memory> src(kNum, std::vector<typename T::Memory>(kCount));
  for (auto& s : src) {
    for (auto& v : s) {
      v = T::write(static_cast<typename T::Wide>(std::normal_distribution<double>(0, 3)(rng)));
    }
  }
  std::vector<typename T::Memory> got(kCount);
  reduce(got.data(), T::kType, pointers(src), T::kType, kCount, Op::sum);
  for (size_t i = 0; i < kCount; ++i) {
    double exact = 0, magnitude = 0;
    for (const auto& s : src) {
      exact += static_cast<double>(T::read(s[i]));
      magnitude += std::fabs(static_cast<double>(T::read(s[i])));
    }
    const double additions = (kNum - 1) * add_unit * magnitude;
    const double bound =
        additions * 1.01 + result_unit * (std::fabs(exact) + additions) + result_tiny;
    ASSERT_LE(std::fabs(static_cast<double>(T::read(got[i])) - exact), bound)
        << prunex::name_of(T::kType) << " element " << i;
  }
}

TEST_P(ReduceTest, sums_keep_the_reordering_bound) {
  const double u24 = std::ldexp(1, -24);
  check_bound<F32>(rng_, u24, 0, 0);
  check_bound<F16>(rng_, u24, std::ldexp(1, -11), std::ldexp(1, -25));
  check_bound<BF16>(rng_, u24, std::ldexp(1, -8), 0);
}

TEST_P(ReduceTest, adds_strictly_in_the_order_of_the_sources) {
  const float big = 1e8F;  // big + 1 == big in fp32
  const auto sum = [](std::vector<float> v) {
    std::vector<std::vector<float>> src;
    for (const float x : v) {
      src.emplace_back(300, x);
    }
    std::vector<float> out(300);
    reduce(out.data(), DType::f32, pointers(src), DType::f32, out.size(), Op::sum);
    EXPECT_TRUE(std::all_of(out.begin(), out.end(), [&](float x) { return x == out[0]; }));
    return out[0];
  };
  EXPECT_EQ(sum({big, 1, -big, 1}), 1.0F);
  EXPECT_EQ(sum({big, -big, 1, 1}), 2.0F);
  EXPECT_EQ(sum({1, 1, big, -big}), 0.0F);
}

TEST_P(ReduceTest, sixteen_bit_floats_add_in_fp32_and_round_once) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const auto make = [&](float v) {
      return type == DType::f16 ? float_to_half(v) : float_to_bfloat(v);
    };
    const float big = type == DType::f16 ? 2048.0F : 256.0F;  // big + 1 rounds back to big
    std::vector<std::vector<uint16_t>> src;
    for (const float v : {big, 1.0F, 1.0F, 1.0F, 1.0F}) {
      src.emplace_back(100, make(v));
    }
    std::vector<uint16_t> out(100);
    reduce(out.data(), type, pointers(src), type, out.size(), Op::sum);
    EXPECT_EQ(out, std::vector<uint16_t>(100, make(big + 4)));
  }
}

TEST_P(ReduceTest, nan_is_canonical_and_travels_through_every_op) {
  const uint32_t odd_nans[] = {0x7f800001, 0xffc12345, 0xff800001, 0x7fffffff};
  for (const Op op : kAllOps) {
    for (size_t at = 0; at < 4; ++at) {
      std::vector<std::vector<float>> src(4, std::vector<float>(70, 1.0F));
      std::vector<std::vector<double>> src64(4, std::vector<double>(70, 1.0));
      for (size_t i = 0; i < 70; ++i) {
        src[at][i] = std::bit_cast<float>(odd_nans[i % 4]);
        src64[at][i] = std::bit_cast<double>((uint64_t{odd_nans[i % 4]} << 32 & ~0xf00000000ull) |
                                             0xfff00000000001ull << 8 >> 8);
        ASSERT_TRUE(std::isnan(src64[at][i]));
      }
      std::vector<float> out(70);
      std::vector<double> out64(70);
      reduce(out.data(), DType::f32, pointers(src), DType::f32, 70, op, 3);
      reduce(out64.data(), DType::f64, pointers(src64), DType::f64, 70, op, 3);
      for (size_t i = 0; i < 70; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), 0x7fc00000u) << name_of(op);
        ASSERT_EQ(std::bit_cast<uint64_t>(out64[i]), 0x7ff8000000000000u) << name_of(op);
      }
    }
  }
  const std::vector<std::vector<float>> opposite = {std::vector<float>(70, kInf),
                                                    std::vector<float>(70, -kInf)};
  std::vector<float> out(70);
  reduce(out.data(), DType::f32, pointers(opposite), DType::f32, 70, Op::sum);
  EXPECT_EQ(std::bit_cast<uint32_t>(out[69]), 0x7fc00000u) << "not the CPU's negative NaN";
  const std::vector<float> alone(3, std::bit_cast<float>(0xffc12345u));
  reduce(out.data(), DType::f32, pointers(Sources<float>{alone}), DType::f32, 3, Op::sum);
  EXPECT_EQ(std::bit_cast<uint32_t>(out[0]), 0x7fc00000u) << "a single source, too";
}

TEST_P(ReduceTest, max_and_min_order_negative_zero_below_zero) {
  for (const bool swap : {false, true}) {
    std::vector<std::vector<float>> src = {std::vector<float>(40, -0.0F),
                                           std::vector<float>(40, 0.0F)};
    std::vector<std::vector<double>> src64 = {std::vector<double>(40, -0.0),
                                              std::vector<double>(40, 0.0)};
    if (swap) {
      std::swap(src[0], src[1]);
      std::swap(src64[0], src64[1]);
    }
    std::vector<float> out(40);
    std::vector<double> out64(40);
    for (const Op op : {Op::max, Op::min}) {
      reduce(out.data(), DType::f32, pointers(src), DType::f32, 40, op);
      reduce(out64.data(), DType::f64, pointers(src64), DType::f64, 40, op);
      for (size_t i = 0; i < 40; ++i) {
        ASSERT_EQ(std::signbit(out[i]), op == Op::min);
        ASSERT_EQ(std::signbit(out64[i]), op == Op::min);
      }
    }
  }
}

TEST_P(ReduceTest, sums_of_zeros_keep_ieee_signs) {
  std::vector<float> out(10);
  const std::vector<std::vector<float>> minus(3, std::vector<float>(10, -0.0F));
  reduce(out.data(), DType::f32, pointers(minus), DType::f32, 10, Op::sum);
  EXPECT_TRUE(std::signbit(out[0]));
  const std::vector<std::vector<float>> mixed = {std::vector<float>(10, -0.0F),
                                                 std::vector<float>(10, 0.0F)};
  reduce(out.data(), DType::f32, pointers(mixed), DType::f32, 10, Op::sum);
  EXPECT_FALSE(std::signbit(out[0]));
}

template <class T>
T average(std::vector<T> values, DType type) {
  std::vector<std::vector<T>> src;
  for (const T v : values) {
    src.emplace_back(65, v);
  }
  std::vector<T> out(65);
  reduce(out.data(), type, pointers(src), type, out.size(), Op::avg, values.size());
  EXPECT_EQ(out, std::vector<T>(65, out[0]));
  return out[0];
}

TEST_P(ReduceTest, integer_averages_do_not_overflow_and_truncate_toward_zero) {
  EXPECT_EQ(average<int8_t>({127, 127, 127, 127}, DType::i8), 127);
  EXPECT_EQ(average<int8_t>({-128, -128, -128}, DType::i8), -128);
  EXPECT_EQ(average<int8_t>({-3, -4}, DType::i8), -3);
  EXPECT_EQ(average<uint8_t>({255, 255, 254}, DType::u8), 254);
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(average<int32_t>({kMax, kMax, kMax}, DType::i32), kMax);
  EXPECT_EQ(average<int32_t>({kMin, kMin, kMin, kMin}, DType::i32), kMin);
  EXPECT_EQ(average<int32_t>({-7, 0}, DType::i32), -3);
  EXPECT_EQ(average<int64_t>({-7, 0}, DType::i64), -3);
}

// Values with the top bit set are the largest, not negative ones.
TEST_P(ReduceTest, unsigned_extremes) {
  const std::vector<std::vector<uint32_t>> a = {std::vector<uint32_t>(50, 0xfffffff0u),
                                                std::vector<uint32_t>(50, 7)};
  std::vector<uint32_t> out(50);
  reduce(out.data(), DType::u32, pointers(a), DType::u32, 50, Op::max);
  EXPECT_EQ(out[49], 0xfffffff0u);
  reduce(out.data(), DType::u32, pointers(a), DType::u32, 50, Op::min);
  EXPECT_EQ(out[49], 7u);
  constexpr uint64_t kBig = uint64_t{1} << 63;
  const std::vector<std::vector<uint64_t>> b = {std::vector<uint64_t>(50, 7),
                                                std::vector<uint64_t>(50, kBig)};
  std::vector<uint64_t> out64(50);
  reduce(out64.data(), DType::u64, pointers(b), DType::u64, 50, Op::max);
  EXPECT_EQ(out64[49], kBig);
  reduce(out64.data(), DType::u64, pointers(b), DType::u64, 50, Op::min);
  EXPECT_EQ(out64[49], 7u);
  reduce(out64.data(), DType::u64, pointers(b), DType::u64, 50, Op::prod);
  EXPECT_EQ(out64[49], kBig);  // 7 * 2^63 modulo 2^64
  EXPECT_EQ(average<uint32_t>({0xffffffffu, 0xffffffffu}, DType::u32), 0xffffffffu);
}

TEST_P(ReduceTest, integer_sums_wrap) {
  const std::vector<std::vector<int8_t>> src(2, std::vector<int8_t>(50, 100));
  std::vector<int8_t> out(50);
  reduce(out.data(), DType::i8, pointers(src), DType::i8, 50, Op::sum);
  EXPECT_EQ(out[49], -56);
  const std::vector<std::vector<int64_t>> big(
      2, std::vector<int64_t>(50, std::numeric_limits<int64_t>::max()));
  std::vector<int64_t> out64(50);
  reduce(out64.data(), DType::i64, pointers(big), DType::i64, 50, Op::sum);
  EXPECT_EQ(out64[49], -2);
}

TEST_P(ReduceTest, any_source_may_be_the_destination) {
  for (size_t at = 0; at < 4; ++at) {
    auto src = random_sources<F32>(rng_, 4, 1001);
    const auto want = model<F32, F32>(src, Op::sum, 4);
    const auto ptrs = pointers(src);
    reduce(src[at].data(), DType::f32, ptrs, DType::f32, 1001, Op::sum, 4);
    EXPECT_TRUE(same_bits(src[at].data(), want));
  }
}

TEST_P(ReduceTest, pointers_at_every_alignment) {
  for (size_t shift = 0; shift < 64; shift += 3) {
    const auto src = random_sources<F16>(rng_, 3, 333);
    const auto want = model<F16, F16>(src, Op::sum, 1);
    std::vector<std::vector<std::byte>> moved(3, std::vector<std::byte>(333 * 2 + 64));
    std::vector<const void*> ptrs;
    for (size_t s = 0; s < 3; ++s) {
      std::memcpy(moved[s].data() + shift, src[s].data(), 333 * 2);
      ptrs.push_back(moved[s].data() + shift);
    }
    std::vector<std::byte> out(333 * 2 + 64);
    reduce(out.data() + (shift * 5) % 64, DType::f16, ptrs, DType::f16, 333, Op::sum);
    EXPECT_EQ(std::memcmp(out.data() + (shift * 5) % 64, want.data(), 333 * 2), 0) << shift;
  }
}

#if defined(__x86_64__)
// A host program built with -ffast-math flushes subnormals; its peer may not.
TEST_P(ReduceTest, flush_to_zero_in_the_host_changes_nothing) {
  const float tiny = std::numeric_limits<float>::denorm_min() * 3;
  const std::vector<std::vector<float>> src(2, std::vector<float>(100, tiny));
  std::vector<float> out(100);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040 | 0x2000);  // flush results, take inputs as zero, round down
  const unsigned inside = _mm_getcsr();
  reduce(out.data(), DType::f32, pointers(src), DType::f32, 100, Op::sum);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, inside) << "the host's setting must be put back";
  EXPECT_EQ(std::bit_cast<uint32_t>(out[99]), 6u);
}
#endif

// fp16 AVG on four ranks: the partial sums travel in fp32 and the division comes at the end.
TEST_P(ReduceTest, Reports_E18_fp16_average_neither_overflows_nor_vanishes) {
  for (const float value : {30000.0F, std::ldexp(1.0F, -24)}) {
    const std::vector<std::vector<uint16_t>> node(2,
                                                  std::vector<uint16_t>(130, float_to_half(value)));
    std::vector<std::vector<float>> partial(2, std::vector<float>(130));
    for (auto& p : partial) {
      reduce(p.data(), DType::f32, pointers(node), DType::f16, 130, Op::avg);
      EXPECT_EQ(p[129], 2 * value);
    }
    std::vector<uint16_t> out(130);
    reduce(out.data(), DType::f16, pointers(partial), DType::f32, 130, Op::avg, 4);
    EXPECT_EQ(out, std::vector<uint16_t>(130, float_to_half(value)));
    // And in one step, when all four are on one node.
    const std::vector<std::vector<uint16_t>> all(4, node[0]);
    reduce(out.data(), DType::f16, pointers(all), DType::f16, 130, Op::avg, 4);
    EXPECT_EQ(out, node[0]);
  }
}

}  // namespace
}  // namespace prunex::test
