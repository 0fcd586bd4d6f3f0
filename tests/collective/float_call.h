// SPDX-License-Identifier: Apache-2.0
// Short forms for tests of single rules on fp32 buffers.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layout.h"
#include "plugin/collective/comm.h"
#include "plugin/collective/masked_layout.h"

namespace prunex::test {

using MaskedPtr = std::shared_ptr<const collective::MaskedLayout>;

// A mask that keeps where `keep(i)` says so.
template <class Keep>
std::shared_ptr<const CompiledMask> mask_of(uint64_t count, Keep keep) {
  std::vector<uint8_t> cells(count);
  for (uint64_t i = 0; i < count; ++i) {
    cells[i] = keep(i) ? 1 : 0;
  }
  MaskSpec spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 1;
  spec.sizes[0] = static_cast<int64_t>(count);
  spec.cells = cells;
  auto compiled = compile(spec);
  EXPECT_TRUE(compiled) << compiled.error().text;
  return std::make_shared<const CompiledMask>(std::move(*compiled));
}

struct Piece {
  uint64_t count = 0;
  std::shared_ptr<const CompiledMask> mask;  // null: dense
  collective::Contract contract = collective::Contract::lossless;
  std::string name;
};

// Pieces one behind the other.
[[nodiscard]] inline MaskedPtr layout_of(const std::vector<Piece>& pieces) {
  std::vector<Segment> segments;
  std::vector<collective::Contract> contracts;
  uint64_t at = 0;
  for (const Piece& p : pieces) {
    segments.push_back({at, p.count, p.mask, p.name, false});
    contracts.push_back(p.contract);
    at += p.count;
  }
  auto layout = make_layout(std::move(segments), at);
  EXPECT_TRUE(layout) << layout.error().text;
  return std::make_shared<const collective::MaskedLayout>(
      collective::make_masked_layout(std::move(*layout), std::move(contracts)));
}

// Keeps every element whose index leaves `kept` of `of`.
[[nodiscard]] inline MaskedPtr striped(uint64_t count, uint64_t kept, uint64_t of,
                                       collective::Contract contract, const char* name = "weight") {
  return layout_of(
      {{count, mask_of(count, [&](uint64_t i) { return i % of < kept; }), contract, name}});
}

[[nodiscard]] inline collective::CallSpec float_call(
    const std::vector<float>& send, std::vector<float>& recv, MaskedPtr masked = nullptr,
    Op op = Op::sum, collective::Scope scope = collective::Scope::world) {
  collective::CallSpec spec;
  spec.send = send.data();
  spec.recv = recv.data();
  spec.count = send.size();
  spec.op = op;
  spec.scope = scope;
  spec.masked = std::move(masked);
  return spec;
}

[[nodiscard]] inline uint32_t bits_of(float f) { return std::bit_cast<uint32_t>(f); }
inline constexpr uint32_t kCanonicalNan = 0x7FC00000;

// Runs `spec` and fails the test where the call fails.
inline void must(collective::Comm& comm, const collective::CallSpec& spec) {
  const auto result = comm.all_reduce(spec);
  ASSERT_TRUE(result) << "rank " << comm.rank() << ": " << result.error().text;
}

}  // namespace prunex::test
