// SPDX-License-Identifier: Apache-2.0
// Compiled twice: with VBMI2, which compresses bytes and 16-bit elements, and without it.
#include "kernels/host/avx512_lanes.h"
#include "kernels/host/reduce_blocks.h"
#include "kernels/host/unpack_rows.h"

namespace prunex::host {
namespace {

constexpr Table make_table() {
  Table t{};
  fill_rows<VectorWords<Avx512Lanes1>, VectorWords<Avx512Lanes2>, VectorWords<Avx512Lanes4>,
            VectorWords<Avx512Lanes8>>(t);
  fill_streams<VectorWords<Avx512Lanes1>, VectorWords<Avx512Lanes2>, VectorWords<Avx512Lanes4>,
               VectorWords<Avx512Lanes8>>(t);
  t.copy_run_bytes = 64;
  t.audit_run_bytes = 256;
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
