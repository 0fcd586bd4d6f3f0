// SPDX-License-Identifier: Apache-2.0
// `prunex bench allreduce`: arguments, and starting or joining a world.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <optional>

#include "plugin/base/config.h"
#include "tools/bench.h"
#include "tools/cli.h"
#include "tools/launch.h"
#include "tools/models.h"
#include "tools/output.h"

namespace prunex::tools {
namespace {

constexpr const char* kWho = "prunex bench allreduce";
constexpr uint64_t kDefaultBytes = uint64_t{32} << 20;

struct Arguments {
  BenchSpec spec;
  WorldRequest world;
  std::optional<std::string> sizes, min_bytes, max_bytes, keeps, bucket, baseline;
  std::string type = "f32", op = "sum", contract = "lossless", scope = "world";
  uint64_t factor = 2;
  bool in_place = false, out_of_place = false;
  bool worker = false;  // started by this command: joins, whatever the world options say
};

void add_data_options(CLI::App& app, Arguments& a) {
  std::string models;
  for (const std::string_view name : model_names()) {
    models.append(models.empty() ? "" : ", ").append(name);
  }
  app.add_option("--model", a.spec.model, "parameter shapes of " + models);
  app.add_option("--size", a.sizes,
                 "bytes per rank, several by comma: 4096, 1k = 1K = 1024, M, G, T (32M)");
  app.add_option("-b,--min-bytes", a.min_bytes,
                 "first of a range of sizes; 0 is a call without data");
  app.add_option("-e,--max-bytes", a.max_bytes, "last of the range");
  app.add_option("-f,--factor", a.factor, "from one size to the next")
      ->check(whole_number(2, UINT32_MAX))
      ->capture_default_str();
  app.add_option("--keep", a.keeps,
                 "fraction of groups kept, several by comma; without it only dense is measured");
  app.add_option("--dtype", a.type, "f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64")
      ->capture_default_str();
  app.add_option("--op", a.op, "sum, avg, max, min, prod")->capture_default_str();
  app.add_option("--bucket-mb", a.bucket,
                 "cut a model into buckets of this many MiB as DDP does; 0: one buffer");
  app.add_option("--seed", a.spec.seed, "chooses the kept groups")
      ->check(whole_number(0, UINT64_MAX))
      ->capture_default_str();
}

void add_run_options(CLI::App& app, Arguments& a) {
  app.add_option("--iters", a.spec.iters, "measured iterations")
      ->check(whole_number(1, 100000000))
      ->capture_default_str();
  app.add_option("--warmup", a.spec.warmup,
                 strf("iterations before that, 0 too; ended after %g s", kWarmupCapSeconds))
      ->check(whole_number(0, 100000000))
      ->capture_default_str();
  app.add_flag("--check", a.spec.check, "check every element on every rank, before and after");
  app.add_option("--contract", a.contract, "what the masks promise")
      ->check(CLI::IsMember({"lossless", "project", "sampled"}))
      ->capture_default_str();
  app.add_option("--scope", a.scope, "whose data enter the result")
      ->check(CLI::IsMember({"world", "node", "leaders"}))
      ->capture_default_str();
  CLI::Option* const in_place =
      app.add_flag("--in-place", a.in_place, "send and receive buffer are the same (default)");
  app.add_flag("--out-of-place", a.out_of_place, "they are not")->excludes(in_place);
  app.add_option("--baseline", a.baseline, "tcp: measure a bare TCP stream between nodes first")
      ->check(CLI::IsMember({"tcp"}));
  add_path_option(app, "--json", a.spec.json, "write the document to this file, - is stdout");
  add_path_option(app, "--csv", a.spec.csv, "write rows to this file, - is stdout");
  app.add_flag("--progress", a.spec.progress, "say how far it is, even if stderr is no terminal");
  app.add_flag("--worker", a.worker)->group("");
}

Result<> interpret_sizes(Arguments& a) {
  const bool range = a.min_bytes || a.max_bytes;
  if (int{!a.spec.model.empty()} + int{a.sizes.has_value()} + int{range} > 1) {
    return fail(Code::invalid_argument, "give one of --model, --size and -b/-e");
  }
  if (!a.spec.model.empty()) {
    const Result<Model> model = make_model(a.spec.model);
    return model ? Result<>() : tl::unexpected(model.error());
  }
  Result<std::vector<uint64_t>> sizes = std::vector<uint64_t>{kDefaultBytes};
  if (a.sizes) {
    sizes = parse_sizes(*a.sizes);
  } else if (range) {
    const Result<uint64_t> first = parse_size(a.min_bytes ? *a.min_bytes : *a.max_bytes);
    const Result<uint64_t> last = parse_size(a.max_bytes ? *a.max_bytes : *a.min_bytes);
    if (!first || !last) {
      return tl::unexpected((first ? last : first).error());
    }
    sizes = size_range(*first, *last, a.factor, size_of(a.spec.type));
  }
  if (!sizes) {
    return tl::unexpected(sizes.error());
  }
  const size_t element = size_of(a.spec.type);
  for (const uint64_t size : *sizes) {
    if (size % element != 0) {
      return fail(Code::invalid_argument,
                  strf("size %llu is not a multiple of %zu, the bytes of one %s",
                       static_cast<unsigned long long>(size), element, name_of(a.spec.type)));
    }
  }
  a.spec.sizes = std::move(*sizes);
  return {};
}

Result<> interpret(Arguments& a) {
  const Result<DType> type = parse_dtype(a.type);
  const Result<Op> op = parse_op(a.op);
  if (!type || !op) {
    return tl::unexpected(type ? op.error() : type.error());
  }
  a.spec.type = *type;
  a.spec.op = *op;
  a.spec.contract = a.contract == "project"   ? PRUNEX_PROJECT
                    : a.contract == "sampled" ? PRUNEX_SAMPLED
                                              : PRUNEX_LOSSLESS;
  a.spec.scope = a.scope == "node"      ? PRUNEX_SCOPE_NODE
                 : a.scope == "leaders" ? PRUNEX_SCOPE_LEADERS
                                        : PRUNEX_SCOPE_WORLD;
  a.spec.in_place = !a.out_of_place;
  a.spec.baseline_tcp = a.baseline.has_value();
  if (a.keeps) {
    Result<std::vector<double>> keeps = parse_densities(*a.keeps);
    if (!keeps) {
      return tl::unexpected(keeps.error());
    }
    a.spec.keeps = std::move(*keeps);
  }
  if (a.bucket) {
    const Result<uint64_t> mib = parse_size(*a.bucket);
    if (!mib || *mib > (uint64_t{1} << 20)) {
      return fail(Code::invalid_argument,
                  "--bucket-mb " + *a.bucket + " is not a whole number of MiB up to 1048576");
    }
    a.spec.bucket_bytes = *mib << 20;
  }
  if (a.spec.json == "-" && a.spec.csv == "-") {
    return fail(Code::invalid_argument, "--json and --csv cannot both go to stdout");
  }
  return interpret_sizes(a);
}

Result<> check_fits(const BenchSpec& spec, uint64_t ranks_here) {
  if (spec.sizes.empty()) {
    return {};
  }
  const uint64_t most = *std::max_element(spec.sizes.begin(), spec.sizes.end());
  const uint64_t copies = spec.in_place ? 1 : 2;
  return check_memory(most > UINT64_MAX / copies ? UINT64_MAX : most * copies, ranks_here,
                      machine_memory());
}

// Without world options: two nodes with two ranks each, so that every stage has work.
WorldRequest world_or_default(const WorldRequest& request, const NodeContext& context) {
  if (request.says_anything()) {
    return request;
  }
  WorldRequest standard;
  standard.nodes = context.node >= 0 ? 0 : 2;
  standard.ranks_per_node = 2;
  return standard;
}

int start_world(const Arguments& a, int argc, char** argv) {
  const Result<NodeContext> context = node_context(process_environment());
  if (!context) {
    return report_error(kWho, context.error());
  }
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0 || length == sizeof self) {
    std::fprintf(stderr, "%s: cannot find this program by /proc/self/exe\n", kWho);
    return kExitFailed;
  }
  std::vector<std::string> command = {std::string(self, static_cast<size_t>(length)), "bench",
                                      "allreduce", "--worker"};
  command.insert(command.end(), argv + 1, argv + argc);
  const Result<Job> job =
      make_job(world_or_default(a.world, *context), *context, kWho, std::move(command));
  if (!job) {
    return report_error(kWho, job.error());
  }
  if (const Result<> fits = check_fits(a.spec, job->ranks_here().size()); !fits) {
    return report_error(kWho, fits.error());
  }
  // Rank 0 will say the same, but only after everybody has been started.
  for (const std::string& path : {a.spec.json, a.spec.csv}) {
    if (const Result<> writable = path.empty() ? Result<>() : check_writable(path); !writable) {
      return report_error(kWho, writable.error());
    }
  }
  return supervise(*job);
}

// Joins a world that torchrun, mpirun, srun or `prunex run` has started. World options then say how
// its ranks are spread over emulated nodes.
int join_world(const Arguments& a, const Config& config) {
  std::string node_id;
  if (!a.worker && a.world.says_anything()) {
    const Result<WorldShape> shape = make_world_shape(a.world);
    if (!shape) {
      return report_error(kWho, shape.error());
    }
    if (shape->size() != config.size || config.rank >= shape->size()) {
      std::fprintf(
          stderr,
          "%s: the environment says rank %d of %d, the options ask for %d ranks; unset the "
          "launcher's variables to start a world of its own\n",
          kWho, config.rank, config.size, shape->size());
      return kExitUsage;
    }
    if (shape->nodes > 1) {
      node_id = strf("node%d", shape->node_of[static_cast<size_t>(config.rank)]);
    }
  }
  if (const Result<> fits = check_fits(a.spec, 1); !fits) {
    return report_error(kWho, fits.error());
  }
  return run_bench_rank(a.spec, node_id);
}

}  // namespace

int bench_allreduce_command(int argc, char** argv) {
  Arguments a;
  CLI::App app{
      "Measures the hierarchical all-reduce, dense and compact in turn. Starts its own ranks on\n"
      "emulated nodes, or joins the world of torchrun, mpirun, srun or prunex run. Times are wall\n"
      "times, means over ranks; algbw = bytes / median time, busbw = algbw * 2(n-1)/n as "
      "nccl-tests.",
      kWho};
  add_world_options(app, a.world);
  add_data_options(app, a);
  add_run_options(app, a);
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (const Result<> understood = interpret(a); !understood) {
    return report_error(kWho, understood.error());
  }
  const Result<LoadedConfig> loaded = load_config(process_environment());
  if (!loaded) {
    return report_error(kWho, loaded.error());
  }
  const Config& config = loaded->config;
  if (config.rank >= 0 && config.size > 0) {
    return join_world(a, config);
  }
  return start_world(a, argc, argv);
}

}  // namespace prunex::tools
