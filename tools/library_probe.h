// SPDX-License-Identifier: Apache-2.0
// Finds a shared library as a job would, and tries it where it can do no harm.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plugin/base/config.h"

namespace prunex::tools {

struct LibraryState {
  std::string path;                  // empty: not found
  std::vector<std::string> tried;    // where it was looked for, in order
  std::string problem;               // why it cannot be loaded; empty: it can
  int version = 0;                   // prunex_version(), 0: it has none
  std::vector<std::string> symbols;  // of those asked for, the ones it has
  std::vector<std::string> devices;  // of an NCCL plugin, as its network names them
  [[nodiscard]] bool usable() const { return !path.empty() && problem.empty(); }
};

enum class SearchOrder {
  own_first,     // beside this program (build tree or installation), then LD_LIBRARY_PATH
  loader_first,  // the other way round, as dlopen goes
};

// In these folders, then where the loader looks. The library is loaded in a child process; one with
// NCCL's tables is also initialised there, which shows whether it and the library it needs belong
// together.
[[nodiscard]] LibraryState probe_library(const std::string& name,
                                         const std::vector<std::string>& symbols,
                                         const Environment& environment, SearchOrder order);
// This file and no other.
[[nodiscard]] LibraryState probe_file(const std::string& path,
                                      const std::vector<std::string>& symbols);
// Its path; empty: it is not there.
[[nodiscard]] std::string beside_this_program(const std::string& name);

// Does it in a child process, to be done here only if that went well: what opens libraries dies
// with a broken one, or hangs in a driver. `doing`: its subject in the answer; empty: all is well.
[[nodiscard]] std::string trial(const std::string& doing, const std::function<void()>& what);

}  // namespace prunex::tools
