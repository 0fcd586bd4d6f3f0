// SPDX-License-Identifier: Apache-2.0
// Listening and connecting: the socket transport's, with a handshake behind it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/transport/timer.h"
#include "plugin/transport/verbs/handshake.h"

namespace prunex::transport::verbs {

class VerbsListener final : public Listener {
 public:
  VerbsListener(std::shared_ptr<Domain> domain, std::unique_ptr<Listener> meeting)
      : domain_(std::move(domain)), meeting_(std::move(meeting)) {}
  [[nodiscard]] std::string handle() const override { return wrap_handle(meeting_->handle()); }
  Result<std::unique_ptr<Connection>> accept() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  struct Caller {
    Handshake handshake;
    Deadline deadline;
  };
  std::shared_ptr<Domain> domain_;
  std::unique_ptr<Listener> meeting_;
  std::vector<std::unique_ptr<Caller>> callers_;
};

class VerbsConnecting final : public Connecting {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Connecting>> open(std::shared_ptr<Domain> domain,
                                                                std::unique_ptr<Connecting> meeting,
                                                                double timeout_s);
  Result<std::unique_ptr<Connection>> step() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  VerbsConnecting(std::shared_ptr<Domain> domain, std::unique_ptr<Connecting> meeting,
                  double timeout_s, Timer timer);

  std::shared_ptr<Domain> domain_;
  std::unique_ptr<Connecting> meeting_;  // until the ends have met
  std::optional<Handshake> handshake_;   // from then on
  std::string peer_;
  double timeout_s_;
  Deadline deadline_;
  Timer timer_;
};

}  // namespace prunex::transport::verbs
