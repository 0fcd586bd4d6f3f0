// SPDX-License-Identifier: Apache-2.0
// `prunex topo`: this machine, or machines from hwloc's XML files, and who would lead there.
#include <nlohmann/json.hpp>

#include "plugin/base/config.h"
#include "plugin/collective/comm_setup.h"
#include "plugin/transport/choose.h"
#include "tools/cli.h"
#include "tools/output.h"
#include "topology/discover.h"
#include "topology/render.h"

namespace prunex::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Scene {  // one machine per node
  std::vector<topo::Machine> machines;
  std::vector<topo::RankFacts> facts;
  topo::World world;
};

Result<Scene> make_scene(const std::vector<std::string>& inputs, int nodes, int ranks_per_node,
                         const Config& config) {
  Scene scene;
  std::vector<topo::NicFacts> nics;
  uint32_t transports = topo::kTransportSocket | topo::kTransportShm;
  for (const std::string& input : inputs) {
    Result<topo::Machine> machine = topo::load_machine(input);
    if (!machine) {
      return tl::unexpected(machine.error());
    }
    scene.machines.push_back(std::move(*machine));
  }
  if (inputs.empty()) {
    scene.machines.push_back(topo::discover());
    // What a rank here would publish; without a usable network all devices are drawn.
    Config first = config;
    first.rank = 0;
    const transport::Rdma rdma = transport::find_rdma(config).value_or(transport::Rdma{});
    if (const Result<topo::RankFacts> facts = collective::own_facts(first, rdma); facts) {
      nics = facts->nics;
      transports |= facts->transports & topo::kTransportVerbs;
    }
  }
  // One description may stand for several equal nodes.
  while (static_cast<int>(scene.machines.size()) < nodes) {
    scene.machines.push_back(scene.machines.back());
  }
  for (size_t node = 0; node < scene.machines.size(); ++node) {
    for (topo::RankFacts& facts : topo::assumed_facts(scene.machines[node], ranks_per_node, nics)) {
      facts.rank = static_cast<int>(scene.facts.size());
      facts.node_id = strf("node%zu", node);
      facts.host = scene.machines[node].host;
      facts.transports = transports;
      scene.facts.push_back(std::move(facts));
    }
  }
  topo::WorldOptions options;
  options.max_rails = config.rails;
  Result<topo::World> world = topo::make_world(scene.facts, options);
  if (!world) {
    return tl::unexpected(world.error());
  }
  scene.world = std::move(*world);
  return scene;
}

Json number_or_null(int n, int least) { return n < least ? Json(nullptr) : Json(n); }

Json machine_json(const topo::Machine& machine) {
  Json j;
  j["source"] = machine.source;
  j["numa_nodes"] = Json::array();
  for (const topo::NumaNode& numa : machine.numas) {
    j["numa_nodes"].push_back({{"index", numa.os_index},
                               {"package", number_or_null(numa.package, 0)},
                               {"memory_bytes", numa.memory_bytes}});
  }
  j["gpus"] = Json::array();
  for (const topo::Gpu& gpu : machine.gpus) {
    j["gpus"].push_back({{"bus_id", gpu.bus_id},
                         {"uuid", gpu.uuid},
                         {"model", gpu.model},
                         {"numa", number_or_null(gpu.place.numa, 0)}});
  }
  j["nics"] = Json::array();
  for (const topo::Nic& nic : machine.nics) {
    j["nics"].push_back({{"name", nic.name()},
                         {"rdma", !nic.ibdev.empty()},
                         {"speed_mbps", number_or_null(nic.speed_mbps, 1)},
                         {"numa", number_or_null(nic.place.numa, 0)}});
  }
  j["notes"] = machine.notes;
  return j;
}

std::string scene_json(const Scene& scene) {
  Json j;
  j["schema"] = "prunex.topo";
  j["version"] = 1;
  j["world"] = scene.world.size;
  j["rails"] = scene.world.rails;
  j["nodes"] = Json::array();
  for (size_t n = 0; n < scene.world.nodes.size(); ++n) {
    const topo::Node& node = scene.world.nodes[n];
    Json leaders = Json::array();
    for (const topo::Leader& leader : node.leaders) {
      const topo::RankFacts& facts = scene.facts[static_cast<size_t>(leader.rank)];
      leaders.push_back(
          {{"rank", leader.rank},
           {"nic", leader.nic < 0 ? Json(nullptr)
                                  : Json(facts.nics[static_cast<size_t>(leader.nic)].name)},
           {"why", leader.why}});
    }
    j["nodes"].push_back({{"host", node.host},
                          {"ranks", node.ranks},
                          {"leaders", leaders},
                          {"machine", machine_json(scene.machines[n])}});
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int topo_command(int argc, char** argv) {
  const std::string who = "prunex topo";
  std::vector<std::string> inputs;
  std::string svg, json;
  int nodes = 0, ranks_per_node = 0;
  CLI::App app{
      "Nodes, NUMA nodes, GPUs and NICs, and which ranks would lead and why. Without --input it "
      "is\n"
      "this machine. Ranks are assumed: one per GPU, or one per NUMA node where there is no GPU.",
      who};
  app.add_option("--input", inputs, "a node as lstopo wrote it (lstopo --of xml F.xml); repeatable")
      ->allow_extra_args(false);
  app.add_option("--nodes", nodes, "so many nodes like the last one")->check(whole_number(1, 1024));
  app.add_option("--ranks-per-node", ranks_per_node, "instead of what is assumed")
      ->check(whole_number(1, 1024));
  add_path_option(app, "--svg", svg, "draw a picture into this file, - is stdout");
  add_path_option(app, "--json", json, "write a JSON document to this file, - is stdout");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (svg == "-" && json == "-") {
    std::fprintf(stderr, "%s: --svg and --json cannot both go to stdout\n", who.c_str());
    return kExitUsage;
  }
  const Result<LoadedConfig> loaded = load_config(process_environment());
  if (!loaded) {
    return report_error(who, loaded.error());
  }
  for (const std::string& path : {svg, json}) {
    if (const Result<> writable = path.empty() ? Result<>() : check_writable(path); !writable) {
      return report_error(who, writable.error());
    }
  }
  const Result<Scene> scene = make_scene(inputs, nodes, ranks_per_node, loaded->config);
  if (!scene) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), scene.error().text.c_str());
    return kExitFailed;
  }
  topo::Picture picture{scene->world, scene->facts, {}};
  for (const topo::Machine& machine : scene->machines) {
    picture.machines.push_back(&machine);
  }
  Result<> written;
  if (!svg.empty()) {
    written = write_document(svg, topo::render_svg(picture));
  }
  if (written && !json.empty()) {
    written = write_document(json, scene_json(*scene));
  }
  if (written && svg != "-" && json != "-") {
    written = write_document("-", topo::render_text(picture));
  }
  return written ? kExitOk : report_error(who, written.error());
}

}  // namespace prunex::tools
