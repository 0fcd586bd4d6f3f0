// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/avx2_lanes.h"
#include "kernels/host/reduce_blocks.h"
#include "kernels/host/unpack_rows.h"

namespace prunex::host {
namespace {

constexpr Table make_table() {
  Table t{};
  fill_rows<VectorWords<Avx2Lanes1>, VectorWords<Avx2Lanes2>, VectorWords<Avx2Lanes4>,
            VectorWords<Avx2Lanes8>>(t);
  fill_streams<VectorWords<Avx2Lanes1>, VectorWords<Avx2Lanes2>, VectorWords<Avx2Lanes4>,
               VectorWords<Avx2Lanes8>>(t);
  t.copy_run_bytes = 64;
  t.audit_run_bytes = 64;
  fill_reductions(t);
  return t;
}

}  // namespace

constinit const Table kAvx2Table = make_table();

}  // namespace prunex::host
