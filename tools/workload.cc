// SPDX-License-Identifier: Apache-2.0
#include "tools/workload.h"

#include <algorithm>

namespace prunex::tools {
namespace {

constexpr uint64_t kBlockBytes = 1024;
constexpr uint64_t kWantedBlocks =
    64;  // small buffers get smaller blocks, so that densities are met

}  // namespace

uint64_t Workload::count() const {
  uint64_t n = 0;
  for (const BenchBuffer& buffer : buffers) {
    n += buffer.count;
  }
  return n;
}

Workload model_workload(const Model& model, DType type, uint64_t bucket_bytes) {
  Workload workload;
  workload.model = model.name;
  workload.type = type;
  workload.group_sizes = model.group_sizes;
  std::vector<Parameter> parameters(model.parameters.rbegin(), model.parameters.rend());
  std::vector<uint64_t> sizes;
  for (const Parameter& p : parameters) {
    sizes.push_back(p.count() * size_of(type));
  }
  size_t next = 0;
  for (const size_t end : bucket_ends(sizes, bucket_bytes)) {
    BenchBuffer buffer;
    for (; next < end; ++next) {
      const Parameter& p = parameters[next];
      buffer.pieces.push_back({p.name, p.shape, buffer.count, p.count(), p.filters, p.channels, 0});
      buffer.count += p.count();
    }
    workload.buffers.push_back(std::move(buffer));
  }
  return workload;
}

Workload size_workload(uint64_t bytes, DType type) {
  const uint64_t count = bytes / size_of(type);
  Workload workload;
  workload.type = type;
  BenchBuffer buffer;
  buffer.count = count;
  if (count > 0) {
    const uint64_t block =
        std::clamp<uint64_t>(count / kWantedBlocks, 1, kBlockBytes / size_of(type));
    workload.group_sizes.push_back(static_cast<size_t>((count + block - 1) / block));
    buffer.pieces.push_back({"buffer", {static_cast<int64_t>(count)}, 0, count, 0, -1, block});
  }
  workload.buffers.push_back(std::move(buffer));
  return workload;
}

KeepFlags choose_keep(const Workload& workload, double keep, uint64_t seed) {
  KeepFlags flags;
  for (size_t set = 0; set < workload.group_sizes.size(); ++set) {
    flags.push_back(choose_groups(workload.group_sizes[set], keep, seed, set));
  }
  return flags;
}

uint64_t kept_elements(const Workload& workload, const KeepFlags& flags) {
  uint64_t kept = 0;
  for (const BenchBuffer& buffer : workload.buffers) {
    for (const Piece& piece : buffer.pieces) {
      for_each_run(piece, flags,
                   [&kept](uint64_t, uint64_t count, bool keeps) { kept += keeps ? count : 0; });
    }
  }
  return kept;
}

}  // namespace prunex::tools
