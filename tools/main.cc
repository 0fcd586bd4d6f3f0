// SPDX-License-Identifier: Apache-2.0
// `prunex COMMAND …`
#include <cstdio>
#include <cstring>
#include <span>

#include "prunex/prunex.h"
#include "tools/commands.h"

namespace prunex::tools {
namespace {

struct Command {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* what;
};

constexpr Command kCommands[] = {
    {"info", info_command, "what this machine and configuration offer a job"},
    {"topo", topo_command, "nodes, devices and who leads, as text or picture"},
    {"run", run_command, "start ranks on this machine, on emulated nodes if wanted"},
    {"bench", bench_command, "measure: allreduce, p2p, pack"},
};

constexpr Command kBenches[] = {
    {"allreduce", bench_allreduce_command, "the hierarchical all-reduce, dense and compact"},
    {"p2p", bench_p2p_command, "bandwidth and latency between two processes over the NCCL plugin"},
    {"pack", bench_pack_command, "the host kernels that compact and expand"},
};

void print_usage(std::FILE* to, const char* prefix, std::span<const Command> commands) {
  std::fprintf(to, "usage: %s COMMAND [OPTIONS]   (COMMAND --help says more)\n\n", prefix);
  for (const Command& c : commands) {
    std::fprintf(to, "  %-10s %s\n", c.name, c.what);
  }
}

int dispatch(const char* prefix, std::span<const Command> commands, int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr, prefix, commands);
    return kExitUsage;
  }
  const char* const name = argv[1];
  if (std::strcmp(name, "--help") == 0 || std::strcmp(name, "-h") == 0 ||
      std::strcmp(name, "help") == 0) {
    print_usage(stdout, prefix, commands);
    return kExitOk;
  }
  for (const Command& c : commands) {
    if (std::strcmp(name, c.name) == 0) {
      return c.run(argc - 1, argv + 1);
    }
  }
  std::fprintf(stderr, "%s: unknown command '%s'\n\n", prefix, name);
  print_usage(stderr, prefix, commands);
  return kExitUsage;
}

}  // namespace

int bench_command(int argc, char** argv) { return dispatch("prunex bench", kBenches, argc, argv); }

int main_command(int argc, char** argv) {
  if (argc == 2 && (std::strcmp(argv[1], "--version") == 0 || std::strcmp(argv[1], "-V") == 0)) {
    const int version = prunex_version();
    std::printf("prunex %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    return kExitOk;
  }
  return dispatch("prunex", kCommands, argc, argv);
}

}  // namespace prunex::tools

int main(int argc, char** argv) { return prunex::tools::main_command(argc, argv); }
