// SPDX-License-Identifier: Apache-2.0
// A registered tensor of rows and columns in device memory, bytes that keep its mask's promise, and
// what tells who packed them.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "prunex/prunex.h"
#include "tests/device/staged_net.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {

class StagedMask {
 public:
  // Every row and column is kept with the probability `density`.
  StagedMask(std::byte* base, prunex_dtype_t type, size_t element, size_t rows, size_t columns,
             double density, Rng& rng)
      : base_(base), type_(type), element_(element), rows_(rows), columns_(columns) {
    draw(density, rng);
    const int64_t sizes[] = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
    const prunex_tensor_t tensor = {sizeof tensor, type_, 2, sizes, nullptr};
    const prunex_mask_desc_t desc = description();
    EXPECT_EQ(prunex_register_mask(base_, &tensor, &desc, &mask_), PRUNEX_SUCCESS)
        << prunex_last_error();
  }
  ~StagedMask() { EXPECT_EQ(prunex_unregister_mask(mask_), PRUNEX_SUCCESS); }
  StagedMask(const StagedMask&) = delete;
  StagedMask& operator=(const StagedMask&) = delete;

  void update(double density, Rng& rng) {
    draw(density, rng);
    const prunex_mask_desc_t desc = description();
    EXPECT_EQ(prunex_update_mask(mask_, &desc), PRUNEX_SUCCESS) << prunex_last_error();
  }

  [[nodiscard]] size_t bytes() const { return rows_ * columns_ * element_; }
  [[nodiscard]] size_t element() const { return element_; }
  [[nodiscard]] bool keeps(size_t i) const {
    return row_[i / columns_] != 0 && column_[i % columns_] != 0;
  }
  // Bytes [offset, offset + bytes) of the tensor.
  [[nodiscard]] Bytes data(size_t offset, size_t bytes, uint32_t seed) const {
    Bytes out = pattern(bytes, seed);
    for (size_t b = 0; b < bytes; ++b) {
      out[b] = keeps((offset + b) / element_) ? out[b] : std::byte{0};
    }
    return out;
  }
  [[nodiscard]] uint64_t violations() const {
    prunex_mask_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(prunex_mask_info(mask_, &info), PRUNEX_SUCCESS);
    return info.violations;
  }

 private:
  void draw(double density, Rng& rng) {
    row_ = random_bits(rng, rows_, density, 1 + below(rng, 3));
    column_ = random_bits(rng, columns_, density, 1 + below(rng, 9));
    row_[below(rng, rows_)] = column_[below(rng, columns_)] = 1;
    row_[below(rng, rows_)] = 0;
  }
  [[nodiscard]] prunex_mask_desc_t description() const {
    prunex_mask_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_DIMS;
    desc.declared_kept = -1;
    desc.keep[0] = row_.data();
    desc.keep_len[0] = rows_;
    desc.keep[1] = column_.data();
    desc.keep_len[1] = columns_;
    return desc;
  }

  std::byte* base_;
  prunex_dtype_t type_;
  size_t element_, rows_, columns_;
  std::vector<uint8_t> row_, column_;
  prunex_mask_t mask_ = 0;
};

class StagedKernels : public StagedNet {
 protected:
  using StagedNet::StagedNet;

  void SetUp() override {
    ::setenv("PRUNEX_NET_MODE", "compact", 1);
    StagedNet::SetUp();
  }
  void TearDown() override {
    StagedNet::TearDown();
    ::unsetenv("PRUNEX_NET_MODE");
  }

  struct Seen {
    FakeKernels kernels = fake_kernels();
    FakeCounts counts = fake_counts();
    nccl::Totals totals = nccl::all_totals();
  };
  // Since `before`: how many messages kernels packed and expanded, and how many were copied.
  static void expect_ways(const Seen& before, uint64_t packed, uint64_t unpacked, uint64_t copied) {
    const nccl::Totals now = nccl::all_totals();
    EXPECT_EQ(now.packed.messages - before.totals.packed.messages, packed);
    EXPECT_EQ(now.unpacked.messages - before.totals.unpacked.messages, unpacked);
    EXPECT_EQ(now.staged.messages - before.totals.staged.messages, copied);
  }
  static void expect_nothing_made(const Seen& before) {
    EXPECT_EQ(fake_counts().made, before.counts.made) << "the data path allocated";
    EXPECT_EQ(fake_counts().waits, before.counts.waits) << "the data path waited";
  }
  static uint64_t sent(nccl::WireKind kind, const Seen& before) {
    const auto k = static_cast<size_t>(kind);
    return nccl::all_totals().sent[k].messages - before.totals.sent[k].messages;
  }
};

}  // namespace prunex::test
