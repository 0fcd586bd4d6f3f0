// SPDX-License-Identifier: Apache-2.0
// The device's arithmetic on the CPU: every 16-bit value, and reductions against the host kernels.
#include "kernels/cuda/reduce.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/half.h"
#include "kernels/pack.h"
#include "tests/cuda/emulate.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

TEST(CudaElement, every_16_bit_value) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const auto same = [](float a, float b) {
      return cuda::bits_as<uint32_t>(a) == cuda::bits_as<uint32_t>(b);
    };
    ASSERT_TRUE(same(cuda::float_of_half(h), half_to_float(bits))) << h;
    ASSERT_TRUE(same(cuda::float_of_bfloat(h), bfloat_to_float(bits))) << h;
    ASSERT_EQ(cuda::half_of_float(cuda::float_of_half(h)), float_to_half(half_to_float(bits))) << h;
  }
}

// Every exponent with fractions around each rounding step.
TEST(CudaElement, rounding_to_16_bits) {
  for (uint32_t top = 0; top < 1u << 13; ++top) {
    for (const uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu, 0x2000u, 0x3000u, 0x7fffu,
                               0x8000u, 0x8001u, 0x18000u, 0x7ffffu}) {
      const auto f = cuda::bits_as<float>(top << 19 | low);
      ASSERT_EQ(cuda::half_of_float(f), float_to_half(f)) << std::hex << (top << 19 | low);
      ASSERT_EQ(cuda::bfloat_of_float(f), float_to_bfloat(f)) << std::hex << (top << 19 | low);
    }
  }
}

struct Sources {
  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> pointers;
};

Sources random_sources(Rng& rng, DType type, uint64_t count, size_t n) {
  Sources s;
  for (size_t i = 0; i < n; ++i) {
    s.memory.emplace_back(count * size_of(type) + 16);
    for (uint64_t e = 0; e < count; ++e) {
      std::byte* p = s.memory.back().data() + e * size_of(type);
      const uint64_t bits = rng();
      std::memcpy(p, &bits, size_of(type));
      if (below(rng, 20) == 0) {
        put_nan(type, p, bits & 1);
      } else if (below(rng, 10) == 0) {
        put_negative_zero(type, p);
      } else if (below(rng, 10) == 0) {
        std::memset(p, 0, size_of(type));
      }
    }
    s.pointers.push_back(s.memory.back().data());
  }
  return s;
}

cuda::Reduction reduction_of(const Sources& s, DType in, DType out, Op op, uint64_t divisor,
                             int own, std::byte* to) {
  cuda::Reduction r{};
  for (size_t i = 0; i < s.pointers.size(); ++i) {
    r.source[i] = static_cast<const std::byte*>(s.pointers[i]);
  }
  r.out = to;
  r.divisor = divisor;
  r.sources = static_cast<int>(s.pointers.size());
  r.own = own;
  r.in = in;
  r.out_type = out;
  r.op = op;
  return r;
}

std::vector<DType> outs_of(DType in) {
  std::vector<DType> outs;
  for (const DType out : kAllTypes) {
    if (cuda::reducible(in, out)) {
      outs.push_back(out);
    }
  }
  return outs;
}

TEST(CudaReduce, packed_sources_as_on_the_host) {
  Rng rng(1);
  constexpr uint64_t kCount = 700;
  for (const DType in : kAllTypes) {
    for (const DType out : outs_of(in)) {
      for (const Op op : {Op::sum, Op::avg, Op::max, Op::min, Op::prod}) {
        const Sources s = random_sources(rng, in, kCount, 1 + below(rng, 6));
        const uint64_t divisor = op == Op::avg ? 1 + below(rng, 9) : 1;
        std::vector<std::byte> want(kCount * size_of(out)), got(want.size());
        reduce(want.data(), out, s.pointers, in, kCount, op, divisor);
        const cuda::Reduction r = reduction_of(s, in, out, op, divisor, -1, got.data());
        cuda::with_accumulator(in, [&](auto acc) {
          for (uint64_t thread = 0; thread < 64; ++thread) {
            cuda::reduce_flat<decltype(acc)>(r, kCount, thread, 64);
          }
        });
        ASSERT_EQ(got, want) << name_of(in) << " to " << name_of(out) << " " << name_of(op);
      }
    }
  }
}

TEST(CudaReduce, one_source_strided_as_on_the_host) {
  Rng rng(2);
  for (const Case& c : all_cases(31)) {
    const DType in = kAllTypes[below(rng, 10)];
    const std::vector<DType> outs = outs_of(in);
    const DType out = outs[below(rng, outs.size())];
    const cuda::Lowered plan = cuda::lower(c.layout, 512);
    Sources s = random_sources(rng, in, c.layout.kept, 1 + below(rng, 5));
    const auto own = below(rng, s.pointers.size());
    s.memory[own].resize(c.layout.count * size_of(in) + 16);
    fill(c, in, rng, 6, s.memory[own].data());
    s.pointers[own] = s.memory[own].data();
    const uint64_t begin = below(rng, c.layout.kept + 1);
    const Slice slice = cut(c, begin, begin + below(rng, c.layout.kept - begin + 1));
    const uint64_t n = slice.kept_end - slice.kept_begin;
    std::vector<std::byte> want(n * size_of(out)), got(want.size());
    AuditCount want_dropped;
    std::vector<std::byte> tail(1);
    reduce_pack(want.empty() ? tail.data() : want.data(), out, s.pointers, own, c.layout, in,
                s.memory[own].data(), slice, Op::sum, 1, &want_dropped);
    const cuda::Range range{slice.elem_begin, slice.elem_end, slice.kept_begin};
    const cuda::Reduction r =
        reduction_of(s, in, out, Op::sum, 1, static_cast<int>(own), got.data());
    cuda::AuditRecord found;
    cuda::with_accumulator(in, [&](auto acc) {
      for_each_thread({2, 64}, plan, range, [&](const cuda::Tile& tile, uint32_t thread) {
        cuda::Auditor auditor{in, cuda::value_bits(in), {}};
        cuda::reduce_tile<decltype(acc)>(r, tile, plan.words.data(), range, thread, 64, &auditor);
        found = cuda::merge(found, auditor.found);
      });
    });
    ASSERT_EQ(got, want) << c.name << " " << name_of(in) << " to " << name_of(out);
    EXPECT_EQ(found.lossless, want_dropped.lossless) << c.name;
  }
}

}  // namespace
}  // namespace prunex::test
