// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask_order.h"

#include <algorithm>
#include <cinttypes>

namespace prunex {
namespace {

std::span<const int64_t> sizes_of(const MaskSpec& spec) {
  return std::span(spec.sizes).first(static_cast<size_t>(spec.ndim));
}

std::span<const int64_t> strides_of(const MaskSpec& spec) {
  return std::span(spec.strides).first(static_cast<size_t>(spec.ndim));
}

Result<uint64_t> count_elements(const MaskSpec& spec) {
  bool empty = false;
  for (const int64_t size : sizes_of(spec)) {
    if (size < 0) {
      return fail(Code::invalid_argument,
                  strf("mask: negative size in the shape %s", list_text(sizes_of(spec)).c_str()));
    }
    empty = empty || size == 0;
  }
  if (empty) {
    return uint64_t{0};
  }
  int64_t count = 1;
  for (const int64_t size : sizes_of(spec)) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return fail(Code::invalid_argument, strf("mask: the shape %s has more than 2^63 - 1 elements",
                                               list_text(sizes_of(spec)).c_str()));
    }
  }
  return static_cast<uint64_t>(count);
}

}  // namespace

std::string list_text(std::span<const int64_t> values) {
  std::string text = "[";
  for (const int64_t value : values) {
    text += strf("%s%" PRId64, text.size() > 1 ? ", " : "", value);
  }
  return text + "]";
}

Result<MemoryOrder> memory_order(const MaskSpec& spec) {
  if (spec.ndim < 0 || spec.ndim > kMaxDims) {
    return fail(Code::invalid_argument,
                strf("mask: %d dimensions, allowed are 0 to %d", spec.ndim, kMaxDims));
  }
  const Result<uint64_t> count = count_elements(spec);
  if (!count) {
    return tl::unexpected(count.error());
  }
  MemoryOrder order;
  order.count = *count;
  if (order.count == 0) {
    return order;
  }
  uint64_t cell_stride = 1;
  for (int d = spec.ndim; d-- > 0;) {
    const auto size = static_cast<uint64_t>(spec.sizes[static_cast<size_t>(d)]);
    if (size > 1) {
      order.dims[order.ndim++] = {d, size, cell_stride};
    }
    cell_stride *= size;
  }
  // Innermost first so far; with strides, the smallest first.
  const auto stride_of = [&](const MemoryDim& dim) {
    return spec.strides[static_cast<size_t>(dim.logical)];
  };
  const auto dims = std::span(order.dims).first(order.ndim);
  if (std::ranges::any_of(strides_of(spec), [](int64_t stride) { return stride != 0; })) {
    std::ranges::stable_sort(dims, {}, stride_of);
    int64_t dense = 1;
    for (const MemoryDim& dim : dims) {
      if (stride_of(dim) != dense) {
        return fail(Code::invalid_argument,
                    strf("mask: strides %s are not those of a dense tensor of shape %s in any "
                         "dimension order (use a contiguous or channels_last tensor)",
                         list_text(strides_of(spec)).c_str(), list_text(sizes_of(spec)).c_str()));
      }
      dense *= static_cast<int64_t>(dim.size);
    }
  }
  std::ranges::reverse(dims);
  return order;
}

}  // namespace prunex
