// SPDX-License-Identifier: Apache-2.0
// How many typing slips lie between two words.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace prunex {

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
[[nodiscard]] inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

}  // namespace prunex
