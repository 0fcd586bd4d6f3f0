// SPDX-License-Identifier: Apache-2.0
#include "kernels/admm.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host/admm_table.h"
#include "kernels/pack.h"

namespace prunex::admm {
namespace {

using host::AdmmTable;
using host::Norms;

const AdmmTable& table() {
#if defined(__x86_64__)
  if (active_isa() != Isa::scalar) {
    return host::kAvx2AdmmTable;
  }
#endif
  return host::kScalarAdmmTable;
}

// kept(begin, end) and gap(begin, end) for parameter i, ascending, in flat elements.
template <typename Kept, typename Gap>
void walk(const Model& model, uint64_t i, Kept&& kept, Gap&& gap) {
  uint64_t at = model.offsets[i];
  const uint64_t end = model.offsets[i + 1];
  for (uint64_t r = model.first_run[i]; r < model.first_run[i + 1]; ++r) {
    const Run run = model.runs[r];
    if (at < run.begin) {
      gap(at, run.begin);
    }
    kept(run.begin, run.end);
    at = run.end;
  }
  if (at < end) {
    gap(at, end);
  }
}

constexpr auto kNothing = [](uint64_t, uint64_t) {};

void zero(float* p, uint64_t begin, uint64_t end) {
  std::memset(p + begin, 0, (end - begin) * sizeof(float));
}

// Squared norms of one parameter, taken in stretches that keep the partial sums exact enough.
class Tally {
 public:
  explicit Tally(size_t keys) : keys_(keys) {}

  // op(begin, count, norms)
  template <typename Op>
  void add(uint64_t begin, uint64_t end, Op&& op) {
    while (begin < end) {
      const uint64_t n = std::min<uint64_t>(end - begin, host::kNormBlock - used_);
      op(begin, n, norms_);
      begin += n;
      used_ += n;
      if (used_ == host::kNormBlock) {
        empty();
      }
    }
  }

  // To out[key * stride].
  void finish(double* out, uint64_t stride) {
    empty();
    for (size_t k = 0; k < keys_; ++k) {
      out[k * stride] = norms_.total[k];
    }
  }

 private:
  void empty() {
    for (size_t k = 0; k < keys_; ++k) {
      for (float& lane : norms_.lanes[k]) {
        norms_.total[k] += static_cast<double>(lane);
        lane = 0.0F;
      }
    }
    used_ = 0;
  }

  size_t keys_;
  Norms norms_;
  uint64_t used_ = 0;
};

}  // namespace

void pull(const Model& model, bool frozen, bool decayed, float* const* grads, const float* rho,
          const float* z_i, const float* u, const float* scale) {
  const AdmmTable& t = table();
  for (uint64_t i = 0; i < model.parameters; ++i) {
    if (grads[i] == nullptr) {
      continue;
    }
    const uint64_t first = model.offsets[i];
    float* const g = grads[i];
    const float* const theta = model.theta[i];
    const auto add = [&](uint64_t b, uint64_t e, const float* near) {
      if (decayed) {
        t.pull_decayed(g + (b - first), near, u + b, e - b, scale[i], rho[i]);
      } else {
        t.pull(g + (b - first), theta + (b - first), near, u + b, e - b, scale[i], rho[i]);
      }
    };
    walk(
        model, i, [&](uint64_t b, uint64_t e) { add(b, e, z_i + b); },
        [&](uint64_t b, uint64_t e) {
          if (frozen) {
            zero(g, b - first, e - first);
          } else {
            add(b, e, nullptr);
          }
        });
  }
}

void gather(const Model& model, bool frozen, float* u, const float* scale) {
  const AdmmTable& t = table();
  for (uint64_t i = 0; i < model.parameters; ++i) {
    const float* const theta = model.theta[i];
    const uint64_t first = model.offsets[i], end = model.offsets[i + 1];
    const auto add = [&](uint64_t b, uint64_t e) {
      t.gather(u + b, theta + (b - first), e - b, scale[i]);
    };
    if (frozen) {
      walk(model, i, add, kNothing);
    } else {
      add(first, end);
    }
  }
}

void consensus(const Model& model, const float* rest, const float* s, const float* z, float* y,
               const float* scale, float* z_i) {
  const AdmmTable& t = table();
  for (uint64_t i = 0; i < model.parameters; ++i) {
    walk(
        model, i,
        [&](uint64_t b, uint64_t e) {
          t.consensus(s + b, z + b, y + b, e - b, scale[i], rest[i], z_i + b);
        },
        [&](uint64_t b, uint64_t e) {
          zero(z_i, b, e);
          zero(y, b, e);
        });
  }
}

void duals(const Model& model, bool frozen, bool cut, const float* old, const float* z_i, float* u,
           float* s, double* norms) {
  const AdmmTable& t = table();
  for (uint64_t i = 0; i < model.parameters; ++i) {
    const float* const theta = model.theta[i];
    const uint64_t first = model.offsets[i];
    Tally tally(4);
    walk(
        model, i,
        [&](uint64_t begin, uint64_t end) {
          tally.add(begin, end, [&](uint64_t b, uint64_t n, Norms& sums) {
            t.duals(theta + (b - first), old + b, z_i + b, u + b, s + b, n, sums);
          });
        },
        [&](uint64_t begin, uint64_t end) {
          if (frozen) {
            return;
          }
          tally.add(begin, end, [&](uint64_t b, uint64_t n, Norms& sums) {
            t.norm(theta + (b - first), n, 0, sums);
            if (cut) {
              t.norm(old + b, n, 1, sums);
            }
            t.norm(u + b, n, 3, sums);
          });
        });
    tally.finish(norms + i, model.parameters);
  }
}

void globals(const Model& model, bool cut, const float* old, const float* z, const float* z_i,
             double* norms) {
  const AdmmTable& t = table();
  for (uint64_t i = 0; i < model.parameters; ++i) {
    Tally tally(2);
    walk(
        model, i,
        [&](uint64_t begin, uint64_t end) {
          tally.add(begin, end, [&](uint64_t b, uint64_t n, Norms& sums) {
            t.globals(old + b, z + b, z_i + b, n, sums);
          });
        },
        [&](uint64_t begin, uint64_t end) {
          if (cut) {
            tally.add(begin, end,
                      [&](uint64_t b, uint64_t n, Norms& sums) { t.norm(old + b, n, 0, sums); });
          }
        });
    tally.finish(norms + i, model.parameters);
  }
}

void squares(const float* s, const float* m, float scale, uint64_t outer, uint64_t places,
             uint64_t inner, double* sums) {
  const AdmmTable& t = table();
  for (uint64_t o = 0; o < outer; ++o) {
    if (inner <= 64) {
      t.short_rows(s, m, places, inner, scale, sums);
    } else {
      for (uint64_t p = 0; p < places; ++p) {
        Tally tally(1);
        tally.add(p * inner, (p + 1) * inner, [&](uint64_t b, uint64_t n, Norms& part) {
          t.square_sum(s + b, m + b, n, scale, part);
        });
        double sum = 0.0;
        tally.finish(&sum, 1);
        sums[p] += sum;
      }
    }
    s += places * inner;
    m += places * inner;
  }
}

namespace {

// Collects kept runs in ascending order and joins those that touch.
class Runs {
 public:
  Runs(Run* out, uint64_t room) : out_(out), room_(room) {}

  void add(uint64_t begin, uint64_t end) {
    if (count_ > 0 && last_.end == begin) {
      last_.end = end;
    } else {
      last_ = {begin, end};
      ++count_;
    }
    if (count_ <= room_) {
      out_[count_ - 1] = last_;
    }
  }

  [[nodiscard]] uint64_t count() const { return count_; }

 private:
  Run* out_;
  uint64_t room_;
  uint64_t count_ = 0;
  Run last_{};
};

// The last of keep[0 .. dims - 1] is not null; `inner` holds its runs, relative, in elements.
void add_runs(uint64_t dims, const uint64_t* sizes, const uint8_t* const* keep, uint64_t base,
              uint64_t elements, const std::vector<Run>& inner, Runs& runs) {
  if (dims == 1) {
    for (const Run& run : inner) {
      runs.add(base + run.begin, base + run.end);
    }
    return;
  }
  const uint64_t each = elements / std::max<uint64_t>(sizes[0], 1);
  for (uint64_t p = 0; p < sizes[0]; ++p, base += each) {
    if (keep[0] == nullptr || keep[0][p] != 0) {
      add_runs(dims - 1, sizes + 1, keep + 1, base, each, inner, runs);
    }
  }
}

// The runs of a dimension whose places are `each` elements.
std::vector<Run> runs_of(const uint8_t* keep, uint64_t places, uint64_t each) {
  std::vector<Run> out;
  for (uint64_t p = 0; p < places; ++p) {
    if (keep[p] == 0) {
      continue;
    }
    if (!out.empty() && out.back().end == p * each) {
      out.back().end += each;
    } else {
      out.push_back({p * each, (p + 1) * each});
    }
  }
  return out;
}

}  // namespace

uint64_t kept_runs(uint64_t dims, const uint64_t* sizes, const uint8_t* const* keep, uint64_t base,
                   Run* runs, uint64_t room) {
  uint64_t elements = 1;
  for (uint64_t d = 0; d < dims; ++d) {
    elements *= sizes[d];
  }
  uint64_t each = 1;
  while (dims > 0 && keep[dims - 1] == nullptr) {
    each *= sizes[--dims];
  }
  Runs out(runs, room);
  if (elements > 0 && dims > 0) {
    add_runs(dims, sizes, keep, base, elements, runs_of(keep[dims - 1], sizes[dims - 1], each),
             out);
  } else if (elements > 0) {
    out.add(base, base + elements);
  }
  return out.count();
}

}  // namespace prunex::admm
