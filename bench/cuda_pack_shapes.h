// SPDX-License-Identifier: Apache-2.0
// What cuda_pack_bench packs: ResNet-50's buckets and buffers of one pattern each. Pure.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/layout.h"
#include "plugin/base/dtype.h"

namespace prunex::bench {

struct Subject {
  std::string name;
  DType type = DType::f32;
  Layout layout;
  bool model = false;
  uint64_t run = 0;  // bytes of the shortest run of kept elements; 0: not known
};

// ResNet-50's convolutions and their BatchNorms in the order of DDP's buckets, cut after 25 MB.
[[nodiscard]] std::vector<Layout> resnet50(std::mt19937_64& rng, double density, size_t element);
[[nodiscard]] std::vector<Subject> subjects(bool quick);

}  // namespace prunex::bench
