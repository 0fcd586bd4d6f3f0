// SPDX-License-Identifier: Apache-2.0
// What registration refuses: the right code, and a text with the numbers in it.
#include <array>
#include <limits>
#include <set>

#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

struct Fixture {
  prunex_mask_t mask = 77;
  int64_t sizes[4] = {4, 3, 2, 2};
  uint8_t filters[4] = {1, 0, 1, 0};
  prunex_tensor_t tensor{sizeof(prunex_tensor_t), PRUNEX_FLOAT32, 4, sizes, nullptr};
  prunex_mask_desc_t desc{};
  Fixture() {
    desc.struct_size = sizeof desc;
    desc.name = "layer1.0.conv2.weight";
    desc.declared_kept = -1;
    desc.keep[0] = filters;
    desc.keep_len[0] = 4;
  }
  [[nodiscard]] prunex_result_t register_it(const void* base = nullptr) {
    return prunex_register_mask(base, &tensor, &desc, &mask);
  }
};

// The named error, and no handle.
#define EXPECT_REFUSED(fixture, word)                                           \
  do {                                                                          \
    (fixture).mask = 77;                                                        \
    EXPECT_FAILS((fixture).register_it(), PRUNEX_ERROR_INVALID_ARGUMENT, word); \
    EXPECT_EQ((fixture).mask, 0u);                                              \
  } while (0)

TEST(RegisterMask, PointersAndSizes) {
  Fixture f;
  EXPECT_FAILS(prunex_register_mask(nullptr, &f.tensor, &f.desc, nullptr),
               PRUNEX_ERROR_INVALID_ARGUMENT, "out");
  EXPECT_FAILS(prunex_register_mask(nullptr, nullptr, &f.desc, &f.mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "tensor");
  EXPECT_FAILS(prunex_register_mask(nullptr, &f.tensor, nullptr, &f.mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "desc");
  for (const size_t size : {size_t{0}, sizeof f.tensor - 8, sizeof f.tensor + 8}) {
    f.tensor.struct_size = size;
    EXPECT_REFUSED(f, "tensor.struct_size is " + std::to_string(size));
  }
  f.tensor.struct_size = sizeof f.tensor;
  f.desc.struct_size = 1;
  EXPECT_REFUSED(f, "desc.struct_size is 1,");
}

TEST(RegisterMask, Tensors) {
  Fixture f;
  f.tensor.ndim = PRUNEX_MAX_DIMS + 1;
  EXPECT_REFUSED(f, "ndim 9");
  f.tensor.ndim = -1;
  EXPECT_REFUSED(f, "ndim -1");
  f.tensor.ndim = 4;
  f.tensor.sizes = nullptr;
  EXPECT_REFUSED(f, "sizes");
  f.tensor.sizes = f.sizes;
  f.sizes[1] = -3;
  EXPECT_REFUSED(f, "-3");
  f.sizes[1] = 3;
  const std::array<int64_t, 4> wrong = {12, 4, 2, 2};
  f.tensor.strides = wrong.data();
  EXPECT_REFUSED(f, "12, 4, 2, 2");
  const std::array<int64_t, 4> channels_last = {12, 1, 6, 3};
  f.tensor.strides = channels_last.data();
  EXPECT_OK(f.register_it());
  EXPECT_OK(prunex_unregister_mask(f.mask));
}

TEST(RegisterMask, Enums) {
  for (const int bad : {-1, 10, 1 << 20}) {
    Fixture f;
    std::memcpy(&f.tensor.dtype, &bad, sizeof bad);
    EXPECT_REFUSED(f, "dtype " + std::to_string(bad));
    Fixture g;
    std::memcpy(&g.desc.kind, &bad, sizeof bad);
    EXPECT_REFUSED(g, "kind " + std::to_string(bad));
    Fixture h;
    std::memcpy(&h.desc.contract, &bad, sizeof bad);
    EXPECT_REFUSED(h, "contract " + std::to_string(bad));
  }
}

TEST(RegisterMask, DimsNameTheParameterAndBothLengths) {
  Fixture f;
  f.desc.keep_len[0] = 5;
  EXPECT_REFUSED(f, "keep[0] has 5 entries, dimension 0 has 4");
  f.desc.keep_len[0] = 4;
  f.desc.keep[5] = f.filters;
  f.desc.keep_len[5] = 4;
  EXPECT_REFUSED(f, "keep[5]");
  f.desc.keep[5] = nullptr;
  f.desc.declared_kept = 23;
  EXPECT_REFUSED(f, "23");
  EXPECT_NE(std::string(prunex_last_error()).find("24"), std::string::npos) << prunex_last_error();
  EXPECT_NE(std::string(prunex_last_error()).find("layer1.0.conv2.weight"), std::string::npos);
  f.desc.declared_kept = -2;
  EXPECT_REFUSED(f, "-2");
  f.desc.declared_kept = 24;
  EXPECT_OK(f.register_it());
  EXPECT_OK(prunex_unregister_mask(f.mask));
}

// A mask of 1000 for a buffer of 1001: caught here, not by a hang of the peers.
TEST(Reports, E2_mask_length_against_element_count) {
  VectorMask m(keep_of(1000, 1, 2));
  m.size = 1001;
  prunex_mask_t mask = 0;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "1000");
  EXPECT_NE(std::string(prunex_last_error()).find("1001"), std::string::npos)
      << prunex_last_error();
  m.size = 1000;
  m.desc.declared_kept = 499;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "499");
  EXPECT_NE(std::string(prunex_last_error()).find("500"), std::string::npos) << prunex_last_error();
}

TEST(RegisterMask, Cells) {
  VectorMask m(keep_of(12, 1, 2));
  prunex_mask_t mask = 0;
  m.desc.cells = nullptr;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "cells");
  m.desc.cells_len = 0;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "12");
  m.desc.cells = m.cells.data();
  m.desc.cells_len = 12;
  m.desc.kind = PRUNEX_MASK_NM;
  m.desc.nm_n = 1;
  m.desc.nm_m = 5;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "5");
  m.desc.nm_m = 0;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "0");
  m.desc.nm_m = 4;  // one of two is kept: two of four
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "2");
  m.desc.nm_n = 2;
  for (const int dim : {-1, 1, 100}) {
    m.desc.nm_dim = dim;
    EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
                 PRUNEX_ERROR_INVALID_ARGUMENT, std::to_string(dim));
  }
  m.desc.nm_dim = 0;
  EXPECT_OK(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask));
  EXPECT_OK(prunex_unregister_mask(mask));
  m.desc.kind = PRUNEX_MASK_BLOCKS;
  m.desc.block[0] = 5;  // three tiles
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "3");
  m.desc.block[0] = -1;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "-1");
}

TEST(RegisterMask, Ranges) {
  VectorMask m(keep_of(100, 1, 2));
  m.desc.kind = PRUNEX_MASK_RANGES;
  prunex_mask_t mask = 0;
  m.desc.num_ranges = 1;
  EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
               PRUNEX_ERROR_INVALID_ARGUMENT, "ranges");
  const auto refused = [&](std::vector<prunex_range_t> ranges, const char* word) {
    m.desc.ranges = ranges.data();
    m.desc.num_ranges = ranges.size();
    EXPECT_FAILS(prunex_register_mask(nullptr, &m.tensor, &m.desc, &mask),
                 PRUNEX_ERROR_INVALID_ARGUMENT, word);
  };
  refused({{90, 11}}, "100");
  refused({{5, UINT64_MAX}}, "100");
  refused({{0, 10}, {9, 5}}, "9");
  refused({{50, 10}, {0, 5}}, "60");
}

// Where the buffer would end beyond the address space.
TEST(RegisterMask, BuffersThatDoNotFitAnAddressSpace) {
  VectorMask m({});
  m.size = int64_t{1} << 62;
  m.desc.kind = PRUNEX_MASK_RANGES;
  const prunex_range_t range = {0, 1};
  m.desc.ranges = &range;
  m.desc.num_ranges = 1;
  prunex_mask_t mask = 0;
  EXPECT_FAILS(prunex_register_mask(&m, &m.tensor, &m.desc, &mask), PRUNEX_ERROR_INVALID_ARGUMENT,
               std::to_string(m.size));
  m.size = int64_t{1} << 61;
  m.tensor.dtype = PRUNEX_FLOAT64;
  EXPECT_FAILS(prunex_register_mask(&m, &m.tensor, &m.desc, &mask), PRUNEX_ERROR_INVALID_ARGUMENT,
               std::to_string(m.size));
}

TEST(UpdateMask, Refusals) {
  Fixture f;
  ASSERT_OK(f.register_it());
  EXPECT_FAILS(prunex_update_mask(f.mask, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "desc");
  EXPECT_FAILS(prunex_update_mask(f.mask + 1000, &f.desc), PRUNEX_ERROR_INVALID_HANDLE,
               std::to_string(f.mask + 1000));
  EXPECT_FAILS(prunex_update_mask(0, &f.desc), PRUNEX_ERROR_INVALID_HANDLE, "0");
  f.desc.keep_len[0] = 3;
  EXPECT_FAILS(prunex_update_mask(f.mask, &f.desc), PRUNEX_ERROR_INVALID_ARGUMENT, "3");
  f.desc.keep_len[0] = 4;
  // A refused update leaves the mask as it was; a good one changes it.
  EXPECT_EQ(info_of(f.mask).kept, 24u);
  const uint64_t digest = info_of(f.mask).digest;
  f.filters[3] = 1;
  f.desc.epoch = 12;
  EXPECT_EQ(info_of(f.mask).digest, digest) << "a mask is copied";
  EXPECT_OK(prunex_update_mask(f.mask, &f.desc));
  EXPECT_EQ(info_of(f.mask).kept, 36u);
  EXPECT_EQ(info_of(f.mask).count, 48u);
  EXPECT_EQ(info_of(f.mask).epoch, 12u);
  EXPECT_NE(info_of(f.mask).digest, digest);
  EXPECT_OK(prunex_unregister_mask(f.mask));
}

TEST(Handles, AreNeverReusedAndDieOnce) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 50; ++i) {
    Fixture f;
    ASSERT_OK(f.register_it());
    EXPECT_NE(f.mask, 0u);
    EXPECT_TRUE(seen.insert(f.mask).second);
    prunex_layout_t layout = 0;
    const prunex_segment_t segment{0, 48, f.mask};
    ASSERT_OK(prunex_layout_create(&segment, 1, 48, &layout));
    EXPECT_TRUE(seen.insert(layout).second);
    EXPECT_OK(prunex_unregister_mask(f.mask));
    EXPECT_FAILS(prunex_unregister_mask(f.mask), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(f.mask));
    prunex_mask_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_FAILS(prunex_mask_info(f.mask, &info), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(f.mask));
    // The layout keeps the mask.
    prunex_layout_info_t about{};
    about.struct_size = sizeof about;
    EXPECT_OK(prunex_layout_info(layout, &about));
    EXPECT_EQ(about.kept, 24u);
    EXPECT_OK(prunex_layout_destroy(layout));
    EXPECT_FAILS(prunex_layout_destroy(layout), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(layout));
    EXPECT_FAILS(prunex_layout_info(layout, &about), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(layout));
  }
  prunex_mask_info_t info{};
  EXPECT_FAILS(prunex_mask_info(1, &info), PRUNEX_ERROR_INVALID_ARGUMENT, "struct_size is 0");
  EXPECT_FAILS(prunex_mask_info(1, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "info");
}

TEST(Layouts, Refusals) {
  Fixture f;
  ASSERT_OK(f.register_it());
  prunex_layout_t layout = 5;
  const auto refused = [&](std::vector<prunex_segment_t> segments, uint64_t count,
                           prunex_result_t code, const char* word) {
    layout = 5;
    EXPECT_FAILS(prunex_layout_create(segments.data(), segments.size(), count, &layout), code,
                 word);
    EXPECT_EQ(layout, 0u);
  };
  refused({{0, 47, f.mask}}, 100, PRUNEX_ERROR_INVALID_ARGUMENT, "47");
  refused({{0, 47, f.mask}}, 100, PRUNEX_ERROR_INVALID_ARGUMENT, "48");
  refused({{60, 48, f.mask}}, 100, PRUNEX_ERROR_INVALID_ARGUMENT, "60");
  refused({{0, 50, 0}, {49, 48, f.mask}}, 100, PRUNEX_ERROR_INVALID_ARGUMENT, "49");
  refused({{UINT64_MAX - 10, 48, f.mask}}, 100, PRUNEX_ERROR_INVALID_ARGUMENT, "100");
  refused({{0, 48, f.mask + 999}}, 100, PRUNEX_ERROR_INVALID_HANDLE,
          std::to_string(f.mask + 999).c_str());
  EXPECT_FAILS(prunex_layout_create(nullptr, 1, 10, &layout), PRUNEX_ERROR_INVALID_ARGUMENT,
               "segments");
  EXPECT_FAILS(prunex_layout_create(nullptr, 0, 10, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "out");
  EXPECT_FAILS(prunex_layout_info(1, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "info");
  // Segments in any order with gaps; none at all is a dense buffer.
  const prunex_segment_t two[] = {{60, 48, f.mask}, {3, 7, 0}};
  ASSERT_OK(prunex_layout_create(two, 2, 120, &layout));
  prunex_layout_info_t info{};
  info.struct_size = sizeof info;
  EXPECT_OK(prunex_layout_info(layout, &info));
  EXPECT_EQ(info.count, 120u);
  EXPECT_EQ(info.kept, 120u - 24);
  const uint64_t digest = info.digest;
  f.filters[0] = 0;
  EXPECT_OK(prunex_update_mask(f.mask, &f.desc));
  EXPECT_OK(prunex_layout_info(layout, &info));
  EXPECT_EQ(info.kept, 120u - 36) << "layouts follow their masks";
  EXPECT_NE(info.digest, digest);
  EXPECT_OK(prunex_layout_destroy(layout));
  ASSERT_OK(prunex_layout_create(nullptr, 0, 10, &layout));
  EXPECT_OK(prunex_layout_info(layout, &info));
  EXPECT_EQ(info.kept, 10u);
  EXPECT_OK(prunex_layout_destroy(layout));
  EXPECT_OK(prunex_unregister_mask(f.mask));
}

}  // namespace
}  // namespace prunex::test
