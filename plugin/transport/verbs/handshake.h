// SPDX-License-Identifier: Apache-2.0
// Two ends that are connected over TCP tell each other how to be reached by RDMA. The connecting
// end speaks first; the accepting end is ready to receive before it answers; the connecting end
// sends one packet of full size and then says that it is ready too.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {

enum class Role : uint8_t { connects, accepts };

class Handshake {
 public:
  Handshake(std::shared_ptr<Domain> domain, std::unique_ptr<Connection> side, Role role);

  // nullptr: not yet.
  Result<std::unique_ptr<Connection>> step();
  void poll_fds(std::vector<pollfd>& out) const { parts_.side->poll_fds(out); }
  [[nodiscard]] bool is_probing() const { return stage_ == Stage::probing; }  // no event ends that
  // After an error: it is this side that could not, and not the other end that went away.
  [[nodiscard]] bool is_own_fault() const { return own_fault_; }

 private:
  enum class Stage : uint8_t { start, exchange, probing, answering, refusing, ready };

  Result<> advance(bool* again);
  [[nodiscard]] Error about_rdma(Error error) const;
  [[nodiscard]] std::string ends() const;
  Result<> start();
  Result<> prepare();
  Result<> offer();
  Result<> add_rail(size_t index, size_t queue_pairs);
  Result<> connect_rails();
  Result<> match_answer(Endpoint answer);
  Result<> on_peer(bool* again);
  Result<> accept_peer();
  Result<> refuse(const Error& error);
  Result<> probe();
  Result<> read_probe(bool* again);
  Result<> send(size_t bytes);
  Result<> receive(size_t bytes);
  Result<bool> is_done(Ticket* ticket);

  Parts parts_;
  Role role_;
  Stage stage_ = Stage::start;
  bool own_fault_ = false;
  std::array<std::byte, kEndpointBytes> out_{}, in_{};
  Ticket sending_ = 0, receiving_ = 0;
  size_t probes_ = 0;  // not answered yet
  size_t lanes_ = 0;   // made
  Error error_;
};

}  // namespace prunex::transport::verbs
