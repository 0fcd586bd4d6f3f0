// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/avx2_lanes.h"
#include "kernels/host/blocks.h"
#include "kernels/host/reduce_blocks.h"
#include "kernels/host/unpack_rows.h"

namespace prunex::host {
namespace {

struct Avx2Block {
  struct Vec {
    __m256i a, b, c, d;
  };
  static Vec load(const std::byte* p) {
    return {load32(p), load32(p + 32), load32(p + 64), load32(p + 96)};
  }
  static void store(std::byte* p, const Vec& v) {
    store32(p, v.a);
    store32(p + 32, v.b);
    store32(p + 64, v.c);
    store32(p + 96, v.d);
  }
  static uint64_t nonzero(const Vec& v) {
    const __m256i any = _mm256_or_si256(_mm256_or_si256(v.a, v.b), _mm256_or_si256(v.c, v.d));
    return _mm256_testz_si256(any, any) == 0 ? 1 : 0;
  }
};

constexpr Table make_table() {
  Table t{};
  fill_rows<VectorWords<Avx2Lanes1>, VectorWords<Avx2Lanes2>, VectorWords<Avx2Lanes4>,
            VectorWords<Avx2Lanes8>>(t);
  fill_streams<VectorWords<Avx2Lanes1>, VectorWords<Avx2Lanes2>, VectorWords<Avx2Lanes4>,
               VectorWords<Avx2Lanes8>>(t);
  t.copy_run_bytes = 64;
  t.audit_run_bytes = 64;
  fill_blocks<Avx2Block>(t);
  fill_reductions(t);
  return t;
}

}  // namespace

constinit const Table kAvx2Table = make_table();

}  // namespace prunex::host
