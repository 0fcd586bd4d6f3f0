// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/nccl_cliques.h"

#include <cstring>
#include <ctime>

#include "plugin/base/wire.h"
#include "plugin/device/backend.h"

namespace prunex::device {
namespace {

constexpr size_t kTextLimit = 4096;

void nap() {
  const timespec t{0, 20'000};
  ::nanosleep(&t, nullptr);
}

std::string_view bytes_of(const nccl::UniqueId& id) { return {id.bytes, sizeof id.bytes}; }

}  // namespace

struct Cliques::Offer {
  std::string problem;
  uint32_t version = 0, split = 0;
  std::vector<nccl::UniqueId> ids;  // world, node, rails; zeros where this rank gives none
};

Cliques::Cliques(const topo::World& world, int rank)
    : world_facts_(world),
      rank_(rank),
      mine_(world.nodes[static_cast<size_t>(world.node_of[static_cast<size_t>(rank)])]),
      given_(2 + static_cast<size_t>(world.rails)),
      rails_(static_cast<size_t>(world.rails), nullptr) {}

std::string Cliques::offer(bool node_only) {
  Offer mine;
  mine.ids.resize(2 + rails_.size());
  auto api = nccl_api();
  const auto identity = [&](size_t i) {
    nccl::UniqueId id{};
    const bool is_new = mine.problem.empty() && !given_[i];
    const int result = is_new ? (*api)->GetUniqueId(&id) : nccl::kSuccess;
    if (result != nccl::kSuccess) {
      mine.problem = error_of(result, nullptr, "ncclGetUniqueId").text;
    } else if (is_new) {
      given_[i] = id;
    }
    mine.ids[i] = given_[i].value_or(id);
  };
  if (!api) {
    mine.problem = api.error().text;
  } else {
    api_ = *api;
    mine.version = static_cast<uint32_t>(api_->version);
    mine.split = api_->CommSplit != nullptr && api_->CommInitRankConfig != nullptr ? 1 : 0;
    if (!node_only && rank_ == 0) {
      identity(0);
    }
    const bool by_identity = node_only || mine.split == 0;
    if (by_identity && !node_ready_ && rank_ == mine_.ranks[0] && mine_.ranks.size() > 1) {
      identity(1);
    }
    for (size_t r = 0; !node_only && mine.split == 0 && r < rails_.size(); ++r) {
      if (rank_ == world_facts_.nodes[0].leaders[r].rank) {
        identity(2 + r);
      }
    }
  }
  return write(mine);
}

std::string Cliques::refusal(const std::string& why, size_t rails) {
  Offer mine;
  mine.problem = why;
  mine.ids.resize(2 + rails);
  return write(mine);
}

std::string Cliques::write(const Offer& offer) {
  WireAppender w;
  w.put_string(std::string_view(offer.problem).substr(0, kTextLimit));
  w.put(offer.version);
  w.put(offer.split);
  for (const nccl::UniqueId& id : offer.ids) {
    w.put_string(bytes_of(id));
  }
  return w.take();
}

Result<Cliques::Offer> Cliques::read(std::string_view bytes) {
  WireReader r(bytes);
  Offer out;
  out.problem = r.get_string(kTextLimit);
  out.version = r.get<uint32_t>();
  out.split = r.get<uint32_t>();
  while (r.ok() && r.left() > 0) {
    const std::string id = r.get_string(sizeof(nccl::UniqueId));
    if (id.size() == sizeof(nccl::UniqueId)) {
      std::memcpy(out.ids.emplace_back().bytes, id.data(), id.size());
    }
  }
  if (!r.ok()) {
    return fail(Code::internal, strf("an offer of %zu bytes cannot be read", bytes.size()));
  }
  return out;
}

Result<> Cliques::join(bool node_only, const std::map<int, std::string>& offers,
                       const Patience& patience) {
  std::map<int, Offer> all;
  for (const auto& [rank, bytes] : offers) {
    auto one = read(bytes);
    if (!one || one->ids.size() != 2 + rails_.size()) {
      return fail(Code::internal, strf("rank %d's offer of NCCL identities cannot be read", rank));
    }
    if (!one->problem.empty()) {
      return fail(Code::unsupported,
                  rank == rank_ ? one->problem : strf("rank %d: %s", rank, one->problem.c_str()), 0,
                  rank);
    }
    all.emplace(rank, std::move(*one));
  }
  const auto& [first, reference] = *all.begin();
  for (const auto& [rank, one] : all) {
    if (one.version != reference.version || one.split != reference.split) {
      return fail(Code::unsupported,
                  strf("rank %d has NCCL %s, rank %d has NCCL %s: all need the same", first,
                       nccl_version_text(static_cast<int>(reference.version)).c_str(), rank,
                       nccl_version_text(static_cast<int>(one.version)).c_str()),
                  0, rank);
    }
  }
  // From here on ranks come to them.
  given_[1].reset();
  if (!node_only) {
    given_.assign(given_.size(), std::nullopt);
  }
  return node_only ? join_node(all, patience) : join_world(all, patience);
}

Result<> Cliques::join_node(const std::map<int, Offer>& offers, const Patience& patience) {
  if (node_ready_) {
    return {};
  }
  if (mine_.ranks.size() > 1) {
    const auto at = static_cast<size_t>(world_facts_.local_of[static_cast<size_t>(rank_)]);
    auto made = make(offers.at(mine_.ranks[0]).ids[1], mine_.ranks.size(), at,
                     "the node's communicator", patience);
    if (!made) {
      return tl::unexpected(made.error());
    }
    node_comm_ = *made;
  }
  node_ready_ = true;
  return {};
}

Result<> Cliques::join_world(const std::map<int, Offer>& offers, const Patience& patience) {
  const auto size = static_cast<size_t>(world_facts_.size);
  const size_t nodes = world_facts_.nodes.size();
  if (size > 1) {
    auto made = make(offers.at(0).ids[0], size, static_cast<size_t>(rank_),
                     "the world's communicator", patience);
    if (!made) {
      return tl::unexpected(made.error());
    }
    world_comm_ = *made;
    if (offers.at(0).split != 0) {
      return split_world(patience);
    }
  }
  if (auto joined = join_node(offers, patience); !joined) {
    return joined;
  }
  for (size_t r = 0; nodes > 1 && r < rails_.size(); ++r) {
    if (mine_.leaders[r].rank != rank_) {
      continue;
    }
    const nccl::UniqueId& id = offers.at(world_facts_.nodes[0].leaders[r].rank).ids[2 + r];
    const auto node = static_cast<size_t>(world_facts_.node_of[static_cast<size_t>(rank_)]);
    auto made = make(id, nodes, node, "the leaders' communicator", patience);
    if (!made) {
      return tl::unexpected(made.error());
    }
    rails_[r] = *made;
  }
  world_ready_ = true;
  return {};
}

// Splitting is collective over the world: everybody takes part in all of it.
Result<> Cliques::split_world(const Patience& patience) {
  const auto self = static_cast<size_t>(rank_);
  const bool wanted = !node_ready_ && mine_.ranks.size() > 1;
  auto node =
      split(wanted ? world_facts_.node_of[self] : nccl::kNoColor,
            static_cast<size_t>(world_facts_.local_of[self]), "the node's communicator", patience);
  if (!node) {
    return tl::unexpected(node.error());
  }
  node_comm_ = wanted ? *node : node_comm_;
  node_ready_ = true;
  for (size_t r = 0; world_facts_.nodes.size() > 1 && r < rails_.size(); ++r) {
    const bool leads = mine_.leaders[r].rank == rank_;
    auto rail = split(leads ? 0 : nccl::kNoColor, static_cast<size_t>(world_facts_.node_of[self]),
                      "the leaders' communicator", patience);
    if (!rail) {
      return tl::unexpected(rail.error());
    }
    rails_[r] = leads ? *rail : nullptr;
  }
  world_ready_ = true;
  return {};
}

Result<nccl::Comm> Cliques::make(const nccl::UniqueId& id, size_t size, size_t at, const char* what,
                                 const Patience& patience) const {
  nccl::Comm comm = nullptr;
  const auto n = static_cast<int>(size), rank = static_cast<int>(at);
  if (api_->CommInitRankConfig == nullptr) {
    if (const int result = api_->CommInitRank(&comm, n, id, rank); result != nccl::kSuccess) {
      return tl::unexpected(error_of(result, nullptr, what));
    }
    return comm;
  }
  nccl::Config config;  // so that a rank that does not come ends in an error, not in a hang
  const int result = api_->CommInitRankConfig(&comm, n, id, rank, &config);
  if (auto settled = settle(result, comm, what, patience); !settled) {
    if (comm != nullptr) {
      (void)api_->CommAbort(comm);
    }
    Error error = settled.error();
    if (error.code == Code::timeout) {
      error.text += strf(
          " (%s: between ncclGroupStart and ncclGroupEnd of this thread it cannot begin)", what);
    }
    return tl::unexpected(std::move(error));
  }
  return comm;
}

Result<nccl::Comm> Cliques::split(int color, size_t key, const char* what,
                                  const Patience& patience) const {
  nccl::Comm comm = nullptr;
  nccl::Config config;
  const int result = api_->CommSplit(world_comm_, color, static_cast<int>(key), &comm, &config);
  auto settled = settle(result, world_comm_, what, patience);
  if (settled && comm != nullptr) {
    settled = settle(nccl::kInProgress, comm, what, patience);
  }
  if (!settled) {
    if (comm != nullptr) {
      (void)api_->CommAbort(comm);
    }
    return tl::unexpected(settled.error());
  }
  return comm;
}

Error Cliques::error_of(int result, nccl::Comm comm, const char* what) const {
  const char* last = api_->GetLastError != nullptr ? api_->GetLastError(comm) : nullptr;
  const bool more = last != nullptr && last[0] != 0;
  return Error{Code::system,
               strf("rank %d: NCCL: %s: %s%s%s", rank_, what, api_->GetErrorString(result),
                    more ? ": " : "", more ? last : ""),
               0, rank_};
}

Result<> Cliques::settle(int result, nccl::Comm comm, const char* what,
                         const Patience& patience) const {
  while (result == nccl::kInProgress) {
    int now = nccl::kSuccess;
    if (const int asked = api_->CommGetAsyncError(comm, &now); asked != nccl::kSuccess) {
      now = asked;
    }
    result = now;
    if (result == nccl::kInProgress) {
      if (auto good = patience(); !good) {
        return good;
      }
      nap();
    }
  }
  return result == nccl::kSuccess ? Result<>()
                                  : Result<>(tl::unexpected(error_of(result, comm, what)));
}

Result<> Cliques::end_group(int result, nccl::Comm comm, const char* what,
                            const Patience& patience) const {
  const int ended = api_->GroupEnd();
  return settle(nccl::good(result) ? ended : result, comm, what, patience);
}

template <class Visit>
void Cliques::each(Visit visit) {  // the node first: an aborted sum should reach few
  visit(node_comm_, "the node's communicator");
  for (nccl::Comm& rail : rails_) {
    visit(rail, "the leaders' communicator");
  }
  visit(world_comm_, "the world's communicator");
}

Result<> Cliques::check() const {
  Result<> result;
  const_cast<Cliques*>(this)->each([&](nccl::Comm& comm, const char* what) {
    int now = nccl::kSuccess;
    if (comm == nullptr || !result) {
      return;
    }
    const int asked = api_->CommGetAsyncError(comm, &now);
    now = asked != nccl::kSuccess ? asked : now;
    if (now != nccl::kSuccess && now != nccl::kInProgress) {
      result = tl::unexpected(error_of(now, comm, what));
    }
  });
  return result;
}

void Cliques::abort() {
  each([&](nccl::Comm& comm, const char*) {
    if (comm != nullptr) {
      (void)api_->CommAbort(comm);
      comm = nullptr;
    }
  });
  node_ready_ = world_ready_ = false;
}

void Cliques::destroy() {
  each([&](nccl::Comm& comm, const char*) {
    if (comm != nullptr) {
      (void)api_->CommDestroy(comm);
      comm = nullptr;
    }
  });
}

}  // namespace prunex::device
