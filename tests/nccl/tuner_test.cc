// SPDX-License-Identifier: Apache-2.0
// The tuner tables: off they change nothing; on they only move costs of what was possible.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "plugin/nccl/abi/tuner.h"
#include "tests/nccl/fake/under_fake.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::fake {
namespace {

constexpr int kAlgos = 7, kProtos = 3;
using Costs = std::array<float, kAlgos * kProtos>;
constexpr size_t kSmall = 4096, kLarge = size_t{64} << 20;

size_t cell(int algo, int proto) { return static_cast<size_t>(algo * kProtos + proto); }

// All possible but NVLS; LL is cheapest.
Costs usual() {
  Costs costs;
  for (int algo = 0; algo < kAlgos; ++algo) {
    for (int proto = 0; proto < kProtos; ++proto) {
      costs[cell(algo, proto)] = algo == 4 ? -1.0F : 10.0F + static_cast<float>(algo * 10 + proto);
    }
  }
  return costs;
}

int cheapest(const Costs& costs) {
  int best = -1;
  for (int i = 0; i < kAlgos * kProtos; ++i) {
    const float cost = costs[static_cast<size_t>(i)];
    if (cost >= 0 && (best < 0 || cost < costs[static_cast<size_t>(best)])) {
      best = i;
    }
  }
  return best;
}

// By table of version V, in the mode the library is configured for.
template <class Table>
Costs tuned(void* plugin, int version, abi::Func func, size_t bytes, Costs costs) {
  const auto& t = *static_cast<const Table*>(
      host::symbol(plugin, "ncclTunerPlugin_v" + std::to_string(version)));
  PRUNEX_MUST(std::string(t.name) == "PRUNEX");
  void* ctx = nullptr;
  if constexpr (std::is_same_v<decltype(t.init), abi::TunerInitV5*>) {
    abi::NvlDomainInfo domains{};
    abi::TunerConstants constants;
    std::memset(static_cast<void*>(&constants), 0x5a, sizeof constants);
    const abi::TunerConstants before = constants;
    PRUNEX_MUST(t.init(&ctx, 1, 4, 2, host::log_from_plugin, &domains, &constants) == kSuccess);
    PRUNEX_MUST(std::memcmp(&before, &constants, sizeof before) == 0, "constants are NCCL's");
  } else {
    PRUNEX_MUST(t.init(4, 2, host::log_from_plugin, &ctx) == kSuccess);
  }
  int channels = 0;
  const auto table = reinterpret_cast<float**>(costs.data());
  if constexpr (std::is_same_v<decltype(t.get_coll_info), abi::GetCollInfoV3*>) {
    PRUNEX_MUST(t.get_coll_info(ctx, func, bytes, 1, table, kAlgos, kProtos, &channels) ==
                kSuccess);
  } else {
    for (const int registered : {1, 0}) {  // one rank's registration decides nothing
      Costs copy = costs;
      PRUNEX_MUST(t.get_coll_info(ctx, func, bytes, 1, reinterpret_cast<float**>(copy.data()),
                                  kAlgos, kProtos, registered, &channels) == kSuccess);
      if (registered == 0) {
        costs = copy;
      }
    }
  }
  PRUNEX_MUST(channels == 0, "channels are NCCL's choice");
  PRUNEX_MUST(t.destroy(ctx) == kSuccess);
  return costs;
}

class Tuner : public testing::TestWithParam<int> {
 protected:
  // The costs afterwards, through the version under test.
  static Costs costs(void* plugin, abi::Func func, size_t bytes, const Costs& before = usual()) {
    switch (GetParam()) {
      case 3:
        return tuned<abi::TunerV3>(plugin, 3, func, bytes, before);
      case 4:
        return tuned<abi::TunerV4>(plugin, 4, func, bytes, before);
      case 5:
        return tuned<abi::TunerV5>(plugin, 5, func, bytes, before);
      default:
        return tuned<abi::TunerV6>(plugin, 6, func, bytes, before);
    }
  }
};

TEST_P(Tuner, off_changes_nothing) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake&) {
    for (const size_t bytes : {size_t{0}, kSmall, kLarge}) {
      for (int func = 0; func < 5; ++func) {
        PRUNEX_MUST(costs(plugin, static_cast<abi::Func>(func), bytes) == usual());
      }
    }
  }));
}

TEST_P(Tuner, simple_prefers_simple_when_large) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    fake.tuner_mode = 1;
    for (int func = 0; func < 5; ++func) {
      const auto f = static_cast<abi::Func>(func);
      PRUNEX_MUST(costs(plugin, f, kSmall) == usual());
      const Costs after = costs(plugin, f, kLarge);
      PRUNEX_MUST(cheapest(after) == static_cast<int>(cell(abi::kTree, abi::kSimple)));
      for (int algo = 0; algo < kAlgos; ++algo) {
        PRUNEX_MUST(after[cell(algo, abi::kSimple)] == usual()[cell(algo, abi::kSimple)]);
      }
    }
  }));
}

TEST_P(Tuner, impossible_stays_impossible) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    for (const int mode : {1, 2}) {
      fake.tuner_mode = mode;
      const Costs after = costs(plugin, abi::kAllReduce, kLarge);
      for (int proto = 0; proto < kProtos; ++proto) {
        PRUNEX_MUST(after[cell(4, proto)] == -1.0F);
      }
      Costs only_ll;
      only_ll.fill(-1);
      only_ll[cell(abi::kRing, abi::kLl)] = 5;
      PRUNEX_MUST(costs(plugin, abi::kAllReduce, kLarge, only_ll) == only_ll);
    }
  }));
}

TEST_P(Tuner, collnet_takes_the_chain_for_large_all_reduces) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    fake.tuner_mode = 2;
    const auto chain = static_cast<int>(cell(abi::kCollnetChain, abi::kSimple));
    PRUNEX_MUST(cheapest(costs(plugin, abi::kAllReduce, kLarge)) == chain);
    PRUNEX_MUST(costs(plugin, abi::kAllReduce, kSmall) == usual());
    PRUNEX_MUST(costs(plugin, abi::kAllGather, kLarge) == usual());
    Costs without = usual();
    without[static_cast<size_t>(chain)] = -1;
    PRUNEX_MUST(costs(plugin, abi::kAllReduce, kLarge, without) == without);
  }));
}

TEST_P(Tuner, only_size_and_collective_decide) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    fake.tuner_mode = 1;
    const Costs first = costs(plugin, abi::kAllReduce, kLarge);
    for (int again = 0; again < 3; ++again) {
      PRUNEX_MUST(costs(plugin, abi::kAllReduce, kLarge) == first);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(V, Tuner, testing::Range(3, 7));

TEST(TunerV2, names_one_answer) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = *static_cast<const abi::TunerV2*>(host::symbol(plugin, "ncclTunerPlugin_v2"));
    const auto ask = [&](int mode, abi::Func func, size_t bytes, int coll_net) {
      fake.tuner_mode = mode;
      void* ctx = nullptr;
      PRUNEX_MUST(t.init(4, 2, host::log_from_plugin, &ctx) == kSuccess);
      int algo = -1, proto = -1, channels = 0;
      PRUNEX_MUST(t.get_coll_info(ctx, func, bytes, coll_net, 0, 1, &algo, &proto, &channels) ==
                  kSuccess);
      PRUNEX_MUST(channels == 0 && t.destroy(ctx) == kSuccess);
      return std::pair(algo, proto);
    };
    const std::pair none(-1, -1), ring(1, 2), chain(3, 2);
    PRUNEX_MUST(ask(0, abi::kAllReduce, kLarge, 1) == none);
    PRUNEX_MUST(ask(1, abi::kAllReduce, kLarge, 1) == ring);
    PRUNEX_MUST(ask(1, abi::kAllReduce, kSmall, 1) == none);
    PRUNEX_MUST(ask(2, abi::kAllReduce, kLarge, 1) == chain);
    PRUNEX_MUST(ask(2, abi::kAllReduce, kLarge, 0) == none);
    PRUNEX_MUST(ask(2, abi::kBroadcast, kLarge, 1) == none);
  }));
}

TEST(TunerV2, a_value_that_is_no_mode_is_an_error) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = *static_cast<const abi::TunerV4*>(host::symbol(plugin, "ncclTunerPlugin_v4"));
    void* ctx = nullptr;
    fake.answer = kInvalidUsage;
    PRUNEX_MUST(t.init(4, 2, host::log_from_plugin, &ctx) == kInvalidUsage);
    fake.answer = kSuccess;
    fake.tuner_mode = 3;
    PRUNEX_MUST(t.init(4, 2, nullptr, &ctx) != kSuccess);
  }));
}

}  // namespace
}  // namespace prunex::nccl::fake
