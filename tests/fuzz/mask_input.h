// SPDX-License-Identifier: Apache-2.0
// Mask specs, right and wrong, from a fuzzer's bytes.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/mask.h"
#include "tests/fuzz/decode.h"

namespace prunex::fuzz {

struct MaskInput {
  MaskSpec spec;
  std::array<std::vector<uint8_t>, kMaxDims> keep;
  std::vector<uint8_t> cells;
  std::vector<KeptRange> ranges;
};

// Beyond this, tests look at single elements, and masks that need memory are not compiled.
inline constexpr uint64_t kSmall = uint64_t{1} << 14;

// The number of elements; UINT64_MAX when there is no such tensor.
inline uint64_t element_count(const MaskSpec& spec) {
  if (spec.ndim < 0 || spec.ndim > kMaxDims) {
    return UINT64_MAX;
  }
  int64_t count = 1;
  for (size_t d = 0; d < static_cast<size_t>(spec.ndim); ++d) {
    if (spec.sizes[d] < 0 || __builtin_mul_overflow(count, spec.sizes[d], &count)) {
      return UINT64_MAX;
    }
  }
  return static_cast<uint64_t>(count);
}

inline void take_strides(Decoder& in, MaskSpec& spec) {
  const auto mode = in.take<uint8_t>();
  if (mode % 3 == 0) {
    return;
  }
  std::array<size_t, kMaxDims> order{0, 1, 2, 3, 4, 5, 6, 7};
  for (size_t d = static_cast<size_t>(spec.ndim); d > 1; --d) {
    std::swap(order[d - 1], order[in.take<uint8_t>() % d]);
  }
  uint64_t stride = 1;
  for (size_t k = static_cast<size_t>(spec.ndim); k-- > 0;) {
    spec.strides[order[k]] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(spec.sizes[order[k]]);
  }
  if (mode == 254) {
    spec.strides[in.take<uint8_t>() % kMaxDims] = in.number();
  }
}

// Cells as many as the spec needs, now and then another number.
inline void take_cells(Decoder& in, MaskInput& input, uint64_t needed) {
  const auto mode = in.take<uint8_t>();
  const uint64_t n = mode == 255 ? in.take<uint8_t>() : needed;
  input.cells = in.bytes(n < 4 * kSmall ? n : 0);
}

inline uint64_t tiles(const MaskSpec& spec) {
  uint64_t n = 1;
  for (size_t d = 0; d < static_cast<size_t>(spec.ndim); ++d) {
    const auto size = static_cast<uint64_t>(spec.sizes[d]);
    const auto block = static_cast<uint64_t>(spec.block[d]);
    n *= size == 0 ? 0 : block == 0 ? 1 : (size - 1) / block + 1;
  }
  return n;
}

inline void take_mask(Decoder& in, MaskInput& input) {
  MaskSpec& spec = input.spec;
  spec.kind = static_cast<MaskKind>(in.take<uint8_t>() % 6);
  spec.ndim = in.take<int8_t>() % 10;
  for (int64_t& size : spec.sizes) {
    size = in.number();
  }
  const uint64_t count = element_count(spec);
  if (spec.ndim >= 0 && spec.ndim <= kMaxDims) {
    take_strides(in, spec);
  }
  if (in.take<uint8_t>() % 4 == 0) {
    spec.declared_kept = in.number();
  }
  if (spec.kind == MaskKind::dims) {
    const auto given = in.take<uint8_t>();
    for (size_t d = 0; d < kMaxDims; ++d) {
      if ((given >> d & 1) != 0) {
        const auto length = in.take<uint8_t>() == 255 ? in.number() : spec.sizes[d];
        input.keep[d] = in.bytes(length < 0 || length > 256 ? 0 : static_cast<size_t>(length));
        spec.keep[d] = input.keep[d];
      }
    }
  } else if (spec.kind == MaskKind::blocks && count != UINT64_MAX) {
    for (int64_t& block : spec.block) {
      block = in.number();
    }
    take_cells(in, input, tiles(spec));
  } else if (spec.kind == MaskKind::ranges) {
    for (uint64_t at = 0; !in.empty() && input.ranges.size() < 64;) {
      const auto gap = static_cast<uint64_t>(in.number()), n = static_cast<uint64_t>(in.number());
      input.ranges.push_back({at + gap, n});
      at += gap + n;
    }
  } else {
    spec.nm_dim = in.take<uint8_t>() % kMaxDims;
    spec.m = in.number();
    spec.n = in.number();
    take_cells(in, input, count);
  }
  spec.cells = input.cells;
  spec.ranges = input.ranges;
}

// Fewer than 2^24 elements, or a kind that needs no memory for them.
inline bool affordable(const MaskSpec& spec) {
  const uint64_t count = element_count(spec);
  return spec.kind == MaskKind::ranges || count == UINT64_MAX || count < uint64_t{1} << 24;
}

}  // namespace prunex::fuzz
