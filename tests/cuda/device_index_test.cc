// SPDX-License-Identifier: Apache-2.0
// On a GPU: byte masks, zero blocks, group norms and top-k equal the host's. Without one, every
// test skips and says why.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/cuda/lower_keeps.h"
#include "kernels/exact.h"
#include "kernels/pack.h"
#include "plugin/device/plan_maker.h"
#include "tests/cuda/keep_bucket.h"
#include "tests/kernels/pack_support.h"
#include "tools/cuda_device.cuh"

namespace prunex::test {
namespace {

using tools::cuda_library;
using tools::CudaLibrary;
using tools::DeviceMemory;

class CudaDeviceIndex : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = cuda_library();
    ASSERT_FALSE(library.broken) << library.missing;
    if (!library.missing.empty()) {
      GTEST_SKIP() << library.missing;
    }
  }
  static const cuda::Table& table() { return *cuda_library().table; }
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

struct ByteMask {
  std::vector<uint8_t> cells;
  std::vector<uint32_t> kept, begin, length;
};

ByteMask random_mask(Rng& rng, uint64_t count, double density) {
  ByteMask mask;
  mask.cells = random_bits(rng, count, density, 1 + below(rng, 40));
  for (uint32_t i = 0; i < count; ++i) {
    if (mask.cells[i] == 0) {
      continue;
    }
    mask.kept.push_back(i);
    if (i == 0 || mask.cells[i - 1] == 0) {
      mask.begin.push_back(i);
      mask.length.push_back(0);
    }
    ++mask.length.back();
  }
  return mask;
}

TEST_F(CudaDeviceIndex, positions_runs_and_plans_of_byte_masks) {
  Rng rng(1);
  for (const uint64_t count : {1u, 33u, 5000u, 300'000u}) {
    for (const double density : {0.0, 0.3, 0.9, 1.0}) {
      SCOPED_TRACE(testing::Message() << count << " cells, density " << density);
      const ByteMask mask = random_mask(rng, count, density);
      const DeviceMemory cells(bytes_of(mask.cells), 0), scratch(table().mask_scratch_bytes(count));
      const DeviceMemory a(count * 4), b(count * 4), n(4);
      const cuda::ByteMaskCall call{cells.as<uint8_t>(), count, scratch.data(), scratch.size(),
                                    nullptr};
      ASSERT_EQ(table().index_from_bytes(&call, a.as<uint32_t>(), n.as<uint32_t>()), cudaSuccess);
      std::vector<uint32_t> got = a.get_as<uint32_t>();
      ASSERT_EQ(n.get_as<uint32_t>()[0], mask.kept.size());
      got.resize(mask.kept.size());
      EXPECT_EQ(got, mask.kept);

      ASSERT_EQ(
          table().runs_from_bytes(&call, a.as<uint32_t>(), b.as<uint32_t>(), n.as<uint32_t>()),
          cudaSuccess);
      ASSERT_EQ(n.get_as<uint32_t>()[0], mask.begin.size());
      std::vector<uint32_t> begin = a.get_as<uint32_t>(), length = b.get_as<uint32_t>();
      begin.resize(mask.begin.size());
      length.resize(mask.begin.size());
      EXPECT_EQ(begin, mask.begin);
      EXPECT_EQ(length, mask.length);

      cuda::Plan* plan = nullptr;
      ASSERT_EQ(table().plan_reserve(count, 1024, &plan), cudaSuccess);
      ASSERT_EQ(table().plan_from_bytes(&call, plan, n.as<uint32_t>()), cudaSuccess);
      ASSERT_EQ(n.get_as<uint32_t>()[0], mask.kept.size());
      std::vector<uint32_t> values(count), want;
      std::iota(values.begin(), values.end(), 1u);
      for (const uint32_t i : mask.kept) {
        want.push_back(values[i]);
      }
      const DeviceMemory from(bytes_of(values), 0), to(want.size() * 4);
      cuda::MoveCall move{};
      move.plan = plan;
      move.type = DType::u32;
      move.range = {0, count, 0};
      move.last_tile = static_cast<uint32_t>(table().plan_tiles(plan));
      move.from = from.data();
      move.to = to.data();
      ASSERT_EQ(table().pack(&move), cudaSuccess);
      EXPECT_EQ(to.get_as<uint32_t>(), want);
      table().plan_destroy(plan);
    }
  }
}

TEST_F(CudaDeviceIndex, byte_masks_that_are_too_long_are_refused) {
  const DeviceMemory memory(256);
  cuda::Plan* plan = nullptr;
  EXPECT_NE(table().plan_reserve(cuda::kMostCells + 1, 1024, &plan), cudaSuccess);
  EXPECT_EQ(plan, nullptr);
  const cuda::ByteMaskCall call{memory.as<uint8_t>(), cuda::kMostCells + 1, memory.data(),
                                ~size_t{0}, nullptr};
  auto* const out = memory.as<uint32_t>();
  EXPECT_NE(table().index_from_bytes(&call, out, out), cudaSuccess);
  EXPECT_NE(table().runs_from_bytes(&call, out, out, out), cudaSuccess);
}

// CUB takes somebody's earlier error for its own.
TEST_F(CudaDeviceIndex, an_error_from_before_is_not_the_calls) {
  const DeviceMemory from(2 * 128), packed(2 * 128), bits(8),
      scratch(table().block_scratch_bytes(2));
  cuda::BlockCall call{};
  call.from = from.data();
  call.blocks = 2;
  call.bits = bits.as<uint64_t>();
  call.packed = packed.data();
  call.scratch = scratch.data();
  call.scratch_bytes = scratch.size();
  from.fill(1);
  ASSERT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  EXPECT_EQ(table().pack_blocks(&call), cudaSuccess);
  EXPECT_EQ(bits.get_as<uint64_t>()[0], 3u);
}

// All of a buffer, there and back.
void expect_packs(const Layout& layout, const cuda::Plan* plan) {
  const cuda::Table& table = *cuda_library().table;
  std::vector<uint32_t> values(layout.count), want(layout.kept + 1), back(layout.count, 1);
  std::iota(values.begin(), values.end(), 1u);
  const Slice all{0, layout.kept, 0, layout.count};
  pack(layout, DType::u32, values.data(), all, want.data());
  unpack(layout, DType::u32, want.data(), all, back.data());
  want.resize(layout.kept);
  const DeviceMemory from(bytes_of(values), 0), to(want.size() * 4);
  cuda::MoveCall move{};
  move.plan = plan;
  move.type = DType::u32;
  move.range = {0, layout.count, 0};
  move.last_tile = static_cast<uint32_t>(table.plan_tiles(plan));
  move.from = from.data();
  move.to = to.data();
  ASSERT_EQ(table.pack(&move), cudaSuccess);
  EXPECT_EQ(to.get_as<uint32_t>(), want);
  from.fill(0xa5);
  move.from = to.data();
  move.to = from.data();
  ASSERT_EQ(table.unpack(&move), cudaSuccess);
  EXPECT_EQ(from.get_as<uint32_t>(), back);
}

TEST_F(CudaDeviceIndex, plans_of_keep_vectors) {
  Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    const KeepBucket bucket = random_keep_bucket(rng);
    const auto lowered = cuda::lower_keeps(bucket.tensors, uint32_t{32} << below(rng, 8));
    ASSERT_TRUE(lowered) << lowered.error().text;
    const cuda::KeepImage image{lowered->arrays(), lowered->tensors.size(), lowered->places.size(),
                                lowered->tensor_of_row.size(), lowered->tensor_of_word.size()};
    cuda::Plan* plan = nullptr;
    ASSERT_EQ(table().plan_reserve_keeps(&image, &plan), cudaSuccess);
    const DeviceMemory keeps(bytes_of(bucket.keeps), 0), total(8);
    const DeviceMemory scratch(table().keep_scratch_bytes(plan));
    const cuda::KeepCall call{keeps.as<uint8_t>(), scratch.data(), scratch.size(), nullptr};
    for (int again = 0; again < 2; ++again) {  // a plan may be filled again
      ASSERT_EQ(table().plan_from_keeps(&call, plan, total.as<uint64_t>()), cudaSuccess);
    }
    ASSERT_EQ(total.get_as<uint64_t>()[0], bucket.layout.kept);
    expect_packs(bucket.layout, plan);
    table().plan_destroy(plan);
    // The way that communicators and the plugin take.
    auto made = device::make_plan(table(), bucket.layout, 1024);
    ASSERT_TRUE(made) << made.error().text;
    expect_packs(bucket.layout, made->plan);
    device::destroy_plan(table(), *made);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(CudaDeviceIndex, zero_blocks) {
  Rng rng(2);
  for (const size_t blocks : {1u, 63u, 64u, 65u, 3000u}) {
    for (const size_t shift : {0u, 4u, 1u}) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks, shift " << shift);
      std::vector<std::byte> data(blocks * kZeroBlock, std::byte{0});
      for (size_t b = 0; b < blocks; ++b) {
        if (below(rng, 2) == 0) {
          data[b * kZeroBlock + below(rng, kZeroBlock)] = std::byte{1};
        }
      }
      std::vector<uint64_t> want_bits;
      std::vector<std::byte> want;
      for (size_t first = 0; first < blocks; first += 64) {
        const size_t n = std::min<size_t>(64, blocks - first);
        std::vector<std::byte> packed(n * kZeroBlock);
        want_bits.push_back(pack_blocks(data.data() + first * kZeroBlock, n, packed.data()));
        packed.resize(static_cast<size_t>(std::popcount(want_bits.back())) * kZeroBlock);
        want.insert(want.end(), packed.begin(), packed.end());
      }
      const DeviceMemory from(data, shift), packed(data.size()), total(8);
      const DeviceMemory bits(want_bits.size() * 8), scratch(table().block_scratch_bytes(blocks));
      cuda::BlockCall call{from.data(),          blocks,         bits.as<uint64_t>(), packed.data(),
                           total.as<uint64_t>(), scratch.data(), scratch.size(),      nullptr};
      ASSERT_EQ(table().pack_blocks(&call), cudaSuccess);
      EXPECT_EQ(bits.get_as<uint64_t>(), want_bits);
      EXPECT_EQ(total.get_as<uint64_t>()[0] * kZeroBlock, want.size());
      std::vector<std::byte> got = packed.get();
      got.resize(want.size());
      EXPECT_EQ(got, want);
      from.fill(0xa5);
      ASSERT_EQ(table().unpack_blocks(&call), cudaSuccess);
      EXPECT_EQ(from.get(), data);
      const DeviceMemory apart(data.size() + 8);  // frames behind others begin at multiples of 8
      call.packed = static_cast<std::byte*>(apart.data()) + 8;
      ASSERT_EQ(table().pack_blocks(&call), cudaSuccess);
      got = apart.get();
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + 8));
    }
  }
}

TEST_F(CudaDeviceIndex, norms_of_filters_and_channels) {
  constexpr uint64_t kFilters = 40, kChannels = 30, kWindow = 9;
  std::vector<float> values(kFilters * kChannels * kWindow);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 17) - 8;
  }
  for (const bool channels : {false, true}) {
    const cuda::GroupShape shape = channels ? cuda::GroupShape{kFilters, kChannels, kWindow}
                                            : cuda::GroupShape{1, kFilters, kChannels * kWindow};
    std::vector<double> want(shape.groups, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t group = channels ? i / kWindow % kChannels : i / (kChannels * kWindow);
      want[group] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    const DeviceMemory data(bytes_of(values), 0), out(shape.groups * 8);
    const DeviceMemory scratch(table().norm_scratch_bytes(&shape) + 1);
    const cuda::NormCall call{data.data(),    DType::f32,     shape,  out.as<double>(),
                              scratch.data(), scratch.size(), nullptr};
    ASSERT_EQ(table().norms(&call), cudaSuccess);
    EXPECT_EQ(out.get_as<double>(), want) << (channels ? "channels" : "filters");
  }
}

TEST_F(CudaDeviceIndex, top_k_with_ties_and_incumbents) {
  Rng rng(3);
  for (const uint32_t groups : {1u, 64u, 2048u}) {
    std::vector<double> scores(groups);
    std::vector<uint8_t> incumbents(groups);
    for (uint32_t g = 0; g < groups; ++g) {
      scores[g] = static_cast<double>(below(rng, 50)) + 1e-12;  // no float
      incumbents[g] = below(rng, 2) == 0 ? 1 : 0;
    }
    const uint32_t keep = groups / 2;
    std::vector<uint32_t> order(groups);
    std::iota(order.begin(), order.end(), 0u);
    const auto weighted = [&](uint32_t g) { return scores[g] * (incumbents[g] != 0 ? 1.25 : 1); };
    std::ranges::stable_sort(order,
                             [&](uint32_t a, uint32_t b) { return weighted(a) > weighted(b); });
    std::vector<uint8_t> want(groups, 0);
    for (uint32_t k = 0; k < keep; ++k) {
      want[order[k]] = 1;
    }
    const DeviceMemory s(bytes_of(scores), 0), i(bytes_of(incumbents), 0), out(groups);
    const DeviceMemory scratch(table().top_k_scratch_bytes(groups));
    const cuda::TopKCall call{s.as<double>(),    i.as<uint8_t>(), 1.25,           groups, keep,
                              out.as<uint8_t>(), scratch.data(),  scratch.size(), nullptr};
    ASSERT_EQ(table().top_k(&call), cudaSuccess);
    EXPECT_EQ(out.get_as<uint8_t>(), want) << groups << " groups";
  }
}

TEST_F(CudaDeviceIndex, kinds_of_pointers) {
  const DeviceMemory device(16);
  cuda::PointerFacts facts{};
  ASSERT_EQ(table().pointer_facts(device.data(), &facts), cudaSuccess);
  EXPECT_EQ(facts.kind, cuda::PointerKind::device);
  EXPECT_EQ(facts.device, 0);
  void* pinned = nullptr;
  ASSERT_EQ(table().allocate_pinned(&pinned, 16), cudaSuccess);
  ASSERT_EQ(table().pointer_facts(pinned, &facts), cudaSuccess);
  EXPECT_EQ(facts.kind, cuda::PointerKind::pinned);
  table().deallocate_pinned(pinned);
  int plain = 0;
  ASSERT_EQ(table().pointer_facts(&plain, &facts), cudaSuccess);
  EXPECT_EQ(facts.kind, cuda::PointerKind::host);
}

// The library answers without a driver, too, and refuses another version of the table.
TEST(CudaLibraryFile, answers_without_a_device) {
  const CudaLibrary& library = cuda_library();
  ASSERT_FALSE(library.broken) << library.missing;
  cuda::Probe probe;
  EXPECT_EQ(library.table->probe(&probe), 0);
  EXPECT_GT(probe.runtime, 12000);
  EXPECT_GE(probe.devices, 0);
  EXPECT_EQ(library.table->bytes, sizeof(cuda::Table));
}

}  // namespace
}  // namespace prunex::test
