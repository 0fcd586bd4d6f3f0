// SPDX-License-Identifier: Apache-2.0
// A registered convolution.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "prunex/prunex.h"

namespace prunex::nccl {

// A tensor of 64 filters of 2304 bytes, of which `keep` of every ten stay.
struct Tensor {
  explicit Tensor(int keep, prunex_dtype_t type = PRUNEX_FLOAT32, size_t element = 4)
      : data(64 * 576 * element) {
    std::vector<uint8_t> filters(64);
    for (size_t i = 0; i < 64; ++i) {
      filters[i] = static_cast<int>(i % 10) < keep ? 1 : 0;
    }
    const int64_t sizes[] = {64, 64, 3, 3};
    prunex_tensor_t tensor = {sizeof tensor, type, 4, sizes, nullptr};
    prunex_mask_desc_t desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_DIMS;
    desc.name = "conv.weight";
    desc.declared_kept = -1;
    desc.keep[0] = filters.data();
    desc.keep_len[0] = 64;
    EXPECT_EQ(prunex_register_mask(data.data(), &tensor, &desc, &mask), PRUNEX_SUCCESS)
        << prunex_last_error();
    std::mt19937 random(7);
    for (size_t i = 0; i < data.size(); ++i) {
      if (filters[i / (576 * element)] != 0) {
        data[i] = static_cast<std::byte>(random() | 1);
      }
    }
  }
  ~Tensor() { prunex_unregister_mask(mask); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  std::vector<std::byte> data;
  prunex_mask_t mask = 0;
};

}  // namespace prunex::nccl
