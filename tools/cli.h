// SPDX-License-Identifier: Apache-2.0
// CLI11 with this project's manners. Included by one file per command only: it compiles slowly.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>

#include "plugin/base/result.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace prunex::tools {

// The exit code if the command ends here: help on stdout is 0, a fault on stderr is 2.
[[nodiscard]] inline std::optional<int> parse_arguments(CLI::App& app, int argc,
                                                        const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (%s --help says more)\n", app.get_name().c_str(), error.what(),
                 app.get_name().c_str());
    return kExitUsage;
  }
  return std::nullopt;
}

// Prints the error as `who` and gives the exit code of its kind.
inline int report_error(const std::string& who, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", who.c_str(), error.text.c_str());
  return error.code == Code::invalid_argument || error.code == Code::config ? kExitUsage
                                                                            : kExitFailed;
}

// An empty path is a shell variable that was not set, never "no file".
inline CLI::Option* add_path_option(CLI::App& app, const std::string& name, std::string& path,
                                    const std::string& description) {
  return app.add_option(name, path, description)->check([](const std::string& given) {
    return given.empty() ? std::string("the path is empty") : std::string();
  });
}

// The options that say which rank is on which node.
inline void add_world_options(CLI::App& app, WorldRequest& request) {
  app.add_option("-n,--ranks", request.ranks, "ranks in all")->check(CLI::PositiveNumber);
  app.add_option("--nodes", request.nodes, "nodes; on one machine they are emulated")
      ->check(CLI::PositiveNumber);
  app.add_option("--ranks-per-node", request.ranks_per_node, "ranks on each node")
      ->check(CLI::PositiveNumber);
  app.add_option("--layout", request.layout, "ranks of each node, such as 1,2,3");
  app.add_option("--order", request.order, "the node of each rank by letter, such as ABCABC");
}

}  // namespace prunex::tools
