// SPDX-License-Identifier: Apache-2.0
// The functions of an AdmmTable, compiled once per instruction set. Eight lanes in all of them, and
// no fused multiply-add, so that the bits do not depend on the CPU.
#pragma once
#include "kernels/host/admm_table.h"

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call
#endif

namespace prunex::host {
namespace {

using Lanes [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;

[[gnu::always_inline]] inline Lanes load(const float* p) {
  return *reinterpret_cast<const Lanes*>(p);
}
[[gnu::always_inline]] inline void store(float* p, Lanes v) { *reinterpret_cast<Lanes*>(p) = v; }

// Elements ahead that are fetched: the CPU's own prefetching ends with every page.
inline constexpr size_t kAhead = 128;

// eight(i) for every eight elements, one(i) for each that is left. streams: all that is touched.
template <typename Vectors, typename Single, typename... Streams>
[[gnu::always_inline]] inline void walk_span(size_t n, Vectors&& eight, Single&& one,
                                             Streams... streams) {
  size_t i = 0;
  for (; i + 2 * kNormLanes <= n; i += 2 * kNormLanes) {
    (__builtin_prefetch(streams + i + kAhead), ...);
    eight(i);
    eight(i + kNormLanes);
  }
  if (i + kNormLanes <= n) {
    eight(i);
    i += kNormLanes;
  }
  for (; i < n; ++i) {
    one(i);
  }
}

void pull_span(float* __restrict g, const float* __restrict theta, const float* __restrict z_i,
               const float* __restrict u, size_t n, float scale, float rho) {
  if (z_i == nullptr) {
    walk_span(
        n,
        [&](size_t i) {
          store(g + i, load(g + i) + rho * (load(theta + i) + scale * load(u + i)));
        },
        [&](size_t i) { g[i] += rho * (theta[i] + scale * u[i]); }, g, theta, u);
    return;
  }
  walk_span(
      n,
      [&](size_t i) {
        store(g + i, load(g + i) + rho * (load(theta + i) - load(z_i + i) + scale * load(u + i)));
      },
      [&](size_t i) { g[i] += rho * (theta[i] - z_i[i] + scale * u[i]); }, g, theta, z_i, u);
}

void pull_decayed_span(float* __restrict g, const float* __restrict z_i, const float* __restrict u,
                       size_t n, float scale, float rho) {
  if (z_i == nullptr) {
    walk_span(
        n, [&](size_t i) { store(g + i, load(g + i) + rho * (scale * load(u + i))); },
        [&](size_t i) { g[i] += rho * (scale * u[i]); }, g, u);
    return;
  }
  walk_span(
      n, [&](size_t i) { store(g + i, load(g + i) - rho * (load(z_i + i) - scale * load(u + i))); },
      [&](size_t i) { g[i] -= rho * (z_i[i] - scale * u[i]); }, g, z_i, u);
}

void gather_span(float* __restrict u, const float* __restrict theta, size_t n, float scale) {
  walk_span(
      n, [&](size_t i) { store(u + i, scale * load(u + i) + load(theta + i)); },
      [&](size_t i) { u[i] = scale * u[i] + theta[i]; }, u, theta);
}

void consensus_span(const float* __restrict s, const float* __restrict z, float* __restrict y,
                    size_t n, float scale, float rest, float* __restrict z_i) {
  walk_span(
      n,
      [&](size_t i) {
        const Lanes near = load(s + i), all = load(z + i);
        const Lanes dual = scale * (load(y + i) - all);
        const Lanes value = near - (near - (all - dual)) * rest;
        store(z_i + i, value);
        store(y + i, value + dual);
      },
      [&](size_t i) {
        const float dual = scale * (y[i] - z[i]);
        const float value = s[i] - (s[i] - (z[i] - dual)) * rest;
        z_i[i] = value;
        y[i] = value + dual;
      },
      s, z, y, z_i);
}

void duals_span(const float* __restrict theta, const float* __restrict old,
                const float* __restrict z_i, float* __restrict u, float* __restrict s, size_t n,
                Norms& norms) {
  Lanes r1 = load(norms.lanes[0]), dz_i = load(norms.lanes[1]), size = load(norms.lanes[2]),
        dual = load(norms.lanes[3]);
  double* const total = norms.total;
  walk_span(
      n,
      [&](size_t i) {
        const Lanes mine = load(z_i + i);
        const Lanes next = load(u + i) - mine, from = load(theta + i) - mine,
                    moved = mine - load(old + i);
        store(u + i, next);
        store(s + i, load(s + i) - mine);
        r1 += from * from;
        dz_i += moved * moved;
        size += mine * mine;
        dual += next * next;
      },
      [&](size_t i) {
        const float mine = z_i[i], next = u[i] - mine, from = theta[i] - mine,
                    moved = mine - old[i];
        u[i] = next;
        s[i] -= mine;
        total[0] += static_cast<double>(from * from);
        total[1] += static_cast<double>(moved * moved);
        total[2] += static_cast<double>(mine * mine);
        total[3] += static_cast<double>(next * next);
      },
      theta, old, z_i, u, s);
  store(norms.lanes[0], r1);
  store(norms.lanes[1], dz_i);
  store(norms.lanes[2], size);
  store(norms.lanes[3], dual);
}

void globals_span(const float* __restrict old, const float* __restrict z,
                  const float* __restrict z_i, size_t n, Norms& norms) {
  Lanes dz = load(norms.lanes[0]), r2 = load(norms.lanes[1]);
  double* const total = norms.total;
  walk_span(
      n,
      [&](size_t i) {
        const Lanes all = load(z + i);
        const Lanes moved = all - load(old + i), apart = load(z_i + i) - all;
        dz += moved * moved;
        r2 += apart * apart;
      },
      [&](size_t i) {
        const float moved = z[i] - old[i], apart = z_i[i] - z[i];
        total[0] += static_cast<double>(moved * moved);
        total[1] += static_cast<double>(apart * apart);
      },
      old, z, z_i);
  store(norms.lanes[0], dz);
  store(norms.lanes[1], r2);
}

void norm_span(const float* x, size_t n, size_t key, Norms& norms) {
  Lanes sum = load(norms.lanes[key]);
  walk_span(
      n,
      [&](size_t i) {
        const Lanes value = load(x + i);
        sum += value * value;
      },
      [&](size_t i) { norms.total[key] += static_cast<double>(x[i] * x[i]); }, x);
  store(norms.lanes[key], sum);
}

void square_sum_span(const float* s, const float* m, size_t n, float scale, Norms& norms) {
  Lanes sum = load(norms.lanes[0]);
  walk_span(
      n,
      [&](size_t i) {
        const Lanes value = load(s + i) - scale * load(m + i);
        sum += value * value;
      },
      [&](size_t i) {
        const float value = s[i] - scale * m[i];
        norms.total[0] += static_cast<double>(value * value);
      },
      s, m);
  store(norms.lanes[0], sum);
}

// Through a tile in the first-level cache: squares eight at a time, then four sums side by side.
void short_rows(const float* s, const float* m, size_t rows, size_t inner, float scale,
                double* sums) {
  constexpr size_t kTile = 2048;
  alignas(32) float tile[kTile];
  const size_t most = kTile / inner;
  for (size_t row = 0; row < rows; row += most) {
    const size_t now = rows - row < most ? rows - row : most;
    walk_span(
        now * inner,
        [&](size_t i) {
          const Lanes value = load(s + i) - scale * load(m + i);
          store(tile + i, value * value);
        },
        [&](size_t i) {
          const float value = s[i] - scale * m[i];
          tile[i] = value * value;
        },
        s, m);
    const float* at = tile;
    size_t r = 0;
    for (; r + 4 <= now; r += 4, at += 4 * inner) {
      float sum[4] = {};
      for (size_t k = 0; k < inner; ++k) {
        sum[0] += at[k];
        sum[1] += at[inner + k];
        sum[2] += at[2 * inner + k];
        sum[3] += at[3 * inner + k];
      }
      for (size_t k = 0; k < 4; ++k) {
        sums[row + r + k] += static_cast<double>(sum[k]);
      }
    }
    for (; r < now; ++r, at += inner) {
      float sum = 0.0F;
      for (size_t k = 0; k < inner; ++k) {
        sum += at[k];
      }
      sums[row + r] += static_cast<double>(sum);
    }
    s += now * inner;
    m += now * inner;
  }
}

constexpr AdmmTable make_admm_table() {
  return {pull_span,    pull_decayed_span, gather_span, consensus_span, duals_span,
          globals_span, norm_span,         short_rows,  square_sum_span};
}

}  // namespace
}  // namespace prunex::host
