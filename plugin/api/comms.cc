// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/comms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/pack.h"
#include "plugin/api/error.h"
#include "plugin/base/log.h"

namespace prunex::api {

Handles<std::shared_ptr<CommEntry>>& comms() {
  static auto* const table = new Handles<std::shared_ptr<CommEntry>>("communicator");
  return *table;
}

Result<std::shared_ptr<CommEntry>> find_own_comm(uint64_t id) {
  auto entry = comms().find(id);
  if (entry && (*entry)->made_at != forks()) {
    return tl::unexpected(made_before_fork("communicator"));
  }
  return entry;
}

Handles<RequestEntry>& requests() {
  static auto* const table = new Handles<RequestEntry>("request");
  return *table;
}

namespace {

// Values may be long (rank 0's address and cookie are not): one buffer that is large enough.
constexpr size_t kStoreValueLimit = 4096;

StoreCallbacks wrap(const prunex_store_t& store) {
  StoreCallbacks out;
  out.set = [store](std::string_view key, std::string_view value) -> Result<> {
    const std::string name(key);
    if (const int rc = store.set(store.context, name.c_str(), value.data(), value.size());
        rc != 0) {
      return fail(Code::system, strf("the store's set(%s) returned %d", name.c_str(), rc));
    }
    return {};
  };
  out.get = [store](std::string_view key, double timeout_s) -> Result<std::string> {
    const std::string name(key);
    std::string value(kStoreValueLimit, '\0');
    size_t length = 0;
    const int rc =
        store.get(store.context, name.c_str(), value.data(), value.size(), &length, timeout_s);
    if (rc != 0 || length > value.size()) {
      return fail(Code::timeout,
                  strf("the store's get(%s) returned %d and %zu bytes", name.c_str(), rc, length),
                  0, 0);
    }
    value.resize(length);
    return value;
  };
  return out;
}

Result<collective::CommOptions> options_of(const prunex_comm_config_t* config) {
  if (auto sized = check_size(config, "config"); !sized) {
    return tl::unexpected(sized.error());
  }
  auto loaded = load_config(process_environment());
  if (!loaded) {
    return tl::unexpected(loaded.error());
  }
  set_log_level(loaded->config.debug);
  // Once per process: the environment does not change between communicators.
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    // Nor does it between the ranks of a node, as a rule.
    for (const std::string& warning : loaded->warnings) {
      if (loaded->speaks_for_node) {
        PRUNEX_LOG(warn, "%s", warning.c_str());
      }
    }
    for (const ConfigValue& v : loaded->values) {
      if (v.source != "default") {
        PRUNEX_LOG(info, "%s=%s (%s)", v.name.c_str(), v.value.c_str(), v.source.c_str());
      }
    }
  }
  collective::CommOptions out;
  out.config = loaded->config;
  if (config->rank >= 0 || config->size >= 0) {
    if (config->rank < 0 || config->size < 1 || config->rank >= config->size) {
      return fail(
          Code::invalid_argument,
          strf("config.rank is %d and config.size is %d: give both, the rank below the size, "
               "or -1 for both to take them from the environment",
               config->rank, config->size));
    }
    out.config.rank = config->rank;
    out.config.size = config->size;
  }
  if (config->root != nullptr) {
    out.config.root = config->root;
  }
  if (config->node_id != nullptr) {
    out.config.node_id = config->node_id;
  }
  if (config->timeout_s > 0) {
    out.config.timeout_s = config->timeout_s;
  }
  if (config->store != nullptr) {
    if (config->store->set == nullptr || config->store->get == nullptr) {
      return null_argument("config.store.set or get");
    }
    out.store = wrap(*config->store);
  }
  out.name = config->name == nullptr ? "default" : config->name;
  return out;
}

void copy_text(const std::string& from, char* to, size_t capacity) {
  if (to != nullptr && capacity > 0) {
    const size_t n = std::min(from.size(), capacity - 1);
    std::memcpy(to, from.data(), n);
    to[n] = 0;
  }
}

}  // namespace
}  // namespace prunex::api

using prunex::Result;

extern "C" {

prunex_result_t prunex_comm_create(const prunex_comm_config_t* config, prunex_comm_t* out) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (out == nullptr) {
      return null_argument("out");
    }
    *out = 0;
    auto options = options_of(config);
    if (!options) {
      return tl::unexpected(options.error());
    }
    auto comm = prunex::collective::Comm::create(*options);
    if (!comm) {
      return tl::unexpected(comm.error());
    }
    auto entry = std::make_shared<CommEntry>();
    entry->comm = std::move(*comm);
    *out = comms().add(std::move(entry));
    return {};
  });
}

prunex_result_t prunex_comm_destroy(prunex_comm_t comm) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto entry = comms().take(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    if ((*entry)->made_at != prunex::forks()) {
      // Its goodbyes would be the parent's, and its thread is not here: left to the process's end.
      [[maybe_unused]] static auto* const kept = new std::vector<std::shared_ptr<CommEntry>>;
      kept->push_back(std::move(*entry));
      return {};
    }
    {
      const std::lock_guard lock((*entry)->device_mutex);
      (*entry)->device.reset();
    }
    (*entry)->comm->wait_idle();
    return {};
  });
}

prunex_result_t prunex_comm_abort(prunex_comm_t comm) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto entry = find_own_comm(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    (*entry)->comm->abort();
    return {};
  });
}

prunex_result_t prunex_comm_get_async_error(prunex_comm_t comm, prunex_result_t* error) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (error == nullptr) {
      return null_argument("error");
    }
    *error = PRUNEX_SUCCESS;
    auto entry = find_own_comm(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    Result<> state = (*entry)->comm->state();
    if (state) {
      const std::unique_lock lock((*entry)->device_mutex, std::try_to_lock);  // else a call looks
      if (lock && (*entry)->device != nullptr) {
        state = (*entry)->device->poll();
      }
    }
    if (!state) {
      *error = report(state.error());
    }
    return {};
  });
}

prunex_result_t prunex_comm_info(prunex_comm_t comm, prunex_comm_info_t* info) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (auto sized = check_size(info, "info"); !sized) {
      return sized;
    }
    auto entry = comms().find(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    const prunex::collective::Comm& c = *(*entry)->comm;
    const prunex::topo::World& world = c.world();
    const auto self = static_cast<size_t>(c.rank());
    const prunex::topo::Node& node = world.nodes[static_cast<size_t>(world.node_of[self])];
    info->rank = c.rank();
    info->size = world.size;
    info->node = world.node_of[self];
    info->num_nodes = static_cast<int>(world.nodes.size());
    info->local_rank = world.local_of[self];
    info->local_size = static_cast<int>(node.ranks.size());
    info->leader = node.leaders[0].rank;
    info->is_leader = std::any_of(node.leaders.begin(), node.leaders.end(),
                                  [&](const auto& l) { return l.rank == c.rank(); })
                          ? 1
                          : 0;
    info->rails = world.rails;
    copy_text(c.transport(), info->transport, sizeof info->transport);
    return {};
  });
}

prunex_result_t prunex_comm_topology(prunex_comm_t comm, char* text, size_t capacity,
                                     size_t* length) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto entry = comms().find(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    const std::string all = (*entry)->comm->topology_text();
    copy_text(all, text, capacity);
    if (length != nullptr) {
      *length = all.size() + 1;
    }
    return {};
  });
}

prunex_result_t prunex_stats(prunex_comm_t comm, prunex_stats_t* stats) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (auto sized = check_size(stats, "stats"); !sized) {
      return sized;
    }
    auto entry = comms().find(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    const prunex::collective::CommStats s = (*entry)->comm->stats();
    *stats = prunex_stats_t{};
    stats->struct_size = sizeof *stats;
    stats->calls = s.calls;
    stats->calls_compact = s.calls_compact;
    stats->calls_dense = s.calls_dense;
    stats->hits = (*entry)->hits;
    stats->misses = (*entry)->misses;
    stats->stale = (*entry)->stale;
    stats->mismatches = s.mismatches;
    stats->violations = s.violations;
    stats->bytes_logical = s.bytes_logical;
    stats->bytes_wire_sent = s.bytes_sent;
    stats->bytes_wire_received = s.bytes_received;
    stats->bytes_dense = s.bytes_dense;
    stats->dropped_nonzero = s.dropped_nonzero;
    stats->pack_ns = s.times.pack;
    stats->unpack_ns = s.times.unpack;
    stats->reduce_ns = s.times.reduce;
    stats->inter_ns = s.times.inter;
    stats->agree_ns = s.times.agree;
    stats->total_ns = s.times.total;
    return {};
  });
}
}
