// SPDX-License-Identifier: Apache-2.0
// What a job of several ranks is, and what each rank is told through its environment.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/fd.h"
#include "plugin/base/result.h"
#include "tools/options.h"

namespace prunex::tools {

// One starter per node (scripts/netlab.sh, a shell loop over hosts) says NODE_RANK, NNODES and
// PRUNEX_ROOT; this process then starts that node's ranks only.
struct NodeContext {
  int node = -1;  // -1: this process starts all ranks
  int nodes = 0;
  std::string root = {};     // host:port
  bool has_node_id = false;  // PRUNEX_NODE_ID is set
  bool has_master =
      false;  // MASTER_ADDR and MASTER_PORT are set: torch's, and the user's to choose
};
[[nodiscard]] Result<NodeContext> node_context(const Environment& environment);

struct Job {
  WorldShape shape;
  NodeContext context;
  std::string root;                         // where rank 0 listens
  Fd root_port;                             // keeps its port for rank 0; none in a node context
  std::string master_address, master_port;  // for torch; empty: as the user has set them
  double grace_s = 15;                      // between SIGTERM and SIGKILL
  std::string who;                          // begins this job's messages: "prunex run"
  std::vector<std::string> command;
  [[nodiscard]] std::vector<int> ranks_here() const;
};

// Fills in a world that may span nodes: in a node context the number of nodes comes from there when
// the request does not say it, and must agree when it does.
[[nodiscard]] Result<Job> make_job(WorldRequest request, const NodeContext& context,
                                   std::string who, std::vector<std::string> command);

// The variables of one rank, to be laid over this process's own.
struct Variable {
  std::string name, value;
};
[[nodiscard]] std::vector<Variable> rank_variables(const Job& job, int rank);

// Bytes, swap included; UINT64_MAX: unknown.
[[nodiscard]] uint64_t machine_memory();

// Starts this process's ranks, waits for them, and returns the exit code: 0, or that of the rank
// that failed first (128 + signal if it was killed). Nothing of the job is left when it returns.
[[nodiscard]] int supervise(const Job& job);

}  // namespace prunex::tools
