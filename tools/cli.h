// SPDX-License-Identifier: Apache-2.0
// CLI11 with this project's manners. Included by one file per command only: it compiles slowly.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/base/result.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace prunex::tools {

// The exit code if the command ends here: help on stdout is 0, a fault on stderr is 2.
[[nodiscard]] inline std::optional<int> parse_arguments(CLI::App& app, int argc,
                                                        const char* const* argv) {
  const char* const who = app.get_name().c_str();
  // CLI11 would take the next word for the value of "--size=".
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.size() > 3 && word.starts_with("--") && word.find('=') == word.size() - 1 &&
        app.get_option_no_throw(std::string(word.substr(0, word.size() - 1))) != nullptr) {
      std::fprintf(stderr, "%s: %s has no value (%s --help says more)\n", who, argv[i], who);
      return kExitUsage;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ArgumentMismatch& error) {  // its text ends in the option's type
    const std::string text = error.what();
    std::fprintf(stderr, "%s: %s has no value, or too many (%s --help says more)\n", who,
                 text.substr(0, text.find(':')).c_str(), who);
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (%s --help says more)\n", who, error.what(), who);
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

// What a number may be. CLI11's own checks print the limits of the type, in 300 digits.
inline CLI::Validator whole_number(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& given) {
        const Result<uint64_t> value = parse_whole(given, least, most);
        return value ? std::string() : value.error().text;
      },
      most == UINT64_MAX ? "" : whole_range(least, most));
}
inline CLI::Validator fraction_number(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& given) {
        const Result<double> value = parse_real(given, least, most);
        return value ? std::string() : value.error().text;
      },
      strf("%g to %g", least, most));
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
  app.add_option("-n,--ranks", request.ranks, "ranks in all")->check(whole_number(1, kMaxRanks));
  app.add_option("--nodes", request.nodes, "nodes; on one machine they are emulated")
      ->check(whole_number(1, kMaxRanks));
  app.add_option("--ranks-per-node", request.ranks_per_node, "ranks on each node")
      ->check(whole_number(1, kMaxRanks));
  app.add_option("--layout", request.layout, "ranks of each node, such as 1,2,3");
  app.add_option("--order", request.order, "the node of each rank by letter, such as ABCABC");
}

}  // namespace prunex::tools
