// SPDX-License-Identifier: Apache-2.0
// `prunex run`: start local ranks, on emulated nodes if wanted.
#include <cstring>

#include "plugin/base/config.h"
#include "tools/cli.h"
#include "tools/launch.h"

namespace prunex::tools {

int run_command(int argc, char** argv) {
  const std::string who = "prunex run";
  WorldRequest request;
  double grace_s = 15;
  CLI::App app{
      "prunex run [OPTIONS] -- COMMAND [ARGUMENTS]\n\n"
      "Starts ranks on this machine: RANK, WORLD_SIZE, LOCAL_RANK and torchrun's other variables "
      "are\n"
      "set, and PRUNEX_RANK, PRUNEX_WORLD_SIZE, PRUNEX_ROOT, PRUNEX_NODE_ID. Output is left as it "
      "is.\n"
      "When a rank fails the others are asked to end, then killed; the exit code is that of the "
      "first\n"
      "to fail. Started once per node with NODE_RANK, NNODES and PRUNEX_ROOT set, as "
      "scripts/netlab.sh\n"
      "does, it starts that node's ranks only.",
      who};
  add_world_options(app, request);
  app.add_option("--grace", grace_s, "seconds between asking a rank to end and killing it")
      ->check(fraction_number(0, 1e6))
      ->capture_default_str();
  app.prefix_command();

  // Everything behind the first "--" is the command's, whatever it looks like.
  int own = argc;
  for (int i = 1; i < argc && own == argc; ++i) {
    own = std::strcmp(argv[i], "--") == 0 ? i : argc;
  }
  if (const auto code = parse_arguments(app, own, argv)) {
    return *code;
  }
  std::vector<std::string> command = app.remaining();
  command.insert(command.end(), argv + std::min(own + 1, argc), argv + argc);
  if (command.empty()) {
    std::fprintf(stderr, "%s: no command given; usage: prunex run -n 4 -- COMMAND\n", who.c_str());
    return kExitUsage;
  }
  if (command[0].starts_with('-')) {
    std::fprintf(stderr, "%s: unknown option %s (%s --help says more)\n", who.c_str(),
                 command[0].c_str(), who.c_str());
    return kExitUsage;
  }
  const Result<NodeContext> context = node_context(process_environment());
  if (!context) {
    return report_error(who, context.error());
  }
  if (!request.says_anything() && context->node < 0) {
    std::fprintf(stderr, "%s: say how many ranks: -n 4, or --nodes 2 --ranks-per-node 2\n",
                 who.c_str());
    return kExitUsage;
  }
  Result<Job> job = make_job(request, *context, who, std::move(command));
  if (!job) {
    return report_error(who, job.error());
  }
  job->grace_s = grace_s;
  return supervise(*job);
}

}  // namespace prunex::tools
