// SPDX-License-Identifier: Apache-2.0
// From an environment to a Config: which variable counts, and what is said about the others.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "plugin/base/config_rows.h"
#include "plugin/base/edit_distance.h"

namespace prunex {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  // Slurm sets one half without meaning a task: SLURM_PROCID in a batch script, SLURM_NTASKS in
  // salloc's shell.
  bool half_is_none = false;
};
constexpr Launcher kLaunchers[] = {
    {"PRUNEX_RANK", "PRUNEX_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", true},
};

// Slips between a variable's name and one of ours. PRUNEX_QPS for PRUNEX_IB_QPS, its middle left
// out, is one slip.
size_t distance_to(std::string_view name, std::string_view known) {
  constexpr std::string_view kPrefix = "PRUNEX_";
  size_t best = edit_distance(name, known);
  const size_t last = known.rfind('_') + 1;
  if (name.starts_with(kPrefix) && last > kPrefix.size()) {
    best = std::min(best, 1 + edit_distance(name.substr(kPrefix.size()), known.substr(last)));
  }
  return best;
}

std::string shown(std::string_view value) {
  constexpr size_t kMost = 120;
  std::string out(value.substr(0, kMost));
  for (char& c : out) {
    c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;  // messages stay one line
  }
  return value.size() > kMost ? out + "..." : out;
}

// Gathers while the table is walked; every fault is kept, not only the first.
class Loader {
 public:
  explicit Loader(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] Result<LoadedConfig> load() {
    const Launcher* launcher = find_launcher();
    for (const ParsedRow& row : config_rows()) {
      const std::string_view name = row.doc.name;
      if (name == "PRUNEX_RANK" || name == "PRUNEX_WORLD_SIZE") {
        const bool is_rank = name == "PRUNEX_RANK";
        const char* variable = launcher == nullptr ? nullptr
                               : is_rank           ? launcher->rank
                                                   : launcher->size;
        take(row, variable, row.parse);
      } else if (get(row.doc.name) || row.doc.twin == nullptr) {
        take(row, row.doc.name, row.parse);
      } else {
        take(row, row.doc.twin, row.parse_twin != nullptr ? row.parse_twin : row.parse);
      }
    }
    check_pair(launcher);
    out_.speaks_for_node = speaks_for_node();
    find_unknown_names();
    if (!faults_.empty()) {
      return fail(Code::config, faults_);
    }
    return std::move(out_);
  }

 private:
  // An empty value is an unset one: `VAR= command` is how a shell unsets for one command.
  [[nodiscard]] std::optional<std::string> get(const char* name) const {
    auto value = environment_.lookup(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  void fault(std::string text) { faults_ += (faults_.empty() ? "" : "; ") + std::move(text); }

  void take(const ParsedRow& row, const char* variable, Parse parse) {
    const auto value = variable == nullptr ? std::nullopt : get(variable);
    if (!value) {
      out_.values.push_back({row.doc.name, row.doc.fallback, "default"});
      return;
    }
    if (parse(*value, out_.config) != kOk) {
      fault(strf("%s=%s is not allowed: expected %s", variable, shown(*value).c_str(),
                 row.doc.range));
      return;
    }
    out_.values.push_back({row.doc.name, *value, variable});
  }

  [[nodiscard]] const Launcher* find_launcher() {
    for (const Launcher& one : kLaunchers) {
      const bool rank = get(one.rank).has_value(), size = get(one.size).has_value();
      if (rank && size) {
        return &one;
      }
      if (rank != size && !one.half_is_none) {
        fault(strf("%s is set but %s is not: set both or neither", rank ? one.rank : one.size,
                   rank ? one.size : one.rank));
        return nullptr;
      }
    }
    return nullptr;
  }

  void check_pair(const Launcher* launcher) {
    const Config& c = out_.config;
    if (launcher != nullptr && c.rank >= 0 && c.size >= 0 && c.rank >= c.size) {
      fault(strf("%s=%d is not below %s=%d", launcher->rank, c.rank, launcher->size, c.size));
    }
  }

  // The first rank of the node; where only the rank is known, rank 0.
  [[nodiscard]] bool speaks_for_node() const {
    for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                             "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
      if (const auto local = get(name)) {
        return *local == "0";
      }
    }
    return out_.config.rank <= 0;
  }

  void find_unknown_names() {
    for (const std::string& name : environment_.names) {
      constexpr std::string_view kPrefix = "PRUNEX_";
      // Foreign names such as PRUNE_RATIO are the trainer's own business; one that is two slips
      // from a name of ours is not.
      constexpr size_t kSlips = 2;
      const bool ours = name.starts_with(kPrefix);
      size_t best = SIZE_MAX;
      const char* nearest = nullptr;
      for (const ParsedRow& row : config_rows()) {
        const size_t length = std::strlen(row.doc.name);
        if (!ours && std::max(length, name.size()) - std::min(length, name.size()) > kSlips) {
          continue;  // so many slips at least; jobs have hundreds of variables
        }
        const size_t distance = distance_to(name.substr(0, 64), row.doc.name);
        if (distance < best) {
          best = distance;
          nearest = row.doc.name;
        }
      }
      if (best == 0 || (!ours && best > kSlips) || !get(name.c_str())) {
        continue;
      }
      out_.warnings.push_back(
          ours ? strf("%s is set, but there is no such variable; the nearest is %s",
                      shown(name).c_str(), nearest)
               : strf("%s is set; did you mean %s?", shown(name).c_str(), nearest));
    }
  }

  const Environment& environment_;
  LoadedConfig out_;
  std::string faults_;
};

}  // namespace

Result<LoadedConfig> load_config(const Environment& environment) {
  return Loader(environment).load();
}

}  // namespace prunex
