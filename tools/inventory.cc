// SPDX-License-Identifier: Apache-2.0
#include "tools/inventory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "kernels/pack.h"
#include "plugin/collective/comm_setup.h"
#include "plugin/device/architectures.h"
#include "plugin/device/cuda_library.h"
#include "plugin/device/nccl_library.h"
#include "plugin/device/release.h"
#include "plugin/nccl/abi/layout.h"
#include "plugin/transport/choose.h"
#include "plugin/transport/shm/segment.h"
#include "tools/text.h"
#include "topology/discover.h"

namespace prunex::tools {
namespace {

constexpr const char* kLibrary = "libprunex.so";
constexpr const char* kNcclPlugin = "libnccl-net-prunex.so";
constexpr size_t kSharedBytesPerRank = size_t{8} << 20;  // the most a rank takes
constexpr int kOldestTuner = 2, kNewestTuner = 6;

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::automatic:
      break;
  }
  return "auto";
}

TransportState shared_memory() {
  const Result<transport::shm::Segment> segment =
      transport::shm::Segment::create(kSharedBytesPerRank);
  return {"shm", segment.has_value(),
          segment ? "shared memory in /dev/shm, 8 MiB per rank" : segment.error().text};
}

TransportState sockets(Config config) {
  config.rank = 0;  // what any rank would publish
  const Result<topo::RankFacts> facts = collective::own_facts(config);
  if (!facts) {
    return {"socket", false, facts.error().text};
  }
  std::string networks;
  for (const topo::NicFacts& nic : facts->nics) {
    networks +=
        strf("%s%s (%s)", networks.empty() ? "" : ", ", nic.name.c_str(), nic.address.c_str());
  }
  TransportState state{"socket", !facts->nics.empty(), networks};
  for (const topo::NicFacts& nic : facts->nics) {
    state.devices.push_back(nic.name);
  }
  return state;
}

// "rxe0:1 (RoCE v2, GID 1 ::ffff:10.77.0.1, MTU 4096)"
std::string describe(const transport::RdmaPort& port, const IbConfig& ib) {
  const auto gid = transport::verbs::choose_gid(port.info, ib.gid_index);
  return port.info.name() +
         (gid ? strf(" (%s, GID %d %s, MTU %d)", transport::verbs::to_text(gid->type), gid->index,
                     transport::verbs::to_text(gid->bytes).c_str(), port.info.mtu)
              : std::string());
}

TransportState verbs(const Config& config) {
  const std::string dies = trial("libibverbs or one of its drivers",
                                 [&] { (void)transport::find_rdma(config).has_value(); });
  if (!dies.empty()) {
    return {"verbs", false, dies};
  }
  const Result<transport::Rdma> rdma = transport::find_rdma(config);
  if (!rdma) {
    return {"verbs", false, rdma.error().text};
  }
  if (!rdma->usable()) {
    return {"verbs", false,
            rdma->why_not.empty() ? "not asked for: PRUNEX_TRANSPORT=socket" : rdma->why_not};
  }
  TransportState state{"verbs", true, {}};
  for (const transport::RdmaPort& port : rdma->ports) {
    state.detail += (state.detail.empty() ? "" : ", ") + describe(port, config.ib);
    state.devices.push_back(transport::device_name(*rdma, port));
  }
  for (const auto* notes : {&rdma->warnings, &rdma->notes}) {
    for (const std::string& note : *notes) {
      state.detail += "; " + note;
    }
  }
  return state;
}

std::vector<GpuState> look_at_gpus(const cuda::Table& table, int devices) {
  std::vector<GpuState> out;
  for (int i = 0; i < devices; ++i) {
    cuda::DeviceFacts facts{};
    const int error = table.device_facts(i, &facts);
    const auto runs = device::check_architecture(table, i);
    out.push_back({i, error == 0 ? facts.name : "", facts.arch, runs ? "" : runs.error().text});
  }
  return out;
}

// Beside the library that a job would use, else where the dynamic linker looks.
GpuPart cuda_library(const std::string& library, std::vector<GpuState>& gpus) {
  GpuPart out;
  const std::string beside = library.substr(0, library.rfind('/') + 1) + "libprunex-cuda.so";
  if (!library.empty() && std::filesystem::exists(beside)) {
    out.path = beside;
  }
  const device::CudaFiles files{.driver = "libcuda.so.1", .library = out.path, .owner = library};
  out.detail = trial("libcuda or libprunex-cuda", [&] { (void)device::open_cuda(files); });
  if (!out.detail.empty()) {
    return out;
  }
  const Result<const cuda::Table*> table = device::open_cuda(files);
  if (!table) {
    out.detail = table.error().text;
    return out;
  }
  cuda::Probe probe;
  (void)(*table)->probe(&probe);
  out.usable = true;
  out.detail =
      strf("CUDA %d.%d, kernels for %s, %d GPU%s", probe.runtime / 1000, probe.runtime % 1000 / 10,
           device::covered_text(**table).c_str(), probe.devices, probe.devices == 1 ? "" : "s");
  if (!device::same_release(**table)) {
    out.detail += strf("; of release %s, this is %s: install both from one build",
                       device::release_of(**table), device::release());
  }
  gpus = look_at_gpus(**table, probe.devices);
  return out;
}

GpuPart nccl_library() {
  if (const std::string dies = trial("libnccl", [] { (void)device::open_nccl(); }); !dies.empty()) {
    return {false, "", dies};
  }
  const Result<device::NcclApi> api = device::open_nccl();
  if (!api) {
    return {false, "", api.error().text};
  }
  return {true, api->file, "version " + device::nccl_version_text(api->version)};
}

void look_at_kernels(const Config& config, Inventory& inventory) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
    if (isa_available(isa)) {
      inventory.isas.emplace_back(isa_name(isa));
    }
  }
  if (const Result<> selected = select_isa(config.isa); !selected) {
    inventory.problems.push_back(selected.error().text);
    return;
  }
  inventory.isa = isa_name(active_isa());
}

std::vector<std::string> nccl_tables() {
  std::vector<std::string> out;
  for (const char* const family : {"ncclNetPlugin", "ncclCollNetPlugin"}) {
    for (int version = nccl::abi::kOldest; version <= nccl::abi::kNewest; ++version) {
      out.push_back(strf("%s_v%d", family, version));
    }
  }
  for (int version = kOldestTuner; version <= kNewestTuner; ++version) {
    out.push_back(strf("ncclTunerPlugin_v%d", version));
  }
  return out;
}

// NCCL_NET_PLUGIN may be a list by comma: what of it means PruneX, or its first entry.
std::string wanted_plugin(const Environment& environment) {
  const std::string list = environment.lookup("NCCL_NET_PLUGIN").value_or("");
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin).find("prunex") != std::string::npos) {
      return list.substr(begin, end - begin);
    }
    begin = end + 1;
  }
  return list.substr(0, list.find(','));
}

// What is wrong with it, but for what the configuration's own fault is.
void look_at_nccl_plugin(const Environment& environment, bool configured, Inventory& inventory) {
  const std::vector<std::string> tables = nccl_tables();
  const std::string wanted = wanted_plugin(environment);
  const bool by_path = wanted.find('/') != std::string::npos;
  const bool ours = wanted.find("prunex") != std::string::npos;
  LibraryState& plugin = inventory.nccl_plugin;
  plugin = probe_nccl_plugin(tables, environment);
  if (plugin.path.empty()) {
    if (ours) {
      inventory.problems.push_back(strf("NCCL_NET_PLUGIN=%s, but %s is not found; tried %s",
                                        wanted.c_str(), kNcclPlugin,
                                        join(plugin.tried, ", ").c_str()));
    }
    return;
  }
  const std::string beside = beside_this_program(kNcclPlugin);
  if (!beside.empty() && beside != plugin.path) {
    inventory.nccl_note =
        strf("NCCL would load %s (%s), not %s beside this command", plugin.path.c_str(),
             by_path ? "NCCL_NET_PLUGIN" : "LD_LIBRARY_PATH", beside.c_str());
  }
  if (by_path && plugin.usable() && plugin.version == 0) {
    inventory.nccl_note =
        strf("NCCL would load %s (NCCL_NET_PLUGIN), which is not PruneX's", plugin.path.c_str());
    return;
  }
  for (const std::string& table : tables) {
    if (plugin.usable() &&
        std::find(plugin.symbols.begin(), plugin.symbols.end(), table) == plugin.symbols.end()) {
      plugin.problem = "it has no " + table + ": it is of another release";
    }
  }
  if (!plugin.usable() && configured) {
    inventory.problems.push_back((by_path ? "NCCL_NET_PLUGIN=" + wanted : plugin.path) + ": " +
                                 plugin.problem);
  }
}

}  // namespace

LibraryState probe_nccl_plugin(const std::vector<std::string>& symbols,
                               const Environment& environment) {
  const std::string wanted = wanted_plugin(environment);
  return wanted.find('/') != std::string::npos
             ? probe_file(wanted, symbols)
             : probe_library(kNcclPlugin, symbols, environment, SearchOrder::loader_first);
}

// The plugin would say it ten seconds into the job.
void look_at_metrics(const std::string& file, Inventory& inventory) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (file.empty() || folder.string().find("%p") != std::string::npos) {
    return;
  }
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const int error = is_folder ? EISDIR : ::access(folder.c_str(), W_OK | X_OK) != 0 ? errno : 0;
  if (error != 0) {
    inventory.warnings.push_back(strf("PRUNEX_METRICS_FILE=%s cannot be written: %s: %s",
                                      file.c_str(), (is_folder ? path : folder).c_str(),
                                      errno_text(error).c_str()));
  }
}

Inventory take_inventory(const Environment& environment) {
  Inventory inventory;
  Config config;
  Result<LoadedConfig> loaded = load_config(environment);
  if (loaded) {
    config = loaded->config;
    inventory.config = std::move(loaded->values);
    inventory.warnings = std::move(loaded->warnings);
    look_at_metrics(config.metrics_file, inventory);
  } else {
    inventory.problems.push_back(loaded.error().text);
  }
  inventory.library = probe_library(kLibrary, {}, environment, SearchOrder::own_first);
  if (!inventory.library.usable()) {
    const std::string& path = inventory.library.path;
    inventory.problems.push_back((path.empty() ? std::string(kLibrary) : path) + ": " +
                                 inventory.library.problem);
  }
  look_at_nccl_plugin(environment, loaded.has_value(), inventory);
  look_at_kernels(config, inventory);
  inventory.cuda = cuda_library(inventory.library.path, inventory.gpus);
  inventory.nccl = nccl_library();
  inventory.machine = topo::discover();
  inventory.transports = {shared_memory(), sockets(config), verbs(config)};
  for (const TransportState& t : inventory.transports) {
    if (!t.usable && (t.name != "verbs" || config.transport == Choice::verbs)) {
      // A plugin that cannot be used for the same reason has said it before.
      auto& problems = inventory.problems;
      problems.erase(std::remove_if(problems.begin(), problems.end(),
                                    [&](const std::string& p) {
                                      return p.find(t.detail) != std::string::npos;
                                    }),
                     problems.end());
      problems.push_back("transport " + t.name + ": " + t.detail);
    }
  }
  return inventory;
}

}  // namespace prunex::tools
