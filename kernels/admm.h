// SPDX-License-Identifier: Apache-2.0
// What H-SADMM computes itself, on float32 in host memory: each step of the algorithm in one pass,
// for these passes wait for memory. The symbols are those of the paper: theta_ij, u_ij of this
// rank; z_i, v_i, s_i of its node; z of all. The buffers are flat, one place per element of every
// parameter. Duals carry a pending factor per parameter, so that a new penalty costs no pass. v_i
// is kept as y_i = z_i + v_i, what the node has sent: after the exchange v_i is y_i - z without a
// pass.
//
// Results are the same bits whatever the instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex::admm {

struct Run {
  uint64_t begin, end;  // flat elements
};

// The parameters of a model in the flat buffers. Plain data: Python fills it (plugin/api/admm.cc).
struct Model {
  uint64_t parameters;
  const uint64_t* offsets;    // parameters + 1, where each begins in the flat buffers
  const uint64_t* first_run;  // parameters + 1: parameter i has the runs from [i] on to [i + 1]
  const Run* runs;            // kept elements, ascending and apart
  float* const* theta;        // each parameter's memory, in the flat buffers' order
};

// Outside of the mask z_i, z and y are zero, and no pass reads them there. Once the mask is
// `frozen`, theta and u are zero there, too.

// Step 1: g += rho (theta - z_i + scale u), or, where the optimizer adds rho theta itself, without
// theta. Null gradients are left out. frozen: +0 outside of the mask.
void pull(const Model& model, bool frozen, bool decayed, float* const* grads, const float* rho,
          const float* z_i, const float* u, const float* scale);

// Step 2: u = theta + scale u.
void gather(const Model& model, bool frozen, float* u, const float* scale);

// Steps 4 and 5: z_i = z~_i = s - (s - (z - v)) rest and y = z_i + v with v = scale (y - z); +0 in
// both outside of the mask. rest: rho2 / (P rho1 + rho2).
void consensus(const Model& model, const float* rest, const float* s, const float* z, float* y,
               const float* scale, float* z_i);

// Step 7 on this rank: u -= z_i where u holds theta + u, and s becomes the node's mean of u.
// Squared norms, `parameters` each: theta - z_i, z_i - old, z_i, u. cut: `old` has another mask.
void duals(const Model& model, bool frozen, bool cut, const float* old, const float* z_i, float* u,
           float* s, double* norms);

// Squared norms: z - old, z_i - z.
void globals(const Model& model, bool cut, const float* old, const float* z, const float* z_i,
             double* norms);

// Scores: sums[p] += sum of (s - scale m)^2 over places p of [outer][places][inner].
void squares(const float* s, const float* m, float scale, uint64_t outer, uint64_t places,
             uint64_t inner, double* sums);

// The kept runs of a tensor that begins at element `base`, its dimensions from the outermost in
// memory to the innermost. keep[d]: a byte per place, null for all. Writes at most `room`; returns
// how many there are.
uint64_t kept_runs(uint64_t dims, const uint64_t* sizes, const uint8_t* const* keep, uint64_t base,
                   Run* runs, uint64_t room);

}  // namespace prunex::admm
