// SPDX-License-Identifier: Apache-2.0
// Plans that the device makes from keep vectors, emulated between the scans (which are CUB's):
// what they pack, count and expand is what the host's compiled masks do.
#include "kernels/cuda/keeps.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/cuda/lower_keeps.h"
#include "kernels/pack.h"
#include "tests/cuda/emulate.h"
#include "tests/cuda/emulate_keeps.h"
#include "tests/cuda/keep_bucket.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

TEST(CudaKeeps, pack_and_unpack_as_compiled_masks) {
  Rng rng(1);
  constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i8};
  for (int round = 0; round < 150; ++round) {
    const KeepBucket bucket = random_keep_bucket(rng);
    const uint32_t tile = uint32_t{32} << below(rng, 10);
    const auto lowered = cuda::lower_keeps(bucket.tensors, tile);
    ASSERT_TRUE(lowered) << lowered.error().text;
    const cuda::Lowered plan = emulate_keeps(*lowered, bucket.keeps.data());
    const Layout& layout = bucket.layout;
    ASSERT_EQ(plan.count, layout.count);
    ASSERT_EQ(plan.kept, layout.kept);
    uint64_t at = 0;
    for (size_t t = 0; t < plan.tiles.size(); ++t) {
      ASSERT_EQ(plan.tiles[t].elem, at);
      ASSERT_EQ(lowered->tiles.tiles[t].elem, at);
      ASSERT_LE(plan.tiles[t].count, tile);
      at += plan.tiles[t].count;
    }
    ASSERT_EQ(at, layout.count);

    const DType type = kTypes[below(rng, 5)];
    const size_t size = size_of(type);
    std::vector<std::byte> buffer(layout.count * size + 1);
    for (std::byte& b : buffer) {
      b = static_cast<std::byte>(below(rng, 3) == 0 ? below(rng, 60) : 0);
    }
    const uint64_t begin = below(rng, layout.kept + 1);
    const Slice s = slice(layout, begin, begin + below(rng, layout.kept - begin + 1));
    const size_t bytes = (s.kept_end - s.kept_begin) * size;
    std::vector<std::byte> want(bytes + 1), got(bytes + 1);
    AuditCount dropped;
    pack(layout, type, buffer.data(), s, want.data(), &dropped);
    want.resize(bytes);
    const cuda::Range range{s.elem_begin, s.elem_end, s.kept_begin};
    cuda::AuditRecord record;
    emulate_pack({3, 64}, plan, range, type, buffer.data(), got.data(), &record);
    got.resize(bytes);
    ASSERT_EQ(got, want) << "round " << round << ", tiles of " << tile;
    EXPECT_EQ(record.lossless, dropped.lossless);
    EXPECT_EQ(record.projected, dropped.projected);
    std::vector<std::byte> back(buffer.size(), std::byte{0xa5}), want_back(back);
    want.push_back(std::byte{0});
    unpack(layout, type, want.data(), s, want_back.data());
    emulate_unpack({3, 64}, plan, range, type, want.data(), back.data());
    ASSERT_EQ(back, want_back) << "round " << round << ", tiles of " << tile;
  }
}

TEST(CudaKeeps, what_cannot_be_lowered_is_named) {
  cuda::KeepTensor a, b;
  a.rows = 4;
  a.groups = 8;
  b.offset = 31;
  const cuda::KeepTensor gap[] = {a, b};
  auto lowered = cuda::lower_keeps(gap, 1024);
  ASSERT_FALSE(lowered);
  EXPECT_NE(lowered.error().text.find("parameter 1 begins at element 31"), std::string::npos)
      << lowered.error().text;
  for (const uint32_t tile : {0u, 100u, 2 * cuda::kMaxTile}) {
    EXPECT_FALSE(cuda::lower_keeps({gap, 1}, tile)) << tile;
  }
  a.repeat = a.groups = a.inner = 1u << 31;
  EXPECT_FALSE(cuda::lower_keeps({&a, 1}, 1024)) << "2^93 columns";
  a.repeat = a.inner = 1;
  a.rows = 1u << 30;
  EXPECT_FALSE(cuda::lower_keeps({&a, 1}, 1024)) << "2^61 elements";
  cuda::KeepTensor wide;
  wide.groups = uint32_t{1} << 31;
  wide.inner = 2;
  EXPECT_TRUE(cuda::lower_keeps({&wide, 1}, cuda::kMaxTile)) << "2^32 columns, all kept";
  wide.group_keep = 0;
  EXPECT_FALSE(cuda::lower_keeps({&wide, 1}, cuda::kMaxTile)) << "whose ranks have 32 bits";
  const auto none = cuda::lower_keeps({}, 1024);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->places.size(), 0u);
}

}  // namespace
}  // namespace prunex::test
