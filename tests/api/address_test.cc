// SPDX-License-Identifier: Apache-2.0
// Rules 5 and 6: masks found by address, replaced, gone stale, changed under a call in flight.
#include <atomic>
#include <cmath>
#include <cstdio>

#include "plugin/base/log.h"
#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

// Counts warnings while it lives.
class Warnings {
 public:
  Warnings() {
    count() = 0;
    set_log_sink([](LogLevel level, const char*, int, const char*) {
      count() += level == LogLevel::warn ? 1 : 0;
    });
  }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { set_log_sink(nullptr); }
  static std::atomic<int>& count() {
    static std::atomic<int> n{0};
    return n;
  }
};

constexpr size_t kCount = 50'000;

std::vector<float> stripes(size_t n, size_t kept, size_t of, float dropped = 0) {
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i) {
    data[i] = i % of < kept ? 1 : dropped;
  }
  return data;
}

prunex_mask_t add(const void* base, VectorMask& m) {
  prunex_mask_t mask = 0;
  EXPECT_OK(prunex_register_mask(base, &m.tensor, &m.desc, &mask));
  return mask;
}

TEST(Reports, E13_a_registration_without_effect_is_noticed) {
  const Warnings warnings;
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int) {
    std::vector<float> a = stripes(kCount, 3, 10), b = stripes(kCount, 3, 10);
    VectorMask m(keep_of(kCount, 3, 10));
    const prunex_mask_t mask = add(a.data(), m);
    for (int call = 0; call < 2; ++call) {
      EXPECT_OK(sum(comm, b, b));
    }
    prunex_stats_t s = stats_of(comm);
    EXPECT_EQ(s.hits, 0u);
    EXPECT_EQ(s.misses, 2u);
    EXPECT_EQ(s.calls_compact, 0u);
    const uint64_t before = s.bytes_wire_sent;
    EXPECT_GE(before, 2 * 4 * kCount);
    EXPECT_OK(sum(comm, a, a));
    EXPECT_EQ(a[2], 2);
    EXPECT_EQ(a[3], 0);
    s = stats_of(comm);
    EXPECT_EQ(s.hits, 1u);
    EXPECT_EQ(s.calls_compact, 1u);
    EXPECT_GE(s.bytes_wire_sent - before, kCount / 10 * 3 * 4);
    EXPECT_LE(s.bytes_wire_sent - before, kCount / 10 * 3 * 4 + 1024);
    EXPECT_EQ(info_of(mask).hits, 1u);
    EXPECT_EQ(info_of(mask).misses_stale, 0u);
    EXPECT_OK(prunex_unregister_mask(mask));
  });
  EXPECT_EQ(Warnings::count(), 2);  // one of each rank
}

// DDP gives a new bucket the address of an old one: a mask by address must not be believed.
TEST(Addresses, AnotherLengthOrTypeIsStaleAndDense) {
  const Warnings warnings;
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int) {
    std::vector<float> data(kCount, 1);
    VectorMask m(keep_of(kCount, 3, 10), PRUNEX_PROJECT);
    const prunex_mask_t mask = add(data.data(), m);
    EXPECT_OK(prunex_all_reduce(comm, data.data(), data.data(), kCount - 1, PRUNEX_FLOAT32,
                                PRUNEX_SUM, 0, nullptr));
    EXPECT_EQ(data[9], 2) << "dropped although the mask is of another buffer";
    EXPECT_EQ(data[kCount - 1], 1);
    std::vector<double> wide(kCount / 2, 1);
    std::memcpy(data.data(), wide.data(), sizeof(double) * wide.size());
    EXPECT_OK(prunex_all_reduce(comm, data.data(), data.data(), kCount / 2, PRUNEX_FLOAT64,
                                PRUNEX_SUM, 0, nullptr));
    std::memcpy(wide.data(), data.data(), sizeof(double) * wide.size());
    EXPECT_EQ(wide, std::vector<double>(wide.size(), 2));
    // Inside the registered buffer, and one that begins before it.
    EXPECT_OK(prunex_all_reduce(comm, data.data() + 10, data.data() + 10, 100, PRUNEX_FLOAT32,
                                PRUNEX_MAX, 0, nullptr));
    EXPECT_EQ(stats_of(comm).stale, 3u);
    EXPECT_EQ(stats_of(comm).hits, 0u);
    EXPECT_EQ(stats_of(comm).calls_compact, 0u);
    EXPECT_EQ(info_of(mask).misses_stale, 3u);
    std::fill(data.begin(), data.end(), 1.0f);
    EXPECT_OK(sum(comm, data, data));
    EXPECT_EQ(data[9], 0);
    EXPECT_EQ(data[0], 2);
    EXPECT_EQ(stats_of(comm).hits, 1u);
    EXPECT_OK(prunex_unregister_mask(mask));
    EXPECT_OK(sum(comm, data, data));
    EXPECT_EQ(stats_of(comm).hits, 1u);
  });
}

TEST(Addresses, OutOfPlaceTheSendBufferCounts) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int) {
    std::vector<float> a = stripes(kCount, 1, 2), b(kCount, 7);
    VectorMask m(keep_of(kCount, 1, 2));
    const prunex_mask_t mask = add(a.data(), m);
    EXPECT_OK(sum(comm, a, b));
    EXPECT_EQ(stats_of(comm).hits, 1u);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(b[i], i % 2 == 0 ? 2 : 0);
    }
    EXPECT_OK(prunex_unregister_mask(mask));
  });
}

TEST(Addresses, TheSameBufferAgainReplacesTheMask) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int) {
    std::vector<float> data = stripes(kCount, 1, 10);
    VectorMask wide(keep_of(kCount, 5, 10)), narrow(keep_of(kCount, 1, 10));
    const prunex_mask_t first = add(data.data(), wide);
    const prunex_mask_t second = add(data.data(), narrow);
    EXPECT_NE(first, second);
    EXPECT_OK(sum(comm, data, data));
    const uint64_t sent = stats_of(comm).bytes_wire_sent;
    EXPECT_LE(sent, kCount / 10 * 4 + 1024) << "the earlier mask was used";
    EXPECT_EQ(info_of(second).hits, 1u);
    EXPECT_OK(prunex_unregister_mask(second));
    EXPECT_OK(sum(comm, data, data));
    EXPECT_EQ(stats_of(comm).hits, 1u);
  });
}

TEST(Addresses, OverlapsAreErrorsThatNameBothRanges) {
  std::vector<float> memory(300);
  float* const at = memory.data() + 100;
  VectorMask m(keep_of(100, 1, 2), PRUNEX_LOSSLESS, "old.weight");
  const prunex_mask_t mask = add(at, m);
  char range[64];
  std::snprintf(range, sizeof range, "[%p, %p)", static_cast<void*>(at),
                static_cast<void*>(at + 100));
  const auto refused = [&](const float* base, size_t count, prunex_dtype_t type) {
    VectorMask other(keep_of(count, 1, 2), PRUNEX_LOSSLESS, "new.weight");
    other.tensor.dtype = type;
    prunex_mask_t out = 9;
    EXPECT_FAILS(prunex_register_mask(base, &other.tensor, &other.desc, &out),
                 PRUNEX_ERROR_INVALID_ARGUMENT, range);
    EXPECT_EQ(out, 0u);
    const std::string text = prunex_last_error();
    std::snprintf(range, sizeof range, "[%p, ", static_cast<const void*>(base));
    EXPECT_NE(text.find(range), std::string::npos) << text;
    EXPECT_NE(text.find("old.weight"), std::string::npos) << text;
    EXPECT_NE(text.find("new.weight"), std::string::npos) << text;
    std::snprintf(range, sizeof range, "[%p, %p)", static_cast<void*>(at),
                  static_cast<void*>(at + 100));
  };
  refused(at, 99, PRUNEX_FLOAT32);
  refused(at, 101, PRUNEX_FLOAT32);
  refused(at, 100, PRUNEX_INT32);
  refused(at + 1, 10, PRUNEX_FLOAT32);
  refused(at + 99, 1, PRUNEX_FLOAT32);
  refused(at - 1, 2, PRUNEX_FLOAT32);
  refused(at - 50, 200, PRUNEX_FLOAT32);
  // Neighbours are welcome, and the refused ones left nothing behind.
  VectorMask before(keep_of(100, 1, 2)), after(keep_of(100, 1, 2));
  const prunex_mask_t left = add(at - 100, before), right = add(at + 100, after);
  for (const prunex_mask_t one : {mask, left, right}) {
    EXPECT_OK(prunex_unregister_mask(one));
  }
  VectorMask everything(keep_of(300, 1, 2));
  const prunex_mask_t whole = add(memory.data(), everything);
  EXPECT_OK(prunex_unregister_mask(whole));
}

// A tensor without elements lies anywhere, also where another one begins.
TEST(Addresses, EmptyTensorsAreInNobodysWay) {
  std::vector<float> memory(100);
  VectorMask none({}), all(keep_of(100, 1, 2));
  const prunex_mask_t empty = add(memory.data(), none);
  const prunex_mask_t full = add(memory.data(), all);
  const prunex_mask_t again = add(memory.data(), none);
  const prunex_mask_t inside = add(memory.data() + 5, none);
  EXPECT_OK(prunex_unregister_mask(empty));
  EXPECT_OK(prunex_unregister_mask(again));
  EXPECT_OK(prunex_unregister_mask(inside));
  run_c_ranks({0}, [&](prunex_comm_t comm, int) {
    EXPECT_OK(sum(comm, memory, memory));
    EXPECT_EQ(stats_of(comm).hits, 1u);
  });
  EXPECT_OK(prunex_unregister_mask(full));
}

TEST(Masks, UpdatesTakeEffectAtTheNextCall) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    VectorMask m(keep_of(kCount, 1, 10), PRUNEX_PROJECT);
    const prunex_mask_t mask = add(nullptr, m);
    const prunex_segment_t segment{5, kCount, mask};
    prunex_layout_t layout = 0;
    ASSERT_OK(prunex_layout_create(&segment, 1, kCount + 5, &layout));
    for (size_t kept = 1; kept < 10; ++kept) {
      m.cells = keep_of(kCount, kept, 10);
      m.desc.cells = m.cells.data();
      EXPECT_OK(prunex_update_mask(mask, &m.desc));
      std::vector<float> data(kCount + 5, 1);
      EXPECT_OK(sum(comm, data, data, layout));
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(data[5 + i], i % 10 < kept ? 2 : 0) << "rank " << rank << " kept " << kept;
      }
    }
    EXPECT_EQ(stats_of(comm).mismatches, 0u);
    EXPECT_OK(prunex_layout_destroy(layout));
    EXPECT_OK(prunex_unregister_mask(mask));
  });
}

// Rank 0 changes, and even drops, its mask while its call waits for rank 1, whose mask is still the
// old one: the call in flight keeps what it began with.
TEST(Masks, ACallInFlightKeepsTheOldMask) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    std::vector<float> data(kCount, 1);
    VectorMask m(keep_of(kCount, 3, 10), PRUNEX_PROJECT);
    const prunex_mask_t mask = add(data.data(), m);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    prunex_request_t request = 0;
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.request = &request;
    ASSERT_OK(sum(comm, data, data, 0, &call));
    if (rank == 0) {
      m.cells = keep_of(kCount, 9, 10);
      m.desc.cells = m.cells.data();
      EXPECT_OK(prunex_update_mask(mask, &m.desc));
      EXPECT_OK(prunex_unregister_mask(mask));
    }
    EXPECT_OK(prunex_request_wait(request));
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(data[i], i % 10 < 3 ? 2 : 0) << i;
    }
    EXPECT_EQ(stats_of(comm).mismatches, 0u);
    if (rank == 1) {
      EXPECT_OK(prunex_unregister_mask(mask));
    }
  });
}

TEST(Statistics, ABrokenPromiseIsCountedForItsMask) {
  const Warnings warnings;
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    VectorMask good(keep_of(kCount, 1, 10), PRUNEX_LOSSLESS, "good");
    VectorMask bad(keep_of(kCount, 1, 10), PRUNEX_LOSSLESS, "bad");
    const prunex_mask_t masks[] = {add(nullptr, good), add(nullptr, bad)};
    const prunex_segment_t segments[] = {{0, kCount, masks[0]}, {kCount, kCount, masks[1]}};
    prunex_layout_t layout = 0;
    ASSERT_OK(prunex_layout_create(segments, 2, 2 * kCount, &layout));
    for (int call = 0; call < 2; ++call) {
      std::vector<float> data(2 * kCount, 0);
      data[kCount + 5] = rank == 0 ? NAN : 0;
      EXPECT_OK(sum(comm, data, data, layout));
      EXPECT_TRUE(std::isnan(data[kCount + 5]));
    }
    EXPECT_EQ(info_of(masks[0]).violations, 0u);
    EXPECT_EQ(info_of(masks[1]).violations, 1u);
    EXPECT_EQ(stats_of(comm).violations, 1u);
    EXPECT_EQ(stats_of(comm).calls_dense, 1u);
    EXPECT_EQ(stats_of(comm).calls_compact, 1u);
    EXPECT_OK(prunex_layout_destroy(layout));
    // By address it is counted as well.
    std::vector<float> data(kCount, 1);
    VectorMask own(keep_of(kCount, 1, 10));
    const prunex_mask_t mask = add(data.data(), own);
    EXPECT_OK(sum(comm, data, data));
    EXPECT_EQ(info_of(mask).violations, 1u);
    for (const prunex_mask_t one : {masks[0], masks[1], mask}) {
      EXPECT_OK(prunex_unregister_mask(one));
    }
  });
  EXPECT_EQ(Warnings::count(), 2);
}

}  // namespace
}  // namespace prunex::test
