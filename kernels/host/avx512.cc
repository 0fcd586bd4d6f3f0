// SPDX-License-Identifier: Apache-2.0
// Compiled twice: with VBMI2, which compresses bytes and 16-bit elements, and without it.
#include "kernels/host/avx512_lanes.h"
#include "kernels/host/blocks.h"
#include "kernels/host/reduce_blocks.h"
#include "kernels/host/unpack_rows.h"

namespace prunex::host {
namespace {

struct Avx512Block {
  struct Vec {
    __m512i a, b;
  };
  static Vec load(const std::byte* p) { return {load64(p), load64(p + 64)}; }
  static void store(std::byte* p, const Vec& v) {
    store64(p, v.a);
    store64(p + 64, v.b);
  }
  static uint64_t nonzero(const Vec& v) {
    const __m512i any = _mm512_or_si512(v.a, v.b);
    return _mm512_test_epi64_mask(any, any) != 0 ? 1 : 0;
  }
};

constexpr Table make_table() {
  Table t{};
  fill_rows<VectorWords<Avx512Lanes1>, VectorWords<Avx512Lanes2>, VectorWords<Avx512Lanes4>,
            VectorWords<Avx512Lanes8>>(t);
  fill_streams<VectorWords<Avx512Lanes1>, VectorWords<Avx512Lanes2>, VectorWords<Avx512Lanes4>,
               VectorWords<Avx512Lanes8>>(t);
  t.copy_run_bytes = 64;
  t.audit_run_bytes = 256;
  fill_blocks<Avx512Block>(t);
  fill_reductions(t);
  return t;
}

}  // namespace

#if defined(__AVX512VBMI2__)
constinit const Table kAvx512Vbmi2Table = make_table();
#else
constinit const Table kAvx512Table = make_table();
#endif

}  // namespace prunex::host
