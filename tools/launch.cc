// SPDX-License-Identifier: Apache-2.0
#include "tools/launch.h"

#include <sys/socket.h>
#include <sys/sysinfo.h>

#include <cerrno>
#include <charconv>

#include "plugin/base/address.h"
#include "plugin/base/sockets.h"
#include "plugin/base/text.h"

namespace prunex::tools {
namespace {

Result<int> parse_node_number(std::string_view name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > kMaxRanks) {
    return fail(Code::config,
                strf("%s=%s is not a whole number from 0 to %d", std::string(name).c_str(),
                     std::string(text).c_str(), kMaxRanks));
  }
  return value;
}

struct Port {
  Fd held;
  uint16_t number = 0;
};

// A loopback port nobody uses. As long as it is held (bound, not listening) the kernel gives it to
// nobody else; who binds it by number with SO_REUSEADDR, as rank 0 does, still can.
Result<Port> reserve_port() {
  Result<SocketAddress> loopback = parse_host("127.0.0.1", 0);
  if (!loopback) {
    return tl::unexpected(loopback.error());
  }
  Port port{Fd(::socket(loopback->family(), SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  const int on = 1;
  if (!port.held || ::setsockopt(port.held.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(port.held.get(), loopback->data(), loopback->length) != 0) {
    return fail(Code::system, "no free port on 127.0.0.1: " + errno_text(errno), errno);
  }
  port.number = local_address(port.held.get()).port();
  return port;
}

// torch listens beside PRUNEX_ROOT: every node must know the port without asking.
Result<> set_master_beside_root(Job& job) {
  const Result<HostPort> root = parse_host_port(job.root);
  if (!root || root->port == 65535) {
    return fail(Code::config,
                "PRUNEX_ROOT=" + job.root + " is not host:port with a port below 65535");
  }
  job.master_address = root->host;
  job.master_port = std::to_string(root->port + 1);
  return {};
}

}  // namespace

Result<NodeContext> node_context(const Environment& environment) {
  const auto node = environment.lookup("NODE_RANK");
  const auto nodes = environment.lookup("NNODES");
  const auto root = environment.lookup("PRUNEX_ROOT");
  NodeContext context;
  context.has_node_id = environment.lookup("PRUNEX_NODE_ID").has_value();
  context.has_master = environment.lookup("MASTER_ADDR") && environment.lookup("MASTER_PORT");
  if (!node || !nodes) {
    return context;
  }
  const Result<int> node_number = parse_node_number("NODE_RANK", *node);
  const Result<int> nodes_number = parse_node_number("NNODES", *nodes);
  if (!node_number || !nodes_number) {
    return tl::unexpected((node_number ? nodes_number : node_number).error());
  }
  if (*node_number >= *nodes_number) {
    return fail(Code::config,
                strf("NODE_RANK=%d must be below NNODES=%d", *node_number, *nodes_number));
  }
  if (*nodes_number > 1 && (!root || root->empty())) {
    return fail(Code::config,
                strf("NODE_RANK and NNODES=%d are set, PRUNEX_ROOT is not: set it to host:port of "
                     "node 0 on every node",
                     *nodes_number));
  }
  context.node = *node_number;
  context.nodes = *nodes_number;
  context.root = root.value_or("");
  return context;
}

Result<Job> make_job(WorldRequest request, const NodeContext& context, std::string who,
                     std::vector<std::string> command) {
  if (context.node >= 0 && request.nodes == 0 && request.layout.empty() && request.order.empty()) {
    request.nodes = context.nodes;
  }
  Result<WorldShape> shape = make_world_shape(request);
  if (!shape) {
    return tl::unexpected(shape.error());
  }
  if (context.node >= 0 && shape->nodes != context.nodes) {
    return fail(Code::invalid_argument,
                strf("the job has %s, NNODES says %d",
                     counted(static_cast<uint64_t>(shape->nodes), "node").c_str(), context.nodes));
  }
  Job job;
  job.shape = std::move(*shape);
  job.context = context;
  job.who = std::move(who);
  job.command = std::move(command);
  if (context.node >= 0 && !context.root.empty()) {
    job.root = context.root;
    if (const Result<> set = set_master_beside_root(job); !set) {
      return tl::unexpected(set.error());
    }
    return job;
  }
  Result<Port> port = reserve_port();
  const Result<Port> master_port = reserve_port();  // not held on: torch may not share
  if (!port || !master_port) {
    return tl::unexpected((port ? master_port : port).error());
  }
  job.root = strf("127.0.0.1:%d", port->number);
  job.root_port = std::move(port->held);
  job.master_address = "127.0.0.1";
  job.master_port = std::to_string(master_port->number);
  return job;
}

uint64_t machine_memory() {
  struct sysinfo machine {};
  return ::sysinfo(&machine) == 0
             ? (uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit
             : UINT64_MAX;
}

std::vector<int> Job::ranks_here() const {
  if (context.node >= 0) {
    return shape.ranks_of(context.node);
  }
  std::vector<int> all(shape.node_of.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<int>(i);
  }
  return all;
}

std::vector<Variable> rank_variables(const Job& job, int rank) {
  const WorldShape& shape = job.shape;
  const int node = shape.node_of[static_cast<size_t>(rank)];
  const std::string size = std::to_string(shape.size());
  std::vector<Variable> variables = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", std::to_string(shape.local_rank(rank))},
      {"LOCAL_WORLD_SIZE", std::to_string(shape.local_size(rank))},
      {"GROUP_RANK", std::to_string(node)},
      {"GROUP_WORLD_SIZE", std::to_string(shape.nodes)},
      {"PRUNEX_RANK", std::to_string(rank)},
      {"PRUNEX_WORLD_SIZE", size},
      {"PRUNEX_ROOT", job.root},
  };
  if (!job.context.has_master) {
    variables.push_back({"MASTER_ADDR", job.master_address});
    variables.push_back({"MASTER_PORT", job.master_port});
  }
  // One node is what the machine itself says; several need names, and a starter's own come first.
  if (shape.nodes > 1 && (job.context.node < 0 || !job.context.has_node_id)) {
    variables.push_back({"PRUNEX_NODE_ID", strf("node%d", node)});
  }
  return variables;
}

}  // namespace prunex::tools
