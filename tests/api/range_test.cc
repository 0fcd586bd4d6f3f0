// SPDX-License-Identifier: Apache-2.0
// Pieces of registered tensors found by address: whoever is handed a part of a tensor (NCCL cuts
// long ones) learns the mask and where in it the part lies, or that there is none.
#include <thread>

#include "plugin/api/registry.h"
#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

using api::Lookup;
using api::RangeHit;
using api::Registry;

constexpr size_t kCount = 1000;

class Range : public ::testing::Test {
 protected:
  Range() : mask_(keep_of(kCount, 3, 10)), data_(3 * kCount) {
    EXPECT_OK(prunex_register_mask(tensor(), &mask_.tensor, &mask_.desc, &id_));
  }
  ~Range() override {
    if (id_ != 0) {
      EXPECT_OK(prunex_unregister_mask(id_));
    }
  }
  [[nodiscard]] float* tensor() { return data_.data() + kCount; }  // with room on both sides
  [[nodiscard]] Lookup find(const void* at, uint64_t bytes) {
    return Registry::instance().find_range(at, bytes, &hit_);
  }
  VectorMask mask_;
  std::vector<float> data_;
  prunex_mask_t id_ = 0;
  RangeHit hit_;
};

TEST_F(Range, the_whole_tensor_and_every_piece_of_it) {
  ASSERT_EQ(find(tensor(), kCount * 4), Lookup::hit);
  EXPECT_EQ(hit_.byte_offset, 0u);
  EXPECT_EQ(hit_.element_bytes, 4u);
  EXPECT_EQ(hit_.type, DType::f32);
  EXPECT_EQ(hit_.count, kCount);
  ASSERT_NE(hit_.version, nullptr);
  EXPECT_EQ(hit_.version->mask->count, kCount);
  EXPECT_EQ(hit_.version->mask->kept, 300u);
  ASSERT_NE(hit_.violations, nullptr);
  for (const size_t begin : {size_t{0}, size_t{1}, size_t{399}, kCount - 1}) {
    for (const size_t n : {size_t{1}, kCount - begin}) {
      ASSERT_EQ(find(tensor() + begin, n * 4), Lookup::hit);
      EXPECT_EQ(hit_.byte_offset, begin * 4);
    }
  }
  // Also where no element begins: whoever needs elements looks at the offset.
  ASSERT_EQ(find(reinterpret_cast<const char*>(tensor()) + 3, 5), Lookup::hit);
  EXPECT_EQ(hit_.byte_offset, 3u);
}

TEST_F(Range, outside_is_a_miss_and_half_outside_is_stale) {
  EXPECT_EQ(find(data_.data(), kCount * 4), Lookup::miss);
  EXPECT_EQ(find(tensor() + kCount, kCount * 4), Lookup::miss);
  EXPECT_EQ(find(tensor() - 1, 8), Lookup::stale);
  EXPECT_EQ(find(tensor() + kCount - 1, 8), Lookup::stale);
  EXPECT_EQ(find(data_.data(), data_.size() * 4), Lookup::stale);
  EXPECT_EQ(find(tensor(), 0), Lookup::miss);
  EXPECT_EQ(find(tensor() + 5, 0), Lookup::miss);
  EXPECT_EQ(find(tensor(), UINT64_MAX), Lookup::miss);  // no such range in any address space
  EXPECT_EQ(info_of(id_).misses_stale, 3u);
}

TEST_F(Range, gone_masks_are_not_found_and_new_versions_are) {
  ASSERT_EQ(find(tensor() + 7, 40), Lookup::hit);
  const auto before = hit_.version;
  VectorMask other(keep_of(kCount, 7, 10));
  EXPECT_OK(prunex_update_mask(id_, &other.desc));
  ASSERT_EQ(find(tensor() + 7, 40), Lookup::hit);
  EXPECT_EQ(hit_.version->mask->kept, 700u);
  EXPECT_EQ(before->mask->kept, 300u);  // whoever holds the old one keeps it
  EXPECT_OK(prunex_unregister_mask(id_));
  id_ = 0;
  EXPECT_NE(find(tensor() + 7, 40), Lookup::hit);
}

TEST_F(Range, neighbours_are_told_apart) {
  VectorMask other(keep_of(kCount, 1, 2));
  prunex_mask_t second = 0;
  EXPECT_OK(prunex_register_mask(tensor() + kCount, &other.tensor, &other.desc, &second));
  ASSERT_EQ(find(tensor() + kCount - 1, 4), Lookup::hit);
  EXPECT_EQ(hit_.version->mask->kept, 300u);
  ASSERT_EQ(find(tensor() + kCount, 4), Lookup::hit);
  EXPECT_EQ(hit_.version->mask->kept, 500u);
  EXPECT_EQ(hit_.byte_offset, 0u);
  EXPECT_EQ(find(tensor() + kCount - 1, 8), Lookup::stale);
  EXPECT_OK(prunex_unregister_mask(second));
}

TEST_F(Range, looking_while_masks_change) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    VectorMask a(keep_of(kCount, 1, 10)), b(keep_of(kCount, 9, 10));
    for (int i = 0; i < 200; ++i) {
      EXPECT_OK(prunex_update_mask(id_, i % 2 == 0 ? &a.desc : &b.desc));
    }
    stop = true;
  });
  while (!stop) {
    RangeHit hit;
    ASSERT_EQ(Registry::instance().find_range(tensor() + 100, 400, &hit), Lookup::hit);
    ASSERT_EQ(hit.version->mask->count, kCount);
  }
  changer.join();
}

}  // namespace
}  // namespace prunex::test
