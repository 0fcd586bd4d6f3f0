// SPDX-License-Identifier: Apache-2.0
// How the ranks of one communicator come together: rank 0 listens, the others find it, and all wait
// until everybody is there. hello -> welcome -> ack -> ready. Until its ack a caller may vanish
// unnoticed (a connection left over from an earlier attempt never acks); after it, losing the
// caller is a death.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/bootstrap/control.h"
#include "plugin/bootstrap/link.h"

namespace prunex {

// Where rank 0 listens.
struct Place {
  std::vector<Listening> listeners;
  bool has_cookie = false;  // carried by the store
  Cookie cookie{};
  std::string text;  // for messages: "10.0.0.1:4711"
};
[[nodiscard]] Result<Place> open_place(const ControlOptions& options, const Deadline& deadline);

// Links by rank; [0] is empty.
[[nodiscard]] Result<std::vector<std::unique_ptr<Link>>> meet_as_root(const ControlOptions& options,
                                                                      const Deadline& deadline);
[[nodiscard]] Result<std::unique_ptr<Link>> meet_as_member(const ControlOptions& options,
                                                           const Deadline& deadline);

[[nodiscard]] std::string root_key(const ControlOptions& options);  // in the store
[[nodiscard]] std::string rank_words(std::span<const int> ranks);   // "rank 2", "ranks 1, 3"
[[nodiscard]] Error to_error(const Verdict& verdict);
[[nodiscard]] int poll_wait_ms(int64_t ns, int most);  // rounded up, for poll(2)
void sleep_within(const Deadline& deadline, double seconds);

// A rank that waits through another gives that one this long after its own deadline to tell the
// story.
inline constexpr double kIndirectS = 2;
// Someone who waits longer than this for others is told whom for.
inline constexpr double kPatienceS = 30;

}  // namespace prunex
