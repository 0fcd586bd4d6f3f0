// SPDX-License-Identifier: Apache-2.0
// The real parameter shapes of torchvision's ResNets, and the residual-safe pruning rule: only the
// inner convolutions of each block lose filters, and whoever consumes a filter follows.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"

namespace prunex::tools {

// Names one vector of keep flags. -1: everything is kept.
using GroupSet = int;

struct Parameter {
  std::string name;            // torchvision's: "layer1.0.conv2.weight"
  std::vector<int64_t> shape;  // OIHW for convolutions
  GroupSet filters = -1;       // prunes dimension 0
  GroupSet channels = -1;      // prunes dimension 1
  [[nodiscard]] uint64_t count() const;
};

struct Model {
  std::string name;
  std::vector<Parameter> parameters;  // in the order of model.parameters()
  std::vector<size_t> group_sizes;    // filters of each group set
  [[nodiscard]] uint64_t count() const;
};

[[nodiscard]] std::span<const std::string_view> model_names();
[[nodiscard]] Result<Model> make_model(std::string_view name);

// round(keep * n), half up.
[[nodiscard]] size_t kept_groups(double keep, size_t n);

// One byte per group, exactly kept_groups() ones, at pseudo-random places that depend on seed and
// stream alone: every rank and every machine gets the same.
[[nodiscard]] std::vector<uint8_t> choose_groups(size_t n, double keep, uint64_t seed,
                                                 uint64_t stream);

// DDP fills buckets roughly in the order in which gradients become ready: the last parameter first.
// A first small bucket (1 MiB) lets communication start early, then buckets of at least
// `cap_bytes`. Returns the end (exclusive) of each bucket in `sizes_bytes`; cap_bytes 0: one
// bucket.
[[nodiscard]] std::vector<size_t> bucket_ends(std::span<const uint64_t> sizes_bytes,
                                              uint64_t cap_bytes);

}  // namespace prunex::tools
