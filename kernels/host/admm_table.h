// SPDX-License-Identifier: Apache-2.0
// The arithmetic of kernels/admm.h on stretches of memory, once per instruction set: AVX2 does as
// well as wider ones, for memory is what all of them wait for. As in table.h, a file that fills a
// table defines nothing else.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex::host {

// Sums of squares: eight partial sums in float, emptied into `total` before they lose digits.
inline constexpr size_t kNormLanes = 8;
inline constexpr size_t kNormBlock = 4096;  // elements between two emptyings, at most
inline constexpr size_t kMaxNorms = 4;
struct alignas(32) Norms {
  float lanes[kMaxNorms][kNormLanes] = {};
  double total[kMaxNorms] = {};
};

struct AdmmTable {
  // A null z_i is one of zeros.
  void (*pull)(float* g, const float* theta, const float* z_i, const float* u, size_t n,
               float scale, float rho);
  void (*pull_decayed)(float* g, const float* z_i, const float* u, size_t n, float scale,
                       float rho);
  void (*gather)(float* u, const float* theta, size_t n, float scale);
  void (*consensus)(const float* s, const float* z, float* y, size_t n, float scale, float rest,
                    float* z_i);
  void (*duals)(const float* theta, const float* old, const float* z_i, float* u, float* s,
                size_t n, Norms& norms);
  void (*globals)(const float* old, const float* z, const float* z_i, size_t n, Norms& norms);
  void (*norm)(const float* x, size_t n, size_t key, Norms& norms);
  // Sums of `inner` squares each, added to sums[0 .. rows - 1].
  void (*short_rows)(const float* s, const float* m, size_t rows, size_t inner, float scale,
                     double* sums);
  void (*square_sum)(const float* s, const float* m, size_t n, float scale, Norms& norms);
};

extern const AdmmTable kScalarAdmmTable;
#if defined(__x86_64__)
extern const AdmmTable kAvx2AdmmTable;
#endif

}  // namespace prunex::host
