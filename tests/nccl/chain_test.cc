// SPDX-License-Identifier: Apache-2.0
// CollNet of every version: chains of all-reduces, staged and on user buffers, and windows of
// all-gather and reduce-scatter.
#include <gtest/gtest.h>

#include "tests/nccl/host/chain.h"
#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/ring.h"
#include "tests/nccl/kinds.h"

namespace prunex::nccl::host {
namespace {

constexpr abi::RedOp kOps[] = {abi::kSum, abi::kProd, abi::kMax, abi::kMin};

// What rank `rank` has at `i`: zeros in whole blocks, else integers that every type holds, and
// whose sum and product over four ranks it holds too.
int value(const Type& type, int rank, size_t i) {
  const int32_t e = element(77, 0, i);
  if (e == 0) {
    return 0;
  }
  const int v = static_cast<int>((static_cast<size_t>(rank) * 7 + i) % 3);  // 0, 1, 2
  return type.is_signed ? v - 1 : v % 2 + (rank == 0 ? 1 : 0);
}

std::vector<std::byte> values(const Type& type, int rank, size_t count) {
  std::vector<std::byte> out(count * type.bytes);
  for (size_t i = 0; i < count; ++i) {
    type.put(out.data() + i * type.bytes, value(type, rank, i));
  }
  return out;
}

void check(const Type& type, abi::RedOp op, int ranks, const std::byte* got, size_t count,
           size_t first = 0) {
  for (size_t i = 0; i < count; ++i) {
    int wanted = value(type, 0, first + i);
    for (int rank = 1; rank < ranks; ++rank) {
      wanted = reduce(op, wanted, value(type, rank, first + i));
    }
    const int have = type.get(got + i * type.bytes);
    PRUNEX_MUST(have == wanted, "type %d, op %d, element %zu of %zu: %d, not %d", type.id, op, i,
                count, have, wanted);
  }
}

class CollChain : public testing::TestWithParam<Kind> {
 protected:
  static std::string run(int ranks, const std::function<void(Chain&, Rank&)>& body) {
    return run_world(GetParam().ranks, ranks, [&](Rank& rank) {
      Chain chain(rank, GetParam().version);
      body(chain, rank);
      rank.barrier();
      chain.close();
      PRUNEX_MUST(log_lines(abi::kLogWarn).empty());
      PRUNEX_MUST(log_faults().empty(), "%s", log_faults().c_str());
    });
  }
};

TEST_P(CollChain, staged_in_every_type_and_operation) {
  PRUNEX_EXPECT_WELL(run(3, [](Chain& chain, Rank& rank) {
    for (const Type& type : all_types()) {
      for (const abi::RedOp op : kOps) {
        int supported = -1;
        PRUNEX_MUST(chain.coll().reduce_support(type.id, op, &supported) == kSuccess);
        PRUNEX_MUST(supported == 1, "type %d, op %d", type.id, op);
        if (supported != 1) {
          continue;
        }
        // Not a multiple of the chunk: behind the tail lies what an earlier call left.
        const size_t count = 40000 / type.bytes + 13;
        const auto got = chain.staged(values(type, rank.rank(), count), type, op, 32768);
        check(type, op, 3, got.data(), count);
      }
    }
  }));
}

TEST_P(CollChain, eight_in_flight_through_a_small_region) {
  PRUNEX_EXPECT_WELL(run(2, [](Chain& chain, Rank& rank) {
    const Type& type = type_of(abi::kFloat32);
    for (const size_t chunk : {size_t{32768}, size_t{262144}, size_t{524288}}) {
      const size_t count = 2000003;
      const auto got = chain.staged(values(type, rank.rank(), count), type, abi::kSum, chunk);
      check(type, abi::kSum, 2, got.data(), count);
    }
  }));
}

TEST_P(CollChain, user_buffers_in_place_and_not) {
  PRUNEX_EXPECT_WELL(run(2, [](Chain& chain, Rank& rank) {
    const Type& type = type_of(abi::kFloat32);
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{3000001}}) {
      auto mine = values(type, rank.rank(), count);
      std::vector<std::byte> out(mine.size());
      chain.registered(mine.data(), out.data(), count, type, abi::kSum);
      check(type, abi::kSum, 2, out.data(), count);
      PRUNEX_MUST(mine == values(type, rank.rank(), count), "the input is the caller's");
      chain.registered(mine.data(), mine.data(), count, type, abi::kSum);
      check(type, abi::kSum, 2, mine.data(), count);
    }
  }));
}

TEST_P(CollChain, windows_of_all_gather) {
  if (GetParam().version < 8) {
    SUCCEED() << "v8 brought it";
    return;
  }
  PRUNEX_EXPECT_WELL(run(3, [](Chain& chain, Rank& rank) {
    const Type& type = type_of(abi::kInt32);
    const size_t per_rank = 4096, all = 3 * per_rank;
    auto mine = values(type, rank.rank(), per_rank / 4);
    for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, all},
                                        {0, per_rank},
                                        {per_rank, per_rank},
                                        {1024, per_rank},
                                        {per_rank - 512, per_rank + 1024},
                                        {all - 256, 256}}) {
      std::vector<std::byte> window(bytes, std::byte{0xEE});
      const size_t own = static_cast<size_t>(rank.rank()) * per_rank;
      const size_t skip = offset > own && offset < own + per_rank ? offset - own : 0;
      chain.all_gather(mine.data() + skip, window.data(), per_rank, offset, bytes);
      for (size_t i = 0; i < bytes; i += 4) {
        const size_t at = offset + i;
        const int of = static_cast<int>(at / per_rank);
        const int wanted = value(type, of, at % per_rank / 4);
        const int have = type.get(window.data() + i);
        PRUNEX_MUST(have == wanted, "window %zu+%zu, byte %zu: %d, not %d", offset, bytes, i, have,
                    wanted);
      }
    }
  }));
}

TEST_P(CollChain, windows_of_reduce_scatter) {
  if (GetParam().version < 8) {
    SUCCEED() << "v8 brought it";
    return;
  }
  PRUNEX_EXPECT_WELL(run(3, [](Chain& chain, Rank& rank) {
    const Type& type = type_of(abi::kFloat32);
    const size_t per_rank = 4096, all = 3 * per_rank;
    auto mine = values(type, rank.rank(), all / 4);
    for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, all},
                                        {0, per_rank},
                                        {1024, per_rank},
                                        {per_rank - 512, per_rank + 1024},
                                        {all - 256, 256}}) {
      const size_t own = static_cast<size_t>(rank.rank()) * per_rank;
      const size_t from = std::max(own, offset), to = std::min(own + per_rank, offset + bytes);
      std::vector<std::byte> out(per_rank, std::byte{0xEE});
      chain.reduce_scatter(mine.data() + offset, out.data(), per_rank, offset, bytes, type,
                           abi::kSum);
      if (from < to) {
        check(type, abi::kSum, 3, out.data(), (to - from) / 4, from / 4);
      }
      for (size_t i = from < to ? to - from : 0; i < per_rank; ++i) {
        PRUNEX_MUST(out[i] == std::byte{0xEE}, "written behind this rank's part, at %zu", i);
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(V, CollChain, testing::ValuesIn(kinds({8, 12})), name_of);

TEST(CollWorld, versions_understand_each_other) {
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 4, [](Rank& rank) {
    constexpr int kVersions[] = {6, 12, 8, 10};
    Chain chain(rank, kVersions[rank.rank()]);
    const Type& type = type_of(abi::kInt32);
    const auto got = chain.staged(values(type, rank.rank(), 100003), type, abi::kSum, 65536);
    check(type, abi::kSum, 4, got.data(), 100003);
    rank.barrier();
    chain.close();
  }));
}

TEST(CollWorld, net_and_collnet_side_by_side) {  // ring and chain of one communicator
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 2, [](Rank& rank) {
    Ring ring(rank, 12);
    Chain chain(rank, 12);
    std::string said;
    std::thread other([&] {
      try {
        for (uint64_t i = 0; i < 10; ++i) {
          ring.check_all_reduce(i, 50000, abi::kSimple);
        }
      } catch (const std::exception& e) {
        said = e.what();
      }
    });
    std::string failed;
    try {
      const Type& type = type_of(abi::kFloat32);
      for (int i = 0; i < 10; ++i) {
        const auto got = chain.staged(values(type, rank.rank(), 50000), type, abi::kSum, 65536);
        check(type, abi::kSum, 2, got.data(), 50000);
      }
    } catch (const std::exception& e) {
      failed = e.what();
    }
    other.join();
    PRUNEX_MUST(said.empty() && failed.empty(), "%s %s", said.c_str(), failed.c_str());
    rank.barrier();
    chain.close();
    ring.close();
  }));
}

}  // namespace
}  // namespace prunex::nccl::host
