// SPDX-License-Identifier: Apache-2.0
// CUDA libraries that fit, or do not.
#include "kernels/cuda/table.h"

namespace {

constexpr int kNoDevice = 100;

int probe(prunex::cuda::Probe* out) {
  *out = {PRUNEX_FAKE_DEVICES, 13000, 13000, PRUNEX_FAKE_DEVICES > 0 ? 0 : kNoDevice};
  return 0;
}
const char* error_text(int) { return "no device"; }

}  // namespace

extern "C" __attribute__((visibility("default"))) const prunex::cuda::Table* prunex_cuda_table(
    uint32_t, uint32_t) {
  static const prunex::cuda::Table table = [] {
    prunex::cuda::Table t{};
    t.bytes = sizeof t;
    t.version = PRUNEX_FAKE_TABLE;
    t.release = PRUNEX_FAKE_RELEASE;
    t.probe = probe;
    t.error_text = error_text;
    return t;
  }();
  return PRUNEX_FAKE_TABLE == 0 ? nullptr : &table;
}
