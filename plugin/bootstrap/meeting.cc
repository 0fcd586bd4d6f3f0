// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/meeting.h"

#include <poll.h>

#include <algorithm>

namespace prunex {

std::string root_key(const ControlOptions& options) {
  return options.store_prefix.empty() ? "root" : options.store_prefix + "/root";
}

std::string rank_words(std::span<const int> ranks) {
  constexpr size_t kShown = 16;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return ranks.size() > kShown ? out + strf(" and %zu more", ranks.size() - kShown) : out;
}

Error to_error(const Verdict& verdict) { return {verdict.code, verdict.text, 0, verdict.culprit}; }

int poll_wait_ms(int64_t ns, int most) {
  return static_cast<int>(std::clamp<int64_t>((ns + 999'999) / 1'000'000, 0, most));
}

void sleep_within(const Deadline& deadline, double seconds) {
  const auto ns = static_cast<int64_t>(seconds * 1e9);
  ::poll(nullptr, 0, poll_wait_ms(std::min(ns, deadline.left_ns()), 60'000));
}

}  // namespace prunex
