// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/agree.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plugin/base/digest.h"
#include "plugin/base/text.h"

namespace prunex::collective {
namespace {

Result<> check(const AgreeSpec& s, size_t out) {
  const auto invalid = [](std::string text) {
    return fail(Code::invalid_argument, std::move(text));
  };
  if (out != s.scores.size()) {
    return invalid(
        strf("keep_out has %zu entries for %s", out, counted(s.scores.size(), "group").c_str()));
  }
  if (!std::isfinite(s.weight) || s.weight < 0) {
    return invalid(strf("weight %g: finite and not negative is needed", s.weight));
  }
  if (!std::isfinite(s.hysteresis) || s.hysteresis < 0) {
    return invalid(strf("hysteresis %g: finite and not negative is needed", s.hysteresis));
  }
  if (!s.incumbents.empty() && s.incumbents.size() != s.scores.size()) {
    return invalid(strf("%zu incumbents for %s", s.incumbents.size(),
                        counted(s.scores.size(), "group").c_str()));
  }
  size_t groups = 0;
  for (size_t l = 0; l < s.layer_groups.size(); ++l) {
    if (s.layer_groups[l] > s.scores.size() - groups) {
      return invalid(strf("layers 0 to %zu have more groups than the %zu that have scores", l,
                          s.scores.size()));
    }
    groups += s.layer_groups[l];
    if (s.mode == AgreeMode::top_k && s.layer_keep[l] > s.layer_groups[l]) {
      return invalid(strf("layer %zu keeps %zu of its %s", l, s.layer_keep[l],
                          counted(s.layer_groups[l], "group").c_str()));
    }
  }
  if (groups != s.scores.size()) {
    return invalid(strf("the layers have %s, there are %zu scores",
                        counted(groups, "group").c_str(), s.scores.size()));
  }
  return {};
}

Result<> check_scores(std::span<const float> scores) {
  for (size_t g = 0; g < scores.size(); ++g) {
    if (!std::isfinite(scores[g]) || scores[g] < 0) {
      return fail(Code::invalid_argument,
                  strf("score of group %zu is %g: finite and not negative is needed", g,
                       static_cast<double>(scores[g])));
    }
  }
  return {};
}

// What must be equal on all ranks; scores and weights need not be.
uint64_t digest_of(const AgreeSpec& s) {
  Digest d(1);
  d.add(s.mode).add(s.scores.size()).add(std::bit_cast<uint64_t>(s.hysteresis));
  d.add(s.layer_groups.size()).add_bytes(s.layer_groups.data(), s.layer_groups.size_bytes());
  if (s.mode == AgreeMode::top_k) {
    d.add_bytes(s.layer_keep.data(), s.layer_keep.size_bytes());
  }
  d.add(s.incumbents.size());
  for (const uint8_t i : s.incumbents) {
    d.add(i != 0);
  }
  return d.value();
}

}  // namespace

void select_top_k(std::span<const double> sums, const AgreeSpec& spec,
                  std::span<uint8_t> keep_out) {
  std::vector<double> score(sums.begin(), sums.end());
  for (size_t g = 0; g < spec.incumbents.size(); ++g) {
    if (spec.incumbents[g] != 0) {
      score[g] *= 1 + spec.hysteresis;
    }
  }
  std::fill(keep_out.begin(), keep_out.end(), uint8_t{0});
  std::vector<size_t> order;
  size_t begin = 0;
  for (size_t l = 0; l < spec.layer_groups.size(); ++l) {
    order.resize(spec.layer_groups[l]);
    std::iota(order.begin(), order.end(), begin);
    const auto k = static_cast<std::ptrdiff_t>(spec.layer_keep[l]);
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](size_t a, size_t b) {
      return score[a] != score[b] ? score[a] > score[b] : a < b;
    });
    for (std::ptrdiff_t i = 0; i < k; ++i) {
      keep_out[order[static_cast<size_t>(i)]] = 1;
    }
    begin += spec.layer_groups[l];
  }
}

// A rank with bad arguments still takes part, with a digest that no good call has: then every rank
// gets an error instead of a wait for the one that left.
Result<> agree_mask(Comm& comm, const AgreeSpec& spec, std::span<uint8_t> keep_out) {
  const bool contributes =
      spec.scope != Scope::leaders ||
      comm.world()
              .nodes[static_cast<size_t>(comm.world().node_of[static_cast<size_t>(comm.rank())])]
              .leaders[0]
              .rank == comm.rank();
  Result<> good = check(spec, keep_out.size());
  if (good && contributes) {
    good = check_scores(spec.scores);
  }
  CallSpec call;
  call.scope = spec.scope;
  call.count = spec.scores.size();
  call.extra_digest = good ? digest_of(spec) : ~digest_of(spec);
  const bool top_k = spec.mode == AgreeMode::top_k;
  std::vector<double> sums(top_k ? spec.scores.size() : 0);
  std::vector<uint8_t> bits(top_k ? 0 : spec.scores.size());
  for (size_t g = 0; good && contributes && g < spec.scores.size(); ++g) {
    if (top_k) {
      sums[g] = spec.weight * static_cast<double>(spec.scores[g]);
    } else {
      bits[g] = spec.scores[g] != 0 ? 1 : 0;
    }
  }
  call.type = top_k ? DType::f64 : DType::u8;
  call.op = top_k ? Op::sum : spec.mode == AgreeMode::unite ? Op::max : Op::min;
  call.send = call.recv = top_k ? static_cast<void*>(sums.data()) : static_cast<void*>(bits.data());
  Result<> called = comm.all_reduce(call);
  if (!good) {
    return good;
  }
  if (!called) {
    return called;
  }
  if (top_k) {
    select_top_k(sums, spec, keep_out);
  } else {
    std::copy(bits.begin(), bits.end(), keep_out.begin());
  }
  return {};
}

}  // namespace prunex::collective
