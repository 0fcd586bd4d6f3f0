// SPDX-License-Identifier: Apache-2.0
// How a communicator comes about: control plane, facts, world, shared memory of the node,
// connections between leaders. Whatever may fail on one rank alone is agreed on before anybody
// depends on it.
#include <sys/eventfd.h>

#include <algorithm>

#include "kernels/pack.h"
#include "plugin/base/interfaces.h"
#include "plugin/base/log.h"
#include "plugin/base/wire.h"
#include "plugin/collective/comm.h"
#include "plugin/collective/comm_setup.h"
#include "plugin/collective/networks.h"
#include "topology/render.h"

namespace prunex::collective {
namespace {

constexpr size_t kTextLimit = 4096;
constexpr double kExtraRailsTimeoutS = 3;

}  // namespace

Result<std::unique_ptr<Comm>> Comm::create(const CommOptions& options) {
  const Config& c = options.config;
  if (c.rank < 0 || c.size < 1) {
    return fail(Code::config,
                strf("rank %d of %d: set PRUNEX_RANK and PRUNEX_WORLD_SIZE, start under torchrun, "
                     "mpirun or srun, or pass rank and size",
                     c.rank, c.size));
  }
  if (c.rank >= c.size) {
    return fail(Code::config, strf("rank %d is not below the world's size of %d", c.rank, c.size));
  }
  if (c.root.empty() && !options.store && c.size > 1) {
    return fail(
        Code::config,
        "nowhere to meet: set PRUNEX_ROOT=host:port (a free port of rank 0's machine), or pass "
        "a store");
  }
  set_log_rank(c.rank);
  if (auto isa = select_isa(c.isa); !isa) {
    return tl::unexpected(isa.error());
  }
  std::unique_ptr<Comm> comm(new Comm(options));
  if (auto built = comm->build(); !built) {
    return tl::unexpected(built.error());
  }
  return comm;
}

// Collective: everybody tells whether its part went well; one failure fails all with the same
// words.
Result<std::vector<std::string>> Comm::agree(const Result<>& mine, const std::string& record) {
  WireAppender w;
  w.put(static_cast<uint32_t>(mine ? 0 : 1));
  w.put(static_cast<uint32_t>(mine ? 0 : static_cast<uint32_t>(mine.error().code)));
  w.put_string(mine ? std::string_view{}
                    : std::string_view(mine.error().text).substr(0, kTextLimit));
  w.put_string(record);
  auto all = control_->all_gather(w.take(), options_.config.timeout_s);
  if (!all) {
    return mine ? tl::unexpected(all.error()) : tl::unexpected(mine.error());
  }
  std::vector<std::string> records;
  for (size_t r = 0; r < all->size(); ++r) {
    WireReader reader((*all)[r]);
    const auto failed = reader.get<uint32_t>();
    const auto code = reader.get<uint32_t>();
    const std::string text = reader.get_string(kTextLimit);
    records.push_back(reader.get_string(64 << 20));
    if (!reader.ok() || code > static_cast<uint32_t>(Code::internal)) {
      return fail(Code::internal, strf("rank %zu's record cannot be read", r));
    }
    if (failed != 0) {
      const bool own = static_cast<int>(r) == options_.config.rank;
      return fail(static_cast<Code>(code),
                  own ? text : strf("rank %zu failed: %s", r, text.c_str()), 0,
                  static_cast<int>(r));
    }
  }
  return records;
}

Result<> Comm::build() {
  const Config& config = options_.config;
  context_.rank = config.rank;
  context_.tuning = tuning_of(config);
  ControlOptions control;
  control.rank = config.rank;
  control.size = config.size;
  control.root = config.root;
  control.store = options_.store;
  control.store_prefix = "prunex/" + options_.name;
  control.socket_ifname = config.socket_ifname;
  control.family = config.family;
  control.port_range = config.port_range;
  control.timeout_s = config.timeout_s;
  auto opened = Control::open(control);
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  control_ = std::move(*opened);
  context_.control = control_.get();
  if (auto joined = join(); !joined) {
    return joined;
  }
  wake_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_) {
    return fail(Code::system, "eventfd failed: too many open files? see ulimit -n", errno);
  }
  thread_ = std::thread([this] { serve(); });
  if (context_.rank == 0) {  // it is the same on all
    PRUNEX_LOG(info, "%s", topology_text_.c_str());
  }
  return {};
}

Result<> Comm::join() {
  auto rdma = transport::find_rdma(options_.config);
  auto own = rdma ? own_facts(options_.config, *rdma)
                  : Result<topo::RankFacts>(tl::unexpected(rdma.error()));
  const Result<> mine = own ? Result<>() : Result<>(tl::unexpected(own.error()));
  auto records = agree(mine, own ? topo::encode(*own) : std::string());
  if (!records) {
    return tl::unexpected(records.error());
  }
  std::vector<topo::RankFacts> facts;
  for (size_t r = 0; r < records->size(); ++r) {
    auto one =
        topo::decode_facts(std::as_bytes(std::span((*records)[r].data(), (*records)[r].size())));
    if (!one) {
      return fail(Code::internal, strf("rank %zu's facts: %s", r, one.error().text.c_str()));
    }
    facts.push_back(std::move(*one));
  }
  rdma_ = *std::move(rdma);
  settle_nics(facts);
  topo::WorldOptions world_options;
  world_options.max_rails = options_.config.rails;
  // At most one more round for ranks that cannot share memory, and one without extra rails.
  for (int round = 0; round < 4; ++round) {
    auto world = topo::make_world(facts, world_options);
    if (!world) {
      return tl::unexpected(world.error());
    }
    context_.world = std::move(*world);
    std::vector<int> strangers;
    if (auto joined = join_node(facts, strangers); !joined) {
      return joined;
    }
    if (!strangers.empty()) {
      // Same identity, yet the memory cannot be reached (containers): each is a node of its own.
      for (const int r : strangers) {
        facts[static_cast<size_t>(r)].node_id += strf("#%d", r);
        if (context_.rank == 0) {
          PRUNEX_LOG(info,
                     "rank %d cannot map its node's shared memory: taken as a node of its own", r);
        }
      }
      continue;
    }
    bool rails_ok = true;
    if (auto connected = connect_leaders(facts, rails_ok); !connected) {
      return connected;
    }
    if (!rails_ok) {
      // Asked for, it is worth a warning; found by ourselves, it only means that not every network
      // goes everywhere.
      const LogLevel level = options_.config.rails > 1 ? LogLevel::warn : LogLevel::info;
      if (context_.rank == 0 && log_level() >= level) {
        log_message(level, __FILE__, __LINE__,
                    strf("not all of %d rails connect all nodes: going on with one; name the "
                         "interfaces that do with PRUNEX_SOCKET_IFNAME",
                         context_.world.rails));
      }
      world_options.max_rails = 1;
      continue;
    }
    if (auto opened = open_point_to_point(facts[static_cast<size_t>(context_.rank)]); !opened) {
      return opened;
    }
    topo::Picture picture{context_.world, facts, {}};
    topology_text_ = topo::render_text(picture);
    return {};
  }
  return fail(Code::internal, "the node layout does not settle");
}

// Creates or joins the node's memory; `strangers` are ranks that could not map it.
Result<> Comm::join_node(const std::vector<topo::RankFacts>& facts, std::vector<int>& strangers) {
  const topo::World& world = context_.world;
  const auto rank = static_cast<size_t>(context_.rank);
  context_.node = static_cast<size_t>(world.node_of[rank]);
  context_.local = static_cast<size_t>(world.local_of[rank]);
  const topo::Node& node = world.nodes[context_.node];
  context_.leader_locals.clear();
  for (const topo::Leader& l : node.leaders) {
    context_.leader_locals.push_back(
        static_cast<size_t>(world.local_of[static_cast<size_t>(l.rank)]));
  }
  const NodeShape shape = shape_of(world, context_.node, context_.tuning);
  Result<> mine;
  std::string name;
  if (context_.local == 0) {
    auto memory = NodeMemory::create(shape);
    if (memory) {
      context_.memory = std::move(*memory);
      name = context_.memory.name();
    } else {
      mine = tl::unexpected(memory.error());
    }
  }
  WireAppender w;
  w.put(choice_digest(world, context_.tuning));
  w.put_string(name);
  auto names = agree(mine, w.take());
  if (!names) {
    return tl::unexpected(names.error());
  }
  std::string node_name;
  for (size_t r = 0; r < names->size(); ++r) {
    WireReader reader((*names)[r]);
    const auto digest = reader.get<uint64_t>();
    const std::string one = reader.get_string(kTextLimit);
    if (digest != choice_digest(world, context_.tuning)) {
      return fail(Code::mismatch,
                  strf("rank %zu and rank %zu are configured differently (PRUNEX_CHUNK_BYTES, "
                       "PRUNEX_ALGORITHM or PRUNEX_RAILS, or another version of this library)",
                       rank, r),
                  0, static_cast<int>(r));
    }
    if (static_cast<int>(r) == node.ranks[0]) {
      node_name = one;
    }
  }
  bool stranger = false;
  if (context_.local != 0) {
    auto memory = NodeMemory::attach(node_name, shape);
    stranger = !memory;
    if (memory) {
      context_.memory = std::move(*memory);
    }
  }
  Result<> made;
  if (!stranger && context_.leads_any() && shape.local_size > 1) {
    made = context_.memory.make_fifo(context_.local);
  }
  auto attached = agree(made, stranger ? "stranger" : "");
  if (!attached) {
    context_.memory.unlink_names(context_.local);
    return tl::unexpected(attached.error());
  }
  for (size_t r = 0; r < attached->size(); ++r) {
    if ((*attached)[r] == "stranger") {
      strangers.push_back(static_cast<int>(r));
    }
  }
  Result<> open;
  if (strangers.empty() && shape.local_size > 1) {
    open = context_.memory.open_fifos(context_.leader_locals);
  }
  auto opened = agree(open, "");
  if (context_.memory) {
    context_.memory.unlink_names(context_.local);
  }
  if (!strangers.empty()) {
    context_.memory = NodeMemory();
  }
  (void)facts;
  return opened ? Result<>() : Result<>(tl::unexpected(opened.error()));
}

Result<> Comm::connect_leaders(const std::vector<topo::RankFacts>& facts, bool& rails_ok) {
  const topo::World& world = context_.world;
  const auto rails = static_cast<size_t>(world.rails);
  context_.links.clear();
  context_.links.resize(rails);
  context_.scratch.clear();
  context_.scratch.resize(rails);
  networks_.clear();
  networks_.resize(rails);
  listeners_.clear();
  listeners_.resize(rails);
  if (world.nodes.size() == 1) {
    return {};
  }
  const topo::Node& node = world.nodes[context_.node];
  const NetworkChoice choice = choose_network(world, facts);
  transport_ = choice.rdma ? "verbs" : "socket";
  if (context_.rank == 0) {
    PRUNEX_LOG(info, "%s", choice.why.c_str());
  }
  if (context_.leads_any()) {
    tell(rdma_);
  }
  Result<> mine;
  WireAppender handles;
  for (size_t rail = 0; rail < rails; ++rail) {
    std::string handle;
    if (mine && context_.leads(rail)) {
      transport::SocketOptions options;
      const int nic = node.leaders[rail].nic;
      const auto& nics = facts[static_cast<size_t>(context_.rank)].nics;
      if (auto range = parse_port_range(options_.config.port_range)) {
        options.ports = *range;
      }
      options.streams = options_.config.streams;
      options.pacing_rate = connection_rate(options_.config.pacing_bit_s, world.nodes.size());
      auto network = open_network(choice, options_.config, rdma_,
                                  nic < 0 ? nullptr : &nics[static_cast<size_t>(nic)], options);
      if (network) {
        networks_[rail] = std::move(*network);
        auto listener = networks_[rail]->listen();
        if (listener) {
          listeners_[rail] = std::move(*listener);
          handle = listeners_[rail]->handle();
        } else {
          mine = tl::unexpected(listener.error());
        }
      } else {
        mine = tl::unexpected(network.error());
      }
    }
    handles.put_string(handle);
  }
  auto all = agree(mine, handles.take());
  if (!all) {
    return tl::unexpected(all.error());
  }
  std::string problem;
  for (size_t rail = 0; rail < rails; ++rail) {
    if (!context_.leads(rail)) {
      continue;
    }
    std::vector<int> ranks;
    std::vector<std::string> addresses;
    for (const topo::Node& n : world.nodes) {
      const int leader = n.leaders[rail].rank;
      WireReader reader((*all)[static_cast<size_t>(leader)]);
      std::string handle;
      for (size_t i = 0; i <= rail; ++i) {
        handle = reader.get_string(kTextLimit);
      }
      ranks.push_back(leader);
      addresses.push_back(std::move(handle));
    }
    const double limit = rail == 0 ? options_.config.timeout_s
                                   : std::min(options_.config.timeout_s, kExtraRailsTimeoutS);
    auto links = LeaderLinks::connect(*networks_[rail], *listeners_[rail], context_.node, ranks,
                                      addresses, Deadline::after(limit));
    listeners_[rail].reset();
    if (links) {
      context_.links[rail] = std::move(*links);
      context_.scratch[rail] = transport::Staging(networks_[rail].get());
      context_.links[rail]->register_slots(*networks_[rail], context_.memory.exchanged());
    } else if (rail == 0) {
      mine = tl::unexpected(links.error());
    } else {
      problem = links.error().text;
    }
  }
  auto connected = agree(mine, problem);
  if (!connected) {
    return tl::unexpected(connected.error());
  }
  rails_ok = std::all_of(connected->begin(), connected->end(),
                         [](const std::string& p) { return p.empty(); });
  return {};
}

}  // namespace prunex::collective
