// SPDX-License-Identifier: Apache-2.0
// Pack, pack with audit and unpack on a GPU beside a device copy that moves as many bytes: the
// 32-byte sectors that must be read plus the bytes that must be written. And how long a model's
// plans take from keep vectors in host memory, their copy included.
//
//   cuda_pack_bench [--quick] [--only TEXT] [--strict] [--json FILE]
//
// Results are compared with the host's kernels first. Each step then goes through so many buffers
// in turn that a round touches four times the L2, and so does the copy, in turn with it; a figure
// is the median of rounds after warm-up, a launch's share of its round.
// --only: subjects whose name holds TEXT. --strict: exit status 1 for a missed goal.
// TEST_CUDA_LIBRARY: path of libprunex-cuda.so. Exit status 1 for an error of CUDA or a wrong
// result, 77 without a GPU.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/cuda_pack_device.cuh"
#include "bench/cuda_pack_report.h"
#include "bench/cuda_pack_shapes.h"
#include "kernels/cuda/keep_masks.h"
#include "kernels/cuda/lower_keeps.h"
#include "kernels/pack.h"

namespace {

using namespace prunex;
using namespace prunex::bench;

struct Bench {
  Device device;
  int rounds = 0;
  uint64_t memory = 0;  // bytes that may be used
  Clock clock;
  std::vector<Row> rows;

  void add(Row row) {
    rows.push_back(std::move(row));
    std::printf("%s\n", line_of(rows.back()).c_str());
    std::fflush(stdout);
  }

  // The step and a copy of as many bytes, in turn.
  void time(Row& row, const Launch& launch) const {
    constexpr int kWarmup = 3;
    const auto half = std::max<size_t>(static_cast<size_t>(row.bytes / 2), 1);
    std::vector<std::unique_ptr<Memory>> from, to;
    for (size_t i = 0; i < row.sets; ++i) {
      from.push_back(std::make_unique<Memory>(half));
      to.push_back(std::make_unique<Memory>(half));
      from.back()->fill(1);
    }
    const Launch copy = [&](cudaStream_t stream, size_t i) {
      must(cudaMemcpyAsync(to[i]->at(), from[i]->at(), half, cudaMemcpyDeviceToDevice, stream),
           "cudaMemcpyAsync");
    };
    std::vector<double> steps, copies;
    for (int i = 0; i < rounds + kWarmup; ++i) {
      const double s = clock.round(launch, row.sets), c = clock.round(copy, row.sets);
      if (i >= kWarmup) {
        steps.push_back(s);
        copies.push_back(c);
      }
    }
    row.seconds = median(steps);
    row.copy_seconds = median(copies);
  }
};

uint32_t tile_for(const Layout& layout, size_t size) {
  const cuda::DeviceFacts& facts = tools::cuda_library().facts;
  return cuda::tile_elements(cuda::tuning_of(static_cast<uint32_t>(facts.arch)),
                             static_cast<uint32_t>(facts.sms), layout.count, size);
}

// A subject's plan, buffers and what they hold.
class Stage {
 public:
  Stage(const Subject& subject, size_t sets)
      : subject_(subject),
        layout_(subject.layout),
        size_(size_of(subject.type)),
        all_{0, layout_.kept, 0, layout_.count},
        plan_(layout_, tile_for(layout_, size_)),
        scratch_(table().scratch_bytes()),
        record_(sizeof(cuda::AuditRecord)),
        packed_(layout_.kept * size_),
        clean_(layout_.count * size_) {
    scratch_.fill(0);
    std::mt19937_64 rng(7);
    for (size_t at = 0; at < packed_.size(); at += 8) {
      const uint64_t bits = rng() & 0x3f3f3f3f3f3f3f3f;  // no NaN in any type
      std::memcpy(&packed_[at], &bits, std::min<size_t>(8, packed_.size() - at));
    }
    unpack(layout_, subject.type, packed_.data(), all_, clean_.data());
    for (size_t i = 0; i < sets; ++i) {
      whole_.push_back(std::make_unique<Memory>(clean_.size()));
      dense_.push_back(std::make_unique<Memory>(packed_.size()));
    }
  }

  [[nodiscard]] Launch pack_step(bool audit) const {
    return [this, audit](cudaStream_t stream, size_t i) {
      cuda::MoveCall call =
          plan_.call(subject_.type, all_, whole_[i]->at(), dense_[i]->at(), stream);
      if (audit) {
        call.record = record_.at<cuda::AuditRecord>();
        call.scratch = scratch_.at();
      }
      must(table().pack(&call), audit ? "pack with audit" : "pack");
    };
  }
  [[nodiscard]] Launch unpack_step() const {
    return [this](cudaStream_t stream, size_t i) {
      const cuda::MoveCall call =
          plan_.call(subject_.type, all_, dense_[i]->at(), whole_[i]->at(), stream);
      must(table().unpack(&call), "unpack");
    };
  }

  // Against the host's kernels, with dropped elements that are not zero; leaves all buffers clean.
  void check() const {
    Bytes dirty = clean_;
    for (size_t at = 0; at + size_ <= dirty.size(); at += size_ * 4099) {
      dirty[at + size_ - 1] |= std::byte{0x20};
    }
    Bytes want(packed_.size());
    AuditCount dropped;
    pack(layout_, subject_.type, dirty.data(), all_, want.data(), &dropped);
    whole_[0]->put(dirty);
    for (const bool audit : {false, true}) {
      dense_[0]->fill(0xa5);
      record_.fill(0xff);
      pack_step(audit)(nullptr, 0);
      compare(dense_[0]->get(), want, audit ? "pack with audit" : "pack");
    }
    cuda::AuditRecord found{};
    const Bytes raw = record_.get();
    std::memcpy(&found, raw.data(), sizeof found);
    if (found.lossless != dropped.lossless) {
      give_up(strf("%s: the audit counts %llu, the host %llu", subject_.name.c_str(),
                   static_cast<unsigned long long>(found.lossless),
                   static_cast<unsigned long long>(dropped.lossless)));
    }
    dense_[0]->put(packed_);
    whole_[0]->fill(0xa5);
    unpack_step()(nullptr, 0);
    compare(whole_[0]->get(), clean_, "unpack");
    for (size_t i = 0; i < whole_.size(); ++i) {
      whole_[i]->put(clean_);
      dense_[i]->put(packed_);
    }
  }

 private:
  void compare(const Bytes& got, const Bytes& want, const char* step) const {
    const auto at = std::ranges::mismatch(got, want).in1 - got.begin();
    if (at != static_cast<ptrdiff_t>(got.size())) {
      give_up(strf("%s %s: %s differs from the host's at byte %td of %zu", subject_.name.c_str(),
                   prunex::name_of(subject_.type), step, at, got.size()));
    }
  }

  const Subject& subject_;
  const Layout& layout_;
  const size_t size_;
  const Slice all_;
  const tools::DevicePlan plan_;
  const Memory scratch_, record_;
  Bytes packed_, clean_;
  std::vector<std::unique_ptr<Memory>> whole_, dense_;
};

void measure(Bench& bench, const Subject& subject) {
  const size_t size = size_of(subject.type);
  const double whole = static_cast<double>(subject.layout.count * size);
  const double kept = static_cast<double>(subject.layout.kept * size);
  Row row;
  row.subject = subject.name;
  row.type = prunex::name_of(subject.type);
  row.model = subject.model;
  row.run = subject.run;
  row.bytes = static_cast<double>(touched_bytes(subject.layout, size)) + kept;
  // The buffers, and the copy's, which are no larger.
  row.sets = sets_for(static_cast<uint64_t>(row.bytes), bench.device.cache,
                      static_cast<uint64_t>(2 * (whole + kept)), bench.memory);
  const Stage stage(subject, row.sets);
  stage.check();
  bench.time(row, stage.pack_step(false));
  bench.add(row);
  row.step = Step::audit;
  row.pack_seconds = row.seconds;
  row.pack_bytes = row.bytes;
  row.bytes = whole + kept;
  bench.time(row, stage.pack_step(true));
  bench.add(row);
  row.step = Step::unpack;
  bench.time(row, stage.unpack_step());
  bench.add(row);
}

// Of one bucket, made anew with each compile().
class KeepPlan {
 public:
  explicit KeepPlan(const Layout& layout) {
    const auto keeps = cuda::keeps_of(layout);
    const auto lowered = keeps
                             ? cuda::lower_keeps(keeps->tensors, tile_for(layout, sizeof(float)))
                             : Result<cuda::LoweredKeeps>(fail(Code::internal, "no keep vectors"));
    if (!lowered) {
      give_up("compile: " + lowered.error().text);
    }
    const cuda::KeepImage image{lowered->arrays(), lowered->tensors.size(), lowered->places.size(),
                                lowered->tensor_of_row.size(), lowered->tensor_of_word.size()};
    bytes_ = keeps->keeps.size();
    must(table().plan_reserve_keeps(&image, &plan_), "plan_reserve_keeps");
    must(table().allocate_pinned(&pinned_, bytes_), "allocate_pinned");
    std::memcpy(pinned_, keeps->keeps.data(), bytes_);
    keeps_ = std::make_unique<Memory>(bytes_);
    scratch_ = std::make_unique<Memory>(scratch_bytes_ = table().keep_scratch_bytes(plan_));
    kept_ = std::make_unique<Memory>(sizeof(uint64_t));
  }
  ~KeepPlan() {
    must(table().plan_destroy(plan_), "plan_destroy");
    must(table().deallocate_pinned(pinned_), "deallocate_pinned");
  }
  KeepPlan(const KeepPlan&) = delete;
  KeepPlan& operator=(const KeepPlan&) = delete;
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void compile(cudaStream_t stream) const {
    const cuda::KeepCall call{keeps_->at<uint8_t>(), scratch_->at(), scratch_bytes_, stream};
    must(table().copy(keeps_->at(), pinned_, bytes_, stream), "copy of keep vectors");
    must(table().plan_from_keeps(&call, plan_, kept_->at<uint64_t>()), "plan_from_keeps");
  }
  void check(const Layout& layout) const {
    compile(nullptr);
    uint64_t kept = 0;
    const Bytes raw = kept_->get();
    std::memcpy(&kept, raw.data(), sizeof kept);
    if (kept != layout.kept) {
      give_up(strf("compile: the plan keeps %llu elements, the mask %llu",
                   static_cast<unsigned long long>(kept),
                   static_cast<unsigned long long>(layout.kept)));
    }
  }

 private:
  cuda::Plan* plan_ = nullptr;
  void* pinned_ = nullptr;
  size_t bytes_ = 0, scratch_bytes_ = 0;
  std::unique_ptr<Memory> keeps_, scratch_, kept_;
};

void measure_compile(Bench& bench, double density) {
  std::mt19937_64 rng(1);
  std::vector<std::unique_ptr<KeepPlan>> plans;
  Row row;
  row.subject = strf("resnet50 d=%.2f all", density);
  row.type = "keep";
  row.step = Step::compile;
  for (const Layout& bucket : resnet50(rng, density, sizeof(float))) {
    plans.push_back(std::make_unique<KeepPlan>(bucket));
    plans.back()->check(bucket);
    row.bytes += static_cast<double>(plans.back()->bytes());
  }
  std::vector<double> times;
  for (int i = 0; i < bench.rounds + 3; ++i) {
    times.push_back(bench.clock.round(
        [&](cudaStream_t stream, size_t) {
          for (const auto& plan : plans) {
            plan->compile(stream);
          }
        },
        1));
  }
  row.seconds = median({times.begin() + 3, times.end()});
  bench.add(row);
}

bool write(const char* path, const std::string& text) {
  FILE* const file = std::fopen(path, "w");
  const bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file == nullptr || std::fclose(file) != 0 || !written) {
    std::perror(path);
    return false;
  }
  return true;
}

struct Options {
  bool quick = false, strict = false;
  std::string only;
  const char* json = nullptr;
};

int run(const Options& options) {
  const tools::CudaLibrary& library = tools::cuda_library();
  Bench bench;
  int cache = 0;
  size_t free = 0, total = 0;
  must(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, 0), "size of the L2");
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  bench.device = {library.facts.name, library.facts.arch, library.facts.sms,
                  static_cast<uint64_t>(cache), options.quick};
  bench.rounds = options.quick ? 15 : 41;
  bench.memory = free / 2;
  std::printf("%s", heading(bench.device).c_str());
  for (const double density : {0.5, 0.25}) {
    measure_compile(bench, density);
  }
  size_t measured = 0;
  for (const Subject& subject : subjects(options.quick)) {
    if (subject.name.find(options.only) == std::string::npos) {
      continue;
    }
    ++measured;
    measure(bench, subject);
    // Whatever ends this early leaves what was measured.
    if (options.json != nullptr && !write(options.json, json_of(bench.device, bench.rows))) {
      return 1;
    }
  }
  if (measured == 0) {
    std::fprintf(stderr, "cuda_pack_bench: --only %s: no subject is called so\n",
                 options.only.c_str());
    return 2;
  }
  std::printf("%s\n", summary(bench.rows).c_str());
  return options.strict && missed(bench.rows) > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--strict") {
      options.strict = true;
    } else if (argument == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else if (argument == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "cuda_pack_bench: unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  if (!tools::cuda_library().missing.empty()) {
    std::fprintf(stderr, "cuda_pack_bench: %s\n", tools::cuda_library().missing.c_str());
    return tools::cuda_library().broken ? 1 : 77;
  }
  return run(options);
}
