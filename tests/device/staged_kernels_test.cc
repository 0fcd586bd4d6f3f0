// SPDX-License-Identifier: Apache-2.0
// Messages of device memory that masks and zeros make smaller: the kernels pack and expand them,
// the host only when they cannot, and nothing waits.
#include <gtest/gtest.h>

#include <memory>

#include "tests/device/staged_mask.h"

namespace prunex::test {
namespace {

struct TypeOf {
  prunex_dtype_t type;
  size_t element;
};
constexpr TypeOf kTypes[] = {{PRUNEX_FLOAT32, 4}, {PRUNEX_FLOAT16, 2}, {PRUNEX_BFLOAT16, 2},
                             {PRUNEX_FLOAT64, 8}, {PRUNEX_INT8, 1},    {PRUNEX_INT32, 4}};

TEST_F(StagedKernels, random_masks_types_and_places) {
  connect();
  Rng rng(1);
  for (int round = 0; round < 60; ++round) {
    const TypeOf t = kTypes[below(rng, 6)];
    const size_t columns = 1 + below(rng, 900), rows = 40 + below(rng, 3'000'000 / columns / 8);
    // Tensors lie on whole elements, as allocators place them; messages begin anywhere in them.
    const size_t base = below(rng, 64) * t.element;
    StagedMask mask(from_.at(base), t.type, t.element, rows, columns, 0.6, rng);
    for (int message = 0; message < 3; ++message) {
      const size_t elements = rows * columns;
      const size_t length = std::min(elements, 8192 + below(rng, elements));
      const size_t offset = below(rng, elements - length + 1);
      const Bytes data = mask.data(offset * t.element, length * t.element,
                                   static_cast<uint32_t>(round * 10 + message));
      const Seen before;
      exchange(data, base + offset * t.element, below(rng, 500) * t.element);
      expect_nothing_made(before);
      if (sent(nccl::WireKind::masked, before) == 1) {
        expect_ways(before, 1, 1, 0);
        EXPECT_GT(fake_kernels().packs, before.kernels.packs);
        EXPECT_GT(fake_kernels().unpacks, before.kernels.unpacks);
      }
      if (HasFailure()) {
        FAIL() << rows << " x " << columns << " of " << t.element << ", " << length << " from "
               << offset;
      }
    }
  }
  EXPECT_GT(nccl::all_totals().sent[2].messages, 100u);
}

// Buffers that are no multiple of the element's size.
TEST_F(StagedKernels, places_off_the_elements) {
  connect();
  Rng rng(2);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 200, 100, 0.5, rng);
  for (const size_t to : {1, 2, 3, 5, 6, 7}) {
    const Seen before;
    exchange(mask.data(0, mask.bytes(), 1), 0, to);
    expect_ways(before, 1, 1, 0);
  }
}

TEST_F(StagedKernels, what_breaks_its_mask_goes_raw) {
  connect();
  Rng rng(3);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 300, 1000, 0.5, rng);  // two frames
  const Bytes good = mask.data(0, mask.bytes(), 1);
  exchange(good, 0, 0);
  std::vector<size_t> dropped;
  for (size_t i = 0; i < mask.bytes() / 4; ++i) {
    if (!mask.keeps(i)) {
      dropped.push_back(i);
    }
  }
  for (const size_t i : {dropped.front(), dropped[dropped.size() / 2], dropped.back()}) {
    Bytes bad = good;
    bad[i * 4 + 3] = std::byte{0x80};  // -0.0: bytes are tested, not values
    const Seen before;
    const uint64_t violations = mask.violations();
    exchange(bad, 0, 8);
    EXPECT_EQ(mask.violations(), violations + 1);
    EXPECT_EQ(nccl::all_totals().violated, before.totals.violated + 1);
    EXPECT_EQ(sent(nccl::WireKind::raw, before), 1u);
    expect_ways(before, 1, 0, 2);
    expect_nothing_made(before);
  }
  const Seen before;
  exchange(good, 0, 0);
  expect_ways(before, 1, 1, 0);
}

TEST_F(StagedKernels, zero_blocks_without_a_mask) {
  connect();
  Rng rng(4);
  for (int round = 0; round < 60; ++round) {
    const size_t bytes = 4096 + below(rng, round % 2 == 0 ? 70'000 : (size_t{1} << 20) - 4096);
    Bytes data = pattern(bytes, static_cast<uint32_t>(round));
    const uint64_t zeros = 1 + below(rng, 4);  // of four pieces
    for (size_t at = 0; at < bytes; at += 640) {
      if (below(rng, 4) < zeros) {
        std::fill_n(data.begin() + static_cast<ptrdiff_t>(at), std::min<size_t>(640, bytes - at),
                    std::byte{0});
      }
    }
    const Seen before;
    exchange(data, below(rng, 300), below(rng, 300));
    expect_nothing_made(before);
    EXPECT_EQ(fake_kernels().block_packs, before.kernels.block_packs + 1);
    if (sent(nccl::WireKind::zero_block, before) == 1) {
      expect_ways(before, 1, 1, 0);
      EXPECT_EQ(fake_kernels().block_unpacks, before.kernels.block_unpacks + 1);
    } else {
      expect_ways(before, 1, 0, 2);  // it would not have become smaller
    }
    if (HasFailure()) {
      FAIL() << bytes << " bytes, round " << round;
    }
  }
}

// Longer than one frame: packed one after the other, those that are dense among them stored.
TEST_F(StagedKernels, long_messages_without_a_mask) {
  connect();
  constexpr size_t kFrame = size_t{1} << 20;
  Rng rng(17);
  for (const size_t bytes :
       {2 * kFrame + 77, 2 * kFrame, kFrame + 1, kFrame + 127, 3 * kFrame + 5, 4 * kFrame - 1000}) {
    for (uint32_t dense = 0; dense < 8; ++dense) {
      Bytes data = pattern(bytes, dense, true);
      for (size_t frame = 0; frame * kFrame < bytes; ++frame) {
        if ((dense >> frame & 1) != 0) {
          const size_t length = std::min(kFrame, bytes - frame * kFrame);
          const Bytes full = pattern(length, 7 * dense);
          std::copy(full.begin(), full.end(),
                    data.begin() + static_cast<ptrdiff_t>(frame * kFrame));
        }
      }
      // Blocks of a random number, so that later frames begin anywhere.
      const size_t odd = below(rng, std::min(bytes, kFrame) / 256) * 256;
      std::fill_n(data.begin(), (dense & 1) != 0 ? 0 : odd, std::byte{0});
      const Seen before;
      exchange(data, below(rng, 200), below(rng, 200));
      expect_nothing_made(before);
      const bool packed = sent(nccl::WireKind::zero_block, before) == 1;
      EXPECT_TRUE(packed || dense != 0);
      expect_ways(before, 1, packed ? 1 : 0, packed ? 0 : 2);
      if (HasFailure()) {
        FAIL() << bytes << " bytes, dense " << dense;
      }
    }
  }
}

TEST_F(StagedKernels, dense_messages_are_looked_at_ever_less_often) {
  ::setenv("PRUNEX_NET_MODE", "auto", 1);
  connect();
  const Seen before;
  for (uint32_t i = 0; i < 130; ++i) {
    exchange(pattern(20'000, i), 0, 0);
  }
  const int looks = fake_kernels().block_packs - before.kernels.block_packs;
  EXPECT_GE(looks, 5);
  EXPECT_LE(looks, 8) << "each look in vain is followed by twice as many messages without";
}

TEST_F(StagedKernels, done_waits_for_the_kernels) {
  connect();
  Rng rng(5);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT16, 2, 100, 500, 0.5, rng);
  for (const bool masked : {true, false}) {
    const Bytes data = masked ? mask.data(0, mask.bytes(), 1) : pattern(100'000, 1, true);
    const size_t from = masked ? 0 : size_t{1} << 20;
    std::copy(data.begin(), data.end(), from_.at(from));
    std::memset(to_.at(), 0xEE, to_.size());
    const Seen before;
    hold_copies(true);
    void *const receiving = irecv(0, data.size()), *const sending = isend(from, data.size());
    int sent_done = 0, received = 0;
    for (int i = 0; i < 500; ++i) {
      ASSERT_EQ(net().test(sending, &sent_done, nullptr), nccl::kSuccess);
      ASSERT_EQ(net().test(receiving, &received, nullptr), nccl::kSuccess);
      ASSERT_TRUE(sent_done == 0 && received == 0) << "not even packed";
    }
    hold_copies_to(to_.at(), to_.size());
    sent_but_not_received(sending, receiving);
    hold_copies(false);
    wait_for([&] {
      return net().test(receiving, &received, nullptr) != nccl::kSuccess || received != 0;
    });
    EXPECT_TRUE(to_.holds(data, 0));
    expect_ways(before, 1, 1, 0);
    expect_nothing_made(before);
  }
}

// Everything at once: messages of many masks (more than a connection keeps), without a mask, too
// small, dense; some break their promise.
TEST_F(StagedKernels, many_masks_in_flight_arrive_in_order) {
  connect();
  Rng rng(6);
  constexpr size_t kEach = 40'000;
  std::vector<std::unique_ptr<StagedMask>> masks;
  for (size_t i = 0; i < 90; ++i) {
    masks.push_back(
        std::make_unique<StagedMask>(from_.at(i * kEach), PRUNEX_FLOAT32, 4, 100, 100, 0.5, rng));
  }
  for (uint32_t round = 0; round < 25; ++round) {
    std::vector<Bytes> data;
    std::vector<size_t> places;
    for (uint32_t i = 0; i < nccl::kMaxRequests; ++i) {
      // Half of the time the same few masks, which the other end then has.
      size_t place = below(rng, 2) == 0 ? below(rng, 5) : below(rng, 100);
      while (std::find(places.begin(), places.end(), place) != places.end()) {
        place = (place + 1) % 100;
      }
      places.push_back(place);
      Bytes one = place < masks.size() ? masks[place]->data(0, kEach, round * 100 + i)
                                       : pattern(kEach, i, place % 2 == 0);
      if (below(rng, 8) == 0) {
        one[below(rng, kEach)] = std::byte{7};
      }
      one.resize(below(rng, 10) == 0 ? 1000 : kEach);
      std::copy(one.begin(), one.end(), from_.at(place * kEach));
      data.push_back(std::move(one));
    }
    std::vector<Message> all;
    for (size_t i = 0; i < data.size(); ++i) {
      all.push_back({places[i] * kEach, i * kEach, data[i].size(), kEach});
    }
    (void)exchange_all(all);
    for (size_t i = 0; i < data.size(); ++i) {
      ASSERT_TRUE(to_.holds(data[i], i * kEach)) << "round " << round << ", message " << i;
    }
  }
}

// More than the pinned memory holds: those behind wait for their turn, at either end.
TEST_F(StagedKernels, more_than_there_is_room_for) {
  connect();
  Rng rng(7);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 1000, 1000, 0.8, rng);
  const Bytes data = mask.data(0, mask.bytes(), 1);
  std::copy(data.begin(), data.end(), from_.at());
  exchange(data, 0, 0);
  const Seen before;
  EXPECT_GT(exchange_all(std::vector<Message>(12, {0, 0, data.size(), data.size()})), 5u);
  EXPECT_TRUE(to_.holds(data, 0));
  EXPECT_EQ(nccl::all_totals().packed.messages - before.totals.packed.messages, 12u);
  expect_nothing_made(before);
}

// Masks that come, change and go while messages are on their way; plans do not pile up.
TEST_F(StagedKernels, masks_change_between_and_during_messages) {
  connect();
  Rng rng(8);
  int most = 0;
  StagedMask one(from_.at(0), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
  for (uint32_t round = 0; round < 40; ++round) {
    StagedMask other(from_.at(size_t{1} << 20), PRUNEX_FLOAT16, 2, 128, 256, 0.5, rng);
    const Bytes data = one.data(0, one.bytes(), round);
    std::copy(data.begin(), data.end(), from_.at());
    hold_copies(true);
    void *const receiving = irecv(0, data.size()), *const sending = isend(0, data.size());
    one.update(0.5, rng);
    hold_copies(false);
    ASSERT_EQ(finish(sending, receiving), static_cast<int>(data.size()));
    ASSERT_TRUE(to_.holds(data, 0));
    const Seen before;
    exchange(other.data(0, other.bytes(), round), size_t{1} << 20, 0);
    exchange(one.data(0, one.bytes(), round), 0, 0);
    expect_ways(before, 2, 2, 0);
    most = std::max(most, fake_counts().allocations);
    if (round == 2) {
      most = fake_counts().allocations;
    } else if (round > 2) {
      ASSERT_LE(fake_counts().allocations, most + 4) << "plans pile up";
    }
  }
}

TEST_F(StagedKernels, masks_registered_before_the_connection) {
  Rng rng(9);
  StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
  connect();
  const Seen before;
  exchange(mask.data(0, mask.bytes(), 1), 0, 0);
  expect_ways(before, 1, 1, 0);
}

TEST_F(StagedKernels, equal_masks_share_a_plan_that_outlives_the_first) {
  connect();
  const int plain = fake_counts().allocations;
  const auto make = [&](size_t at) {
    Rng rng(10);  // the same each time
    return std::make_unique<StagedMask>(from_.at(at), PRUNEX_FLOAT32, 4, 128, 256, 0.5, rng);
  };
  auto first = make(0);
  const int one = fake_counts().allocations;
  EXPECT_GT(one, plain);
  auto second = make(size_t{1} << 20);
  EXPECT_EQ(fake_counts().allocations, one) << "a plan of its own";
  first.reset();
  first = make(size_t{2} << 20);
  const Seen before;
  exchange(second->data(0, second->bytes(), 1), size_t{1} << 20, 0);
  expect_ways(before, 1, 1, 0);
}

// Others' kernels may be on the default stream, and wait for what this one's caller sends.
TEST_F(StagedKernels, the_default_stream_is_not_waited_for) {
  const int before = fake_counts().defaults;
  connect();
  Rng rng(3);
  const StagedMask mask(from_.at(0), PRUNEX_FLOAT32, 4, 200, 100, 0.5, rng);
  exchange(mask.data(0, mask.bytes(), 1), 0, 0);
  exchange(pattern(50'000, 1, true), size_t{1} << 20, 0);
  EXPECT_EQ(fake_counts().defaults, before);
}

TEST_F(StagedKernels, metrics_say_which_way) {
  connect();
  exchange(pattern(50'000, 1, true), 0, 0);
  const std::string text = nccl::metrics_text();
  for (const char* const way : {"packed", "unpacked", "copied"}) {
    EXPECT_NE(text.find(strf("prunex_net_device_messages_total{way=\"%s\"} ", way)),
              std::string::npos)
        << text;
  }
  EXPECT_NE(nccl::summary(nccl::all_totals()).find("device memory: packed "), std::string::npos);
  prunex_net_stats_t stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(prunex_net_stats(&stats), PRUNEX_SUCCESS) << prunex_last_error();
  const nccl::Totals totals = nccl::all_totals();
  EXPECT_GT(stats.device_packed, 0u);
  EXPECT_EQ(stats.device_packed, totals.packed.messages);
  EXPECT_EQ(stats.device_unpacked, totals.unpacked.messages);
  EXPECT_EQ(stats.device_copied, totals.staged.messages);
}

}  // namespace
}  // namespace prunex::test
