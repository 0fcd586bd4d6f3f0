// SPDX-License-Identifier: Apache-2.0
// Pack, pack with audit and unpack on a GPU against a device copy that moves as many bytes: the
// 32-byte sectors that must be read plus the bytes that must be written. And how long a model's
// plans take from keep vectors in host memory, their copy included.
//
//   cuda_pack_bench [--quick] [--json FILE]
//
// TEST_CUDA_LIBRARY: path of libprunex-cuda.so. One table on stdout. Exit 77 without a GPU.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "kernels/cuda/keep_masks.h"
#include "kernels/cuda/lower_keeps.h"
#include "kernels/mask.h"
#include "tools/cuda_device.cuh"

namespace {

using namespace prunex;
using tools::DeviceMemory;

struct Subject {
  std::string name;
  DType type;
  Layout layout;
};

struct Row {
  std::string name, step;
  double bytes = 0, seconds = 0, share = 0;
};

std::vector<uint8_t> random_keep(std::mt19937_64& rng, int64_t n, double density, int64_t run = 1) {
  std::vector<uint8_t> keep(static_cast<size_t>(n), 0);
  std::bernoulli_distribution kept(density);
  for (int64_t i = 0; i < n; i += run) {
    const uint8_t value = kept(rng) ? 1 : 0;
    for (int64_t j = i; j < std::min(i + run, n); ++j) {
      keep[static_cast<size_t>(j)] = value;
    }
  }
  keep[0] = 1;
  return keep;
}

std::shared_ptr<const CompiledMask> conv(std::mt19937_64& rng, int64_t out, int64_t in,
                                         int64_t window, double filters, double channels) {
  const std::vector<uint8_t> rows = random_keep(rng, out, filters);
  const std::vector<uint8_t> columns = random_keep(rng, in, channels);
  MaskSpec spec;
  spec.ndim = 3;
  spec.sizes = {out, in, window};
  spec.keep[0] = rows;
  spec.keep[1] = columns;
  return std::make_shared<CompiledMask>(*compile(spec));
}

// ResNet-50's convolutions in the order of DDP's buckets, cut into buckets of 25 MB of fp32.
std::vector<Layout> resnet50(std::mt19937_64& rng, double density) {
  struct Shape {
    int64_t out, in, window;
  };
  std::vector<Shape> shapes{{64, 3, 49}};
  int64_t in = 64;
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int64_t stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < blocks[stage]; ++block) {
      shapes.insert(shapes.end(), {{width, in, 1}, {width, width, 9}, {width * 4, width, 1}});
      if (block == 0) {
        shapes.push_back({width * 4, in, 1});
      }
      in = width * 4;
    }
  }
  shapes.push_back({1000, 2048, 1});
  std::ranges::reverse(shapes);
  std::vector<Layout> buckets;
  std::vector<Segment> segments;
  uint64_t at = 0;
  const auto close = [&] {
    if (at != 0) {
      buckets.push_back(*make_layout(std::exchange(segments, {}), std::exchange(at, 0)));
    }
  };
  for (const Shape& s : shapes) {
    const auto mask = conv(rng, s.out, s.in, s.window, density, s.in > 3 ? density : 1);
    segments.push_back({at, mask->count, mask, {}, false});
    at += mask->count;
    segments.push_back({at, static_cast<uint64_t>(2 * s.out), nullptr, {}, false});  // BatchNorm
    at += static_cast<uint64_t>(2 * s.out);
    if (at * sizeof(float) >= 25'000'000) {
      close();
    }
  }
  close();
  return buckets;
}

// One row of `count` elements: runs of `run` elements.
Layout runs(std::mt19937_64& rng, int64_t count, double density, int64_t run) {
  constexpr int64_t kColumns = 8192;
  const std::vector<uint8_t> columns = random_keep(rng, kColumns, density, run);
  MaskSpec spec;
  spec.ndim = 2;
  spec.sizes = {count / kColumns, kColumns};
  spec.keep[1] = columns;
  const auto mask = std::make_shared<CompiledMask>(*compile(spec));
  return *make_layout({{0, mask->count, mask, {}, false}}, mask->count);
}

// Bytes of the 32-byte sectors of the buffer that hold kept elements.
double sectors(const Layout& layout, size_t size) {
  uint64_t touched = 0, last = ~uint64_t{0};
  for (const Segment& segment : layout.segments) {
    for (uint64_t i = 0; i < segment.count; ++i) {
      if (segment.mask == nullptr || keeps(*segment.mask, i)) {
        const uint64_t sector = (segment.offset + i) * size / 32;
        touched += sector != last ? 1 : 0;
        last = sector;
      }
    }
  }
  return static_cast<double>(touched * 32);
}

// The best of several medians would flatter: this is the median of `rounds` launches.
double seconds_of(int rounds, const std::function<void(cudaStream_t)>& launch) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < rounds + 3; ++i) {
    cudaEventRecord(begin, stream);
    launch(stream);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 3) {
      times.push_back(ms);
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  std::ranges::sort(times);
  return static_cast<double>(times[times.size() / 2]) / 1000;
}

// Copies of `bytes` / 2, read and written, between buffers that are far larger than the last-level
// cache when the subject's is.
double copy_seconds(int rounds, double bytes) {
  const auto half = std::max<size_t>(static_cast<size_t>(bytes / 2), 1);
  const DeviceMemory from(half), to(half);
  return seconds_of(rounds, [&](cudaStream_t stream) {
    cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, stream);
  });
}

void measure(const Subject& subject, int rounds, std::vector<Row>& rows) {
  const cuda::Table& table = *tools::cuda_library().table;
  const cuda::DeviceFacts& facts = tools::cuda_library().facts;
  const size_t size = size_of(subject.type);
  const Layout& layout = subject.layout;
  const cuda::Tuning& tuning = cuda::tuning_of(static_cast<uint32_t>(facts.arch));
  const tools::DevicePlan plan(
      layout, cuda::tile_elements(tuning, static_cast<uint32_t>(facts.sms), layout.count, size));
  const DeviceMemory buffer(layout.count * size), packed(layout.kept * size);
  const DeviceMemory scratch(table.scratch_bytes()), record(sizeof(cuda::AuditRecord));
  buffer.fill(0);
  scratch.fill(0);
  const Slice all{0, layout.kept, 0, layout.count};
  const double whole = static_cast<double>(layout.count * size);
  const double kept = static_cast<double>(layout.kept * size);
  const auto add = [&](const char* step, double bytes, const cuda::MoveCall& base, bool spread) {
    const double seconds = seconds_of(rounds, [&](cudaStream_t stream) {
      cuda::MoveCall call = base;
      call.stream = stream;
      spread ? table.unpack(&call) : table.pack(&call);
    });
    rows.push_back({subject.name, step, bytes, seconds, copy_seconds(rounds, bytes) / seconds});
  };
  cuda::MoveCall call = plan.call(subject.type, all, buffer.data(), packed.data());
  add("pack", sectors(layout, size) + kept, call, false);
  call.record = record.as<cuda::AuditRecord>();
  call.scratch = scratch.data();
  add("audit", whole + kept, call, false);
  add("unpack", whole + kept, plan.call(subject.type, all, packed.data(), buffer.data()), true);
}

// Of one bucket, made anew with each compile().
class KeepPlan {
 public:
  explicit KeepPlan(const Layout& layout) {
    const cuda::Table& table = *tools::cuda_library().table;
    const cuda::DeviceFacts& facts = tools::cuda_library().facts;
    const cuda::LayoutKeeps keeps = *cuda::keeps_of(layout);
    const cuda::LoweredKeeps lowered = *cuda::lower_keeps(
        keeps.tensors, cuda::tile_elements(cuda::tuning_of(static_cast<uint32_t>(facts.arch)),
                                           static_cast<uint32_t>(facts.sms), layout.count, 4));
    const cuda::KeepImage image{lowered.arrays(), lowered.tensors.size(), lowered.places.size(),
                                lowered.tensor_of_row.size(), lowered.tensor_of_word.size()};
    bytes_ = keeps.keeps.size();
    void* pinned = nullptr;
    if (table.plan_reserve_keeps(&image, &plan_) != 0 ||
        table.allocate_pinned(&pinned, bytes_) != 0) {
      std::fprintf(stderr, "cuda_pack_bench: no memory for a plan\n");
      std::exit(1);
    }
    pinned_ = static_cast<uint8_t*>(pinned);
    std::ranges::copy(keeps.keeps, pinned_);
    keeps_ = std::make_unique<DeviceMemory>(bytes_);
    scratch_ = std::make_unique<DeviceMemory>(table.keep_scratch_bytes(plan_));
  }
  ~KeepPlan() {
    tools::cuda_library().table->plan_destroy(plan_);
    tools::cuda_library().table->deallocate_pinned(pinned_);
  }
  KeepPlan(const KeepPlan&) = delete;
  KeepPlan& operator=(const KeepPlan&) = delete;
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void compile(cudaStream_t stream) const {
    const cuda::Table& table = *tools::cuda_library().table;
    const cuda::KeepCall call{keeps_->as<uint8_t>(), scratch_->data(), scratch_->size(), stream};
    table.copy(keeps_->data(), pinned_, bytes_, stream);
    table.plan_from_keeps(&call, plan_, nullptr);
  }

 private:
  cuda::Plan* plan_ = nullptr;
  uint8_t* pinned_ = nullptr;
  size_t bytes_ = 0;
  std::unique_ptr<DeviceMemory> keeps_, scratch_;
};

void measure_compile(double density, int rounds, std::vector<Row>& rows) {
  std::mt19937_64 rng(1);
  std::vector<std::unique_ptr<KeepPlan>> plans;
  Row row{"resnet50 d=" + std::to_string(density).substr(0, 4) + " all", "compile"};
  for (const Layout& bucket : resnet50(rng, density)) {
    plans.push_back(std::make_unique<KeepPlan>(bucket));
    row.bytes += static_cast<double>(plans.back()->bytes());
  }
  row.seconds = seconds_of(rounds, [&](cudaStream_t stream) {
    for (const auto& plan : plans) {
      plan->compile(stream);
    }
  });
  rows.push_back(std::move(row));
}

std::vector<Subject> subjects(bool quick) {
  std::mt19937_64 rng(1);
  std::vector<Subject> out;
  for (const double density : {0.5, 0.25}) {
    size_t b = 0;
    for (Layout& bucket : resnet50(rng, density)) {
      const std::string name = "resnet50 d=" + std::to_string(density).substr(0, 4) + " bucket ";
      out.push_back({name + std::to_string(b++), DType::f32, std::move(bucket)});
    }
  }
  const int64_t count = quick ? 1 << 23 : 1 << 26;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int64_t run : {1, 9, 32, 256}) {
      for (const double density : {0.1, 0.5, 0.9}) {
        const std::string name = std::string(name_of(type)) + " run " + std::to_string(run) +
                                 " d=" + std::to_string(density).substr(0, 3);
        out.push_back({name, type, runs(rng, count, density, run)});
      }
    }
    out.push_back(
        {std::string(name_of(type)) + " dense", type, dense_layout(static_cast<uint64_t>(count))});
  }
  return out;
}

void print(const Row& r) {
  std::printf("%-28s %-7s %10.2f %10.2f %9.1f %8.3f\n", r.name.c_str(), r.step.c_str(),
              r.bytes / 1e6, r.seconds * 1e6, r.bytes / r.seconds / 1e9, r.share);
  std::fflush(stdout);
}

void write_json(const char* path, const std::vector<Row>& rows) {
  FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::perror(path);
    return;
  }
  std::fprintf(file, "{\"device\": \"%s\", \"rows\": [\n", tools::cuda_library().facts.name);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    std::fprintf(file,
                 "  {\"subject\": \"%s\", \"step\": \"%s\", \"bytes\": %.0f, \"us\": %.2f, "
                 "\"gbytes_per_s\": %.1f, \"of_copy\": %.3f}%s\n",
                 r.name.c_str(), r.step.c_str(), r.bytes, r.seconds * 1e6,
                 r.bytes / r.seconds / 1e9, r.share, i + 1 < rows.size() ? "," : "");
  }
  std::fprintf(file, "]}\n");
  std::fclose(file);
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  const char* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "cuda_pack_bench: unknown argument '%s'\n", argv[i]);
      return 2;
    }
  }
  if (!tools::cuda_library().missing.empty()) {
    std::fprintf(stderr, "cuda_pack_bench: %s\n", tools::cuda_library().missing.c_str());
    return 77;
  }
  std::vector<Row> rows;
  const int rounds = quick ? 15 : 50;
  std::printf("%-28s %-7s %10s %10s %9s %8s\n", "subject", "step", "MB", "us", "GB/s", "of copy");
  for (const double density : {0.5, 0.25}) {
    measure_compile(density, rounds, rows);
    print(rows.back());
  }
  for (const Subject& subject : subjects(quick)) {
    const size_t before = rows.size();
    measure(subject, rounds, rows);
    std::for_each(rows.begin() + static_cast<std::ptrdiff_t>(before), rows.end(), print);
  }
  if (json != nullptr) {
    write_json(json, rows);
  }
  return 0;
}
