// SPDX-License-Identifier: Apache-2.0
// The control plane of one communicator: a star of TCP connections to rank 0. It gathers small
// records from all ranks, and floods aborts. Cookie, magic, version and length guard every message;
// a stray connection is dropped. Thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/result.h"

namespace prunex {

// A key-value store of the caller's (Python passes torch's Store).
struct StoreCallbacks {
  std::function<Result<>(std::string_view key, std::string_view value)> set;
  std::function<Result<std::string>(std::string_view key, double timeout_s)>
      get;  // waits for the key
};

struct ControlOptions {
  int rank = -1, size = -1;
  std::string root;                     // host:port; empty when there is a store
  std::optional<StoreCallbacks> store;  // rank 0 publishes its address there
  std::string store_prefix;             // name: tells communicators on one store or root apart
  std::string socket_ifname, port_range;
  Family family = Family::any;
  double timeout_s = 1800;
};

// The one story that all survivors tell.
struct Verdict {
  int culprit = -1;
  Code code = Code::peer_lost;
  std::string text;
};

class Control {
 public:
  virtual ~Control() = default;  // says goodbye, so that an orderly close is not taken for a death

  // Returns when all ranks are connected. On a deadline every rank that came names those that did
  // not; the first deadline that passes ends the wait of all.
  [[nodiscard]] static Result<std::unique_ptr<Control>> open(const ControlOptions& options);

  // Collective: every rank contributes, every rank gets all records by rank. Calls match by order.
  // Fails with the verdict when the communicator is aborted, or at the deadline naming who is
  // missing; a deadline is a verdict, too. Rank 0 must be polled for that: of a rank 0 that is not,
  // the others think two seconds later that it is the missing one.
  virtual Result<std::vector<std::string>> all_gather(std::string_view mine, double timeout_s) = 0;

  // Reports a finding. Rank 0 decides which report counts (the first) and tells everybody; returns
  // the common verdict, or our own finding when rank 0 does not answer within a second.
  virtual Verdict abort(const Verdict& finding) = 0;
  [[nodiscard]] virtual std::optional<Verdict> aborted() const = 0;

  // For whoever sleeps: a readable fd means poll() has work. poll() never blocks; rank 0 relays in
  // it.
  [[nodiscard]] virtual int poll_fd() const = 0;
  virtual void poll() = 0;
};

}  // namespace prunex
