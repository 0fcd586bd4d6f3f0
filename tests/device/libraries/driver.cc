// SPDX-License-Identifier: Apache-2.0
// A CUDA driver that only knows its version.
extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = PRUNEX_FAKE_VERSION;
  return 0;
}
