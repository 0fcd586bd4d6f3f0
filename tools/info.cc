// SPDX-License-Identifier: Apache-2.0
// `prunex info`: text, JSON, or the README's table of variables.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "prunex/prunex.h"
#include "tools/cli.h"
#include "tools/inventory.h"
#include "tools/output.h"
#include "tools/text.h"

namespace prunex::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string version_text(int version) {
  return strf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

// What a job would use, not all that the machine has.
std::string device_names(const Inventory& inventory) {
  std::vector<std::string> names;
  for (const topo::Gpu& gpu : inventory.machine.gpus) {
    names.push_back("GPU " + gpu.bus_id);
  }
  for (const TransportState& t : inventory.transports) {
    for (const std::string& device : t.usable ? t.devices : std::vector<std::string>()) {
      if (std::find(names.begin(), names.end(), device) == names.end()) {
        names.push_back(device);
      }
    }
  }
  return names.empty() ? "none" : join(names, ", ");
}

std::string usable_transports(const Inventory& inventory) {
  std::vector<std::string> names;
  for (const TransportState& t : inventory.transports) {
    if (t.usable) {
      names.push_back(t.name);
    }
  }
  return names.empty() ? "none" : join(names, " ");
}

// "Net v6-v12, CollNet v6-v12, Tuner v2-v6" of names such as ncclNetPlugin_v6, which are sorted by
// family and version and have no gaps.
std::string versions(const std::vector<std::string>& symbols) {
  struct Family {
    const char *prefix, *name;
  };
  constexpr Family kFamilies[] = {
      {"ncclNetPlugin_", "Net"}, {"ncclCollNetPlugin_", "CollNet"}, {"ncclTunerPlugin_", "Tuner"}};
  std::vector<std::string> parts;
  for (const Family& family : kFamilies) {
    std::string first, last;
    for (const std::string& symbol : symbols) {
      if (symbol.starts_with(family.prefix)) {
        last = symbol.substr(std::string_view(family.prefix).size());
        first = first.empty() ? last : first;
      }
    }
    if (!first.empty()) {
      parts.push_back(strf("%s %s-%s", family.name, first.c_str(), last.c_str()));
    }
  }
  return parts.empty() ? "no known table" : join(parts, ", ");
}

// The one line that answers "does it work here?".
std::string summary(const Inventory& inventory) {
  if (!inventory.problems.empty()) {
    return "not ready: " + join(inventory.problems, "; ");
  }
  const LibraryState& plugin = inventory.nccl_plugin;
  const std::string nccl = plugin.usable() ? strf("NCCL plugin at %s%s, %s, ", plugin.path.c_str(),
                                                  plugin.version == 0 ? " (not PruneX's)" : "",
                                                  versions(plugin.symbols).c_str())
                                           : "no NCCL plugin (scripts/build.sh builds it), ";
  return strf("ready: libprunex %s at %s, %stransports %s, devices %s",
              version_text(inventory.library.version).c_str(), inventory.library.path.c_str(),
              nccl.c_str(), usable_transports(inventory).c_str(), device_names(inventory).c_str());
}

std::string library_text(const LibraryState& state, const char* name) {
  if (state.path.empty()) {
    return strf("%s not found; tried %s", name, join(state.tried, ", ").c_str());
  }
  std::string text = state.path;
  if (state.version != 0) {
    text += ", version " + version_text(state.version);
  }
  if (!state.symbols.empty()) {
    text += ", " + versions(state.symbols);
  }
  if (!state.devices.empty()) {
    text += ", devices " + join(state.devices, " ");
  }
  return state.problem.empty() ? text : text + ": " + state.problem;
}

std::string speed_text(int mbps) {
  return mbps <= 0 ? "speed unknown" : strf("%g Gb/s", mbps / 1000.0);
}

std::string gpu_part_text(const char* name, const GpuPart& part) {
  return strf("%-12s %-7s %s%s%s\n", name, part.usable ? "yes" : "no", part.path.c_str(),
              part.path.empty() ? "" : ": ", part.detail.c_str());
}

// A reason that the first line gives is not given again; a plugin may have put words before it.
std::string once(const std::string& detail, const Inventory& inventory) {
  for (const std::string& problem : inventory.problems) {
    const std::string reason = problem.substr(std::min(problem.find(": ") + 2, problem.size()));
    if (!detail.empty() && (problem.find(detail) != std::string::npos ||
                            (!reason.empty() && detail.find(reason) != std::string::npos))) {
      return "see the first line";
    }
  }
  return detail;
}

std::string info_text(const Inventory& inventory) {
  std::string text = summary(inventory) + "\n\n";
  LibraryState library = inventory.library, plugin = inventory.nccl_plugin;
  library.problem = once(library.problem, inventory);
  plugin.problem = once(plugin.problem, inventory);
  text += "library      " + library_text(library, "libprunex.so") + "\n";
  text += "NCCL plugin  " + library_text(plugin, "libnccl-net-prunex.so") + "\n";
  if (!inventory.nccl_note.empty()) {
    text += "             " + inventory.nccl_note + "\n";
  }
  text += strf("kernels      %s (this CPU has %s)\n", inventory.isa.c_str(),
               join(inventory.isas, ", ").c_str());
  for (const TransportState& t : inventory.transports) {
    text += strf("%-12s %-7s %s: %s\n", &t == inventory.transports.data() ? "transports" : "",
                 t.name.c_str(), t.usable ? "yes" : "no", once(t.detail, inventory).c_str());
  }
  text += gpu_part_text("CUDA", inventory.cuda);
  for (const GpuState& gpu : inventory.gpus) {
    text += strf("             GPU %d %s, sm_%d: %s\n", gpu.number, gpu.name.c_str(), gpu.arch,
                 gpu.problem.empty() ? "yes" : ("no: " + gpu.problem).c_str());
  }
  text += gpu_part_text("NCCL", inventory.nccl);
  text += strf("machine      %s, NUMA nodes: %zu (%s)\n", inventory.machine.host.c_str(),
               inventory.machine.numas.size(), inventory.machine.source.c_str());
  for (const topo::Gpu& gpu : inventory.machine.gpus) {
    text += strf("             GPU %s %s, NUMA node %d\n", gpu.bus_id.c_str(), gpu.model.c_str(),
                 gpu.place.numa);
  }
  for (const topo::Nic& nic : inventory.machine.nics) {
    text += strf("             NIC %s%s, %s, NUMA node %d\n", nic.name().c_str(),
                 nic.ibdev.empty() ? "" : " (RDMA)", speed_text(nic.speed_mbps).c_str(),
                 nic.place.numa);
  }
  for (const std::string& note : inventory.machine.notes) {
    text += "             " + note + "\n";
  }
  text += "\nconfiguration\n";
  for (const ConfigValue& value : inventory.config) {
    text += strf("  %-22s %-16s %s\n", value.name.c_str(),
                 value.value.empty() ? "(none)" : value.value.c_str(), value.source.c_str());
  }
  for (const std::string& warning : inventory.warnings) {
    text += "  warning: " + warning + "\n";
  }
  return text;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json library_json(const LibraryState& state) {
  Json j;
  j["path"] = text_or_null(state.path);
  j["usable"] = state.usable();
  j["version"] = state.version == 0 ? Json(nullptr) : Json(version_text(state.version));
  j["symbols"] = state.symbols;
  j["devices"] = state.devices;
  j["problem"] = text_or_null(state.problem);
  j["tried"] = state.tried;
  return j;
}

Json machine_json(const topo::Machine& machine) {
  const auto known = [](int n) { return n < 0 ? Json(nullptr) : Json(n); };
  Json j;
  j["host"] = machine.host;
  j["source"] = machine.source;
  j["numa_nodes"] = machine.numas.size();
  j["gpus"] = Json::array();
  for (const topo::Gpu& gpu : machine.gpus) {
    j["gpus"].push_back({{"bus_id", gpu.bus_id},
                         {"model", text_or_null(gpu.model)},
                         {"numa", known(gpu.place.numa)}});
  }
  j["nics"] = Json::array();
  for (const topo::Nic& nic : machine.nics) {
    j["nics"].push_back({{"name", nic.name()},
                         {"rdma_device", text_or_null(nic.ibdev)},
                         {"speed_mbps", nic.speed_mbps > 0 ? Json(nic.speed_mbps) : Json(nullptr)},
                         {"numa", known(nic.place.numa)}});
  }
  j["notes"] = machine.notes;
  return j;
}

Json gpu_part_json(const GpuPart& part) {
  return {{"usable", part.usable}, {"path", text_or_null(part.path)}, {"detail", part.detail}};
}

std::string info_json(const Inventory& inventory) {
  Json j;
  j["schema"] = "prunex.info";
  j["version"] = 1;
  j["prunex_version"] = version_text(prunex_version());
  j["ready"] = inventory.problems.empty();
  j["summary"] = summary(inventory);
  j["library"] = library_json(inventory.library);
  j["nccl_plugin"] = library_json(inventory.nccl_plugin);
  j["nccl_plugin"]["note"] = text_or_null(inventory.nccl_note);
  j["kernels"] = {{"isa", text_or_null(inventory.isa)}, {"available", inventory.isas}};
  j["transports"] = Json::array();
  for (const TransportState& t : inventory.transports) {
    j["transports"].push_back(
        {{"name", t.name}, {"usable", t.usable}, {"detail", t.detail}, {"devices", t.devices}});
  }
  j["cuda"] = gpu_part_json(inventory.cuda);
  j["cuda"]["gpus"] = Json::array();
  for (const GpuState& gpu : inventory.gpus) {
    j["cuda"]["gpus"].push_back({{"number", gpu.number},
                                 {"name", text_or_null(gpu.name)},
                                 {"arch", gpu.arch},
                                 {"usable", gpu.problem.empty()},
                                 {"problem", text_or_null(gpu.problem)}});
  }
  j["nccl"] = gpu_part_json(inventory.nccl);
  j["machine"] = machine_json(inventory.machine);
  j["config"] = Json::array();
  for (const ConfigValue& value : inventory.config) {
    j["config"].push_back(
        {{"name", value.name}, {"value", text_or_null(value.value)}, {"source", value.source}});
  }
  j["warnings"] = inventory.warnings;
  j["problems"] = inventory.problems;
  // Names from the environment and the file system need not be UTF-8.
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A cell of a Markdown table.
std::string cell(const char* text) {
  std::string out;
  for (const char* c = text == nullptr ? "" : text; *c != '\0'; ++c) {
    out += *c == '|' ? std::string("\\|") : std::string(1, *c);
  }
  return out;
}

std::string info_markdown() {
  std::string text =
      "| variable | meaning | values | default | NCCL's variable when unset |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const ConfigRow& row : config_table()) {
    const std::string twin = row.twin == nullptr ? "" : strf("`%s`", row.twin);
    const std::string fallback = row.fallback[0] == '\0' ? "" : "`" + cell(row.fallback) + "`";
    text += strf("| `%s` | %s | %s | %s | %s |\n", row.name, cell(row.meaning).c_str(),
                 cell(row.range).c_str(), fallback.c_str(), twin.c_str());
  }
  return text;
}

}  // namespace

int info_command(int argc, char** argv) {
  const std::string who = "prunex info";
  std::string json;
  bool markdown = false;
  CLI::App app{
      "What this machine and its configuration offer a job: library, transports, devices, "
      "variables.\n"
      "Exit code 1 if a job could not run here.",
      who};
  add_path_option(app, "--json", json, "write a JSON document to this file, - is stdout");
  app.add_flag("--markdown", markdown, "only the table of variables, as the README has it");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const std::string path = json.empty() ? "-" : json;
  if (const Result<> writable = check_writable(path); !writable) {
    return report_error(who, writable.error());
  }
  if (markdown) {
    const Result<> written = write_document(path, info_markdown());
    return written ? kExitOk : report_error(who, written.error());
  }
  const Inventory inventory = take_inventory(process_environment());
  const Result<> written =
      write_document(path, json.empty() ? info_text(inventory) : info_json(inventory));
  if (!written) {
    return report_error(who, written.error());
  }
  return inventory.problems.empty() ? kExitOk : kExitFailed;
}

}  // namespace prunex::tools
