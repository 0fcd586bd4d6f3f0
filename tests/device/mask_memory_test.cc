// SPDX-License-Identifier: Apache-2.0
// Masks that a framework made on the device: registered from there, the same as from the host.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/device/device_api.h"

namespace prunex::test {
namespace {

// What a call's copies moved.
size_t copied = 0;
int counted_copy(void* to, const void* from, size_t bytes, void* stream) {
  copied += bytes;
  return fake_cuda().copy(to, from, bytes, stream);
}

class DeviceMasks : public DeviceApi {
 protected:
  DeviceMasks() : table_(fake_cuda()) {
    table_.copy = counted_copy;
    use(table_);
    copied = 0;
    tensor_.struct_size = sizeof tensor_;
    tensor_.dtype = PRUNEX_FLOAT32;
    tensor_.ndim = 2;
    tensor_.sizes = sizes_;
    std::iota(cells_.begin(), cells_.end(), 0);
    for (uint8_t& cell : cells_) {
      cell = cell % 7 < 3 ? 1 : 0;
    }
  }

  template <class T>
  T* on_device(const T* from, size_t n) {
    auto* const memory = reinterpret_cast<T*>(device_memory(n * sizeof(T)));
    std::memcpy(memory, from, n * sizeof(T));
    memory_.push_back(memory);
    return memory;
  }
  ~DeviceMasks() override {
    for (void* p : memory_) {
      free_device_memory(p);
    }
  }

  prunex_mask_desc_t desc(prunex_mask_kind_t kind) const {
    prunex_mask_desc_t d{};
    d.struct_size = sizeof d;
    d.kind = kind;
    d.declared_kept = -1;
    return d;
  }
  uint64_t digest(const prunex_mask_desc_t& d) {
    prunex_mask_t mask = 0;
    EXPECT_OK(prunex_register_mask(nullptr, &tensor_, &d, &mask));
    prunex_mask_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_OK(prunex_mask_info(mask, &info));
    EXPECT_OK(prunex_unregister_mask(mask));
    return info.digest;
  }

  static constexpr int64_t kRows = 8, kColumns = 25;
  const int64_t sizes_[2] = {kRows, kColumns};
  std::array<uint8_t, kRows * kColumns> cells_{};
  const prunex_range_t ranges_[2] = {{3, 20}, {100, 50}};
  prunex_tensor_t tensor_{};
  cuda::Table table_;
  std::vector<void*> memory_;
};

TEST_F(DeviceMasks, of_every_kind_are_read_there) {
  prunex_mask_desc_t bytes = desc(PRUNEX_MASK_BYTES), dims = desc(PRUNEX_MASK_DIMS),
                     ranges = desc(PRUNEX_MASK_RANGES);
  bytes.cells = cells_.data();
  bytes.cells_len = cells_.size();
  dims.keep[0] = cells_.data();
  dims.keep_len[0] = kRows;
  dims.keep[1] = cells_.data() + kRows;
  dims.keep_len[1] = kColumns;
  ranges.ranges = ranges_;
  ranges.num_ranges = 2;
  const uint64_t of_bytes = digest(bytes), of_dims = digest(dims), of_ranges = digest(ranges);
  EXPECT_EQ(copied, 0u) << "the host reads its own memory";

  bytes.cells = on_device(bytes.cells, bytes.cells_len);
  EXPECT_EQ(digest(bytes), of_bytes);
  EXPECT_EQ(copied, cells_.size());
  dims.keep[1] = on_device(dims.keep[1], dims.keep_len[1]);
  EXPECT_EQ(digest(dims), of_dims) << "one vector here, one there";
  EXPECT_EQ(copied, cells_.size() + kColumns);
  ranges.ranges = on_device(ranges.ranges, ranges.num_ranges);
  EXPECT_EQ(digest(ranges), of_ranges);
  EXPECT_EQ(copied, cells_.size() + kColumns + sizeof ranges_);
}

TEST_F(DeviceMasks, an_error_names_the_array_and_registers_nothing) {
  prunex_mask_desc_t d = desc(PRUNEX_MASK_DIMS);
  d.keep[1] = on_device(cells_.data(), kColumns);
  d.keep_len[1] = kColumns;
  fail_calls(FakeCall::copy, 700);
  prunex_mask_t mask = 7;
  EXPECT_EQ(prunex_register_mask(nullptr, &tensor_, &d, &mask), PRUNEX_ERROR_SYSTEM);
  fail_calls(FakeCall::copy, 0);
  EXPECT_NE(std::strstr(prunex_last_error(), "desc.keep[1]"), nullptr) << prunex_last_error();
  EXPECT_EQ(mask, 0u);
}

}  // namespace
}  // namespace prunex::test
