// SPDX-License-Identifier: Apache-2.0
// What becomes of a call, from what all nodes said about it: a pure function of the same messages
// everywhere, so that no two nodes ever choose differently.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "plugin/nccl/coll/head.h"

namespace prunex::nccl::coll {

struct Verdict {
  enum class Way : uint8_t { dense, masked, mapped };
  Way way = Way::dense;
  bool inlined = false;        // all contributions came with the messages
  bool violated = false;       // a dropped element was not zero somewhere: dense
  bool mismatched = false;     // different masks: dense
  int offender = -1;           // violated: the lowest node that had one
  int differing = -1;          // mismatched: the lowest node whose mask is not node 0's
  std::optional<Error> error;  // no result is possible; the same everywhere
};

// One message per node, in node order, all valid.
[[nodiscard]] Verdict decide(std::span<const CollMessage> messages);

// What of its masks is another at node `other` than at node 0; and what that text is made of, which
// costs no memory.
[[nodiscard]] std::string describe_difference(std::span<const CollMessage> messages, size_t other);
[[nodiscard]] uint64_t difference_digest(std::span<const CollMessage> messages, size_t other);

}  // namespace prunex::nccl::coll
