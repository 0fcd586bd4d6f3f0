// SPDX-License-Identifier: Apache-2.0
// NCCL's communicators of one rank: the world, its node, and the rails that it leads.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/device/nccl_library.h"
#include "topology/world.h"

namespace prunex::device {

// An error as soon as there is no use in waiting any longer.
using Patience = std::function<Result<>()>;

class Cliques {
 public:
  Cliques(const topo::World& world, int rank);

  // This rank's part of making communicators: identities that it gives to others, or why it cannot.
  // Collective over the node, or over the world.
  [[nodiscard]] std::string offer(bool node_only);
  // The part of a rank that cannot take part at all.
  [[nodiscard]] static std::string refusal(const std::string& why, size_t rails);
  // With everybody's offers, by rank. Every rank gets the same error when one of them cannot.
  [[nodiscard]] Result<> join(bool node_only, const std::map<int, std::string>& offers,
                              const Patience& patience);
  [[nodiscard]] bool ready(bool node_only) const { return node_only ? node_ready_ : world_ready_; }

  // Null: of one rank only, or not this rank's.
  [[nodiscard]] nccl::Comm world() const { return world_comm_; }
  [[nodiscard]] nccl::Comm node() const { return node_comm_; }
  [[nodiscard]] nccl::Comm rail(size_t rail) const { return rails_[rail]; }
  [[nodiscard]] const NcclApi& api() const { return *api_; }

  // Waits while the communicator is still busy with starting a call.
  [[nodiscard]] Result<> settle(int result, nccl::Comm comm, const char* what,
                                const Patience& patience) const;
  // Ends a group of calls on a communicator; `result`: of the calls so far.
  [[nodiscard]] Result<> end_group(int result, nccl::Comm comm, const char* what,
                                   const Patience& patience) const;
  // Errors that came after calls were started.
  [[nodiscard]] Result<> check() const;

  void abort();    // may be called while kernels wait for peers
  void destroy();  // nothing is under way

 private:
  struct Offer;
  [[nodiscard]] static Result<Offer> read(std::string_view bytes);
  [[nodiscard]] static std::string write(const Offer& offer);
  [[nodiscard]] Result<nccl::Comm> make(const nccl::UniqueId& id, size_t size, size_t at,
                                        const char* what, const Patience& patience) const;
  [[nodiscard]] Result<nccl::Comm> split(int color, size_t key, const char* what,
                                         const Patience& patience) const;
  [[nodiscard]] Result<> join_world(const std::map<int, Offer>& offers, const Patience& patience);
  [[nodiscard]] Result<> split_world(const Patience& patience);
  [[nodiscard]] Result<> join_node(const std::map<int, Offer>& offers, const Patience& patience);
  [[nodiscard]] Error error_of(int result, nccl::Comm comm, const char* what) const;
  template <class Visit>
  void each(Visit visit);

  const topo::World& world_facts_;
  int rank_;
  const topo::Node& mine_;
  const NcclApi* api_ = nullptr;
  // Identities that this rank has given and nobody has used yet: each is a thread of NCCL's that
  // listens, which only ranks that come can end. So they are given again.
  std::vector<std::optional<nccl::UniqueId>> given_;
  nccl::Comm world_comm_ = nullptr, node_comm_ = nullptr;
  std::vector<nccl::Comm> rails_;
  std::atomic<bool> node_ready_{false}, world_ready_{false};
};

}  // namespace prunex::device
