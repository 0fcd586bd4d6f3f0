// SPDX-License-Identifier: Apache-2.0
// Plans are armed once and again when masks change; captured graphs.
#include <gtest/gtest.h>

#include <memory>

#include "tests/device/two_nodes.h"

namespace prunex::test {
namespace {

using collective::Contract;

TEST(DevicePlans, ArmedCallsAllocateNothing) {
  const MaskedPtr masks[] = {striped(kCount, 1, 2, Contract::lossless),
                             striped(kCount, 1, 4, Contract::project), nullptr};
  const auto in = inputs(1, 4);
  run_device_ranks({0, 0, 1}, [&](const DeviceRank& r) {
    int made = 0;
    for (int round = 0; round < 5; ++round) {
      for (const MaskedPtr& masked : masks) {
        DeviceBuffer buffer(in[at(r)]);
        ASSERT_TRUE(r.sum(buffer, masked, kCount));
        EXPECT_EQ(buffer.floats(), sum_of({in[0], in[1], in[2]}));
      }
      // Everybody has armed everything after the first round; a host call separates the two.
      std::vector<float> one(1);
      must(r.comm, float_call(std::vector<float>(1), one));
      made = round == 0 ? fake_counts().made : made;
      must(r.comm, float_call(std::vector<float>(1), one));
    }
    EXPECT_EQ(fake_counts().made, made);
  });
}

TEST(DevicePlans, MasksThatChangeOnAllRanksAreArmedAgain) {
  const auto in = inputs(1, 8);
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    for (const size_t of : {2u, 4u, 8u, 2u, 8u}) {
      DeviceBuffer buffer(in[at(r)]);
      ASSERT_TRUE(r.sum(buffer, striped(kCount, 1, of, Contract::lossless), kCount));
      EXPECT_EQ(buffer.floats(), sum_of(in)) << of;
    }
    EXPECT_EQ(r.stats().calls_compact, 5u);
  });
}

// Rows and columns that stay go to the device as such, which makes the plan; other masks' plans are
// the host's. Both are the same to whoever calls.
TEST(DevicePlans, AreMadeByTheDeviceWhereMasksAreRowsAndColumns) {
  constexpr size_t kMany = 40'000;
  MaskSpec spec;
  spec.kind = MaskKind::dims;
  spec.ndim = 2;
  spec.sizes = {400, 100};
  std::vector<uint8_t> rows(400), columns(100);
  for (size_t i = 0; i < 400; ++i) {
    rows[i] = i % 3 != 0 ? 1 : 0;
    columns[i % 100] = i % 100 % 7 < 3 ? 1 : 0;
  }
  spec.keep[0] = rows;
  spec.keep[1] = columns;
  const auto mask = std::make_shared<const CompiledMask>(*compile(spec));
  std::vector<uint8_t> cells(kMany);
  for (size_t i = 0; i < kMany; ++i) {
    cells[i] = keeps(*mask, i) && i % 11 != 5 ? 1 : 0;
  }
  const MaskedPtr structured = layout_of({{kMany, mask, Contract::lossless, "conv"}});
  const MaskedPtr other =
      layout_of({{kMany, mask_of(kMany, [&](uint64_t i) { return cells[i] != 0; }),
                  Contract::lossless, "conv"}});
  std::vector<std::vector<float>> in;
  for (int rank = 0; rank < 5; ++rank) {
    in.push_back(values_of(rank, kMany));
    for (size_t i = 0; i < kMany; ++i) {
      in.back()[i] = cells[i] != 0 ? in.back()[i] : 0;
    }
  }
  const int before = fake_kernels().keep_plans;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    for (const MaskedPtr& masked : {structured, other}) {
      DeviceBuffer buffer(in[at(r)]);
      ASSERT_TRUE(r.sum(buffer, masked, kMany));
      EXPECT_EQ(buffer.floats(), sum_of(in));
    }
    EXPECT_EQ(r.stats().calls_compact, 2u);
  });
  EXPECT_EQ(fake_kernels().keep_plans - before, 5) << "one on each rank";
}

TEST(DevicePlans, CallsOnTwoStreamsDoNotMixTheirBuffers) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::project);
  const auto in = inputs(1, 2);
  run_device_ranks({0, 0, 1}, [&](const DeviceRank& r) {
    FakeStream other;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (int i = 0; i < 20; ++i) {
      buffers.push_back(std::make_unique<DeviceBuffer>(in[at(r)]));
      collective::CallSpec spec;
      spec.send = spec.recv = buffers.back()->data();
      spec.count = kCount;
      spec.masked = masked;
      void* const stream = i % 2 == 0 ? r.handle() : static_cast<StreamLike*>(&other);
      ASSERT_TRUE(r.device.all_reduce(spec, 0, stream));
    }
    r.stream.synchronize();
    other.synchronize();
    for (const auto& buffer : buffers) {
      EXPECT_EQ(buffer->floats(), sum_of({in[0], in[1], in[2]}));
    }
    other.synchronize();
  });
}

TEST(DevicePlans, HostAndDeviceCallsMayAlternate) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::lossless);
  const auto in = inputs(1, 2);
  run_device_ranks({0, 0, 1}, [&](const DeviceRank& r) {
    for (int i = 0; i < 4; ++i) {
      DeviceBuffer buffer(in[at(r)]);
      ASSERT_TRUE(r.sum(buffer, masked, kCount));
      std::vector<float> host(kCount);
      must(r.comm, float_call(in[at(r)], host, masked));
      EXPECT_EQ(buffer.floats(), host);
    }
  });
}

// ---- graphs -----------------------------------------------------------------------------------

Result<FakeStream::Graph> capture(const DeviceRank& r, DeviceBuffer& buffer, MaskedPtr masked) {
  r.stream.begin_capture();
  collective::CallSpec spec;
  spec.send = spec.recv = buffer.data();
  spec.count = kCount;
  spec.masked = std::move(masked);
  auto result = r.call(spec);
  auto graph = r.stream.end_capture();
  return result ? Result<FakeStream::Graph>(std::move(graph))
                : Result<FakeStream::Graph>(tl::unexpected(result.error()));
}

TEST(DeviceGraphs, ReplaysUseTheValuesOfTheirTime) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::project);
  const auto in = inputs(1, 2);
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    auto graph = capture(r, buffer, masked);
    ASSERT_TRUE(graph) << graph.error().text;
    for (int replay = 0; replay < 3; ++replay) {
      auto mine = in[at(r)];
      mine[2] += static_cast<float>(replay);
      buffer.put(mine);
      r.stream.launch(*graph);
      r.stream.synchronize();
      auto want = sum_of(in);
      want[2] += static_cast<float>(replay * 5);
      EXPECT_EQ(buffer.floats(), want);
    }
    // Larger plans need more memory: the graph keeps its own.
    DeviceBuffer large(values_of(r.rank, 100'000));
    ASSERT_TRUE(r.sum(large, striped(100'000, 1, 2, Contract::project), 100'000));
    buffer.put(in[at(r)]);
    r.stream.launch(*graph);
    r.stream.synchronize();
    EXPECT_EQ(buffer.floats(), sum_of(in));
  });
}

TEST(DeviceGraphs, WhatCannotBeCapturedIsRefusedWithTheRemedy) {
  const auto in = inputs(1, 2);
  run_device_ranks({0, 1}, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    auto unarmed = capture(r, buffer, striped(kCount, 1, 2, Contract::project));
    ASSERT_FALSE(unarmed);
    EXPECT_EQ(unarmed.error().code, Code::invalid_argument);
    EXPECT_NE(unarmed.error().text.find("once outside"), std::string::npos);
    const MaskedPtr lossless = striped(kCount, 1, 2, Contract::lossless);
    ASSERT_TRUE(r.sum(buffer, lossless, kCount));
    auto checked = capture(r, buffer, lossless);
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().text.find("'project'"), std::string::npos);
    ASSERT_TRUE(r.sum(buffer, lossless, kCount)) << "a refusal changes nothing";
  });
}

TEST(DeviceGraphs, ASampledViolationIsAnErrorOfTheNextCall) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::sampled);
  const auto in = inputs(1, 2);
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    auto graph = capture(r, buffer, masked);
    ASSERT_TRUE(graph) << graph.error().text;
    auto dirty = in[at(r)];
    dirty[7] = r.rank == 2 ? 1.0f : 0.0f;
    for (const auto& values : {dirty, in[at(r)]}) {  // clean again: the error stays
      buffer.put(values);
      r.stream.launch(*graph);
      r.stream.synchronize();
    }
    const auto next = r.sum(buffer, masked, kCount);
    ASSERT_FALSE(next);
    EXPECT_EQ(next.error().code, Code::mismatch);
    EXPECT_NE(next.error().text.find("captured graph"), std::string::npos) << next.error().text;
  });
}

}  // namespace
}  // namespace prunex::test
