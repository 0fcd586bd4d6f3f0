// SPDX-License-Identifier: Apache-2.0
// Rule 7 and the statistics: what crosses between nodes, counted by the transport's users.
#include <gtest/gtest.h>

#include "plugin/collective/table.h"
#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::CommStats;
using collective::Contract;
using collective::Scope;

uint64_t allowed(uint64_t dense) { return dense + dense / 100 + 4096; }

// Bytes that all ranks together send for one call, by density in percent of `count` floats.
uint64_t bytes_of(const std::vector<int>& node_of, uint64_t count, uint64_t percent,
                  Contract contract) {
  std::atomic<uint64_t> bytes{0};
  run_ranks(node_of, [&](Comm& comm, int) {
    const MaskedPtr masked = striped(count, percent, 100, contract);
    std::vector<float> data(count);
    for (uint64_t i = 0; i < count; ++i) {
      data[i] = i % 100 < percent ? 1 : 0;
    }
    must(comm, float_call(data, data, masked));
    const auto ranks = static_cast<float>(node_of.size());
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(data[i], i % 100 < percent ? ranks : 0);
    }
    bytes += comm.stats().bytes_sent;
  });
  return bytes;
}

TEST(Reports, E10_sparse_is_never_more_than_dense) {
  constexpr uint64_t kCount = 1 << 20;  // 4 MiB
  const std::vector<int> nodes = {0, 0, 1, 1};
  const uint64_t dense = bytes_of(nodes, kCount, 100, Contract::lossless);
  EXPECT_GE(dense, 2 * 4 * kCount);
  uint64_t before = 0;
  for (const uint64_t percent : std::initializer_list<uint64_t>{0, 1, 10, 50, 90, 99, 100}) {
    const uint64_t bytes = bytes_of(nodes, kCount, percent, Contract::lossless);
    EXPECT_GE(bytes, before) << percent << " %";
    EXPECT_LE(bytes, allowed(dense)) << percent << " %";
    EXPECT_LE(bytes, dense / 100 * (percent >= 97 ? 100 : percent) + 8192) << percent << " %";
    before = bytes;
  }
}

// Small and medium calls around the limits where algorithms change, on up to nine nodes.
TEST(Wire, NoSizeSendsMoreThanDense) {
  const collective::Tuning tuning;
  for (size_t nodes = 1; nodes <= 9; ++nodes) {
    for (const auto& [wide, narrow] : {std::pair{4, 4}, {4, 2}, {4, 1}, {8, 4}, {1, 1}}) {
      const collective::Traffic traffic{nodes, static_cast<size_t>(wide),
                                        static_cast<size_t>(narrow)};
      for (uint64_t count = 1; count < 400'000; count += 1 + count / 50) {
        const uint64_t dense = wire_bytes(choose_algorithm(tuning, traffic, count), traffic, count);
        for (const uint64_t percent :
             std::initializer_list<uint64_t>{0, 1, 20, 40, 60, 80, 90, 95, 97}) {
          const uint64_t kept = count * percent / 100;
          const auto algorithm = choose_algorithm(tuning, traffic, kept, count);
          ASSERT_LE(wire_bytes(algorithm, traffic, kept), dense)
              << nodes << " nodes, " << count << " elements of " << narrow << " bytes, keep "
              << percent << " %";
        }
      }
    }
  }
}

// The same on the wire, where the table would have picked an algorithm that sends more.
TEST(Wire, AFewElementsLessDoNotCostThreeTimesTheBytes) {
  const std::vector<int> nodes = {0, 1, 2, 3};
  for (const uint64_t count : std::initializer_list<uint64_t>{4'400, 5'600, 6'000}) {
    const uint64_t dense = bytes_of(nodes, count, 100, Contract::lossless);
    for (const uint64_t percent : std::initializer_list<uint64_t>{60, 90, 96}) {
      EXPECT_LE(bytes_of(nodes, count, percent, Contract::lossless), allowed(dense))
          << count << " elements, " << percent << " %";
      EXPECT_LE(bytes_of(nodes, count, percent, Contract::project), allowed(dense));
    }
  }
}

// Agreement costs headers of fixed size, however many segments there are.
TEST(Wire, HeadersDoNotGrowWithTheLayout) {
  uint64_t bytes[2] = {};
  for (const int many : {0, 1}) {
    std::atomic<uint64_t> sum{0};
    run_ranks({0, 1}, [&](Comm& comm, int) {
      std::vector<Piece> pieces;
      const uint64_t each = many != 0 ? 100 : 100'000;
      const auto mask = mask_of(each, [](uint64_t i) { return i % 10 < 4; });
      for (uint64_t at = 0; at < 100'000; at += each) {
        pieces.push_back({each, mask, Contract::lossless, "p" + std::to_string(at)});
      }
      std::vector<float> data(100'000, 0);
      for (int call = 0; call < 10; ++call) {
        must(comm, float_call(data, data, layout_of(pieces)));
      }
      sum += comm.stats().bytes_sent;
    });
    bytes[many] = sum;
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LE(bytes[0], 2 * 10 * (4 * 40'000 + 512));
}

TEST(Statistics, CountsAndBytes) {
  std::atomic<uint64_t> sent{0}, received{0};
  run_ranks({0, 0, 1}, [&](Comm& comm, int rank) {
    constexpr uint64_t kCount = 50'000;
    std::vector<float> data(kCount, 0);
    std::vector<double> wide(1000, 1);
    must(comm, float_call(data, data, striped(kCount, 40, 100, Contract::lossless)));
    const CommStats one = comm.stats();
    must(comm, float_call(data, data));
    must(comm, float_call(data, data, striped(kCount, 40, 100, Contract::lossless), Op::max));
    collective::CallSpec spec;
    spec.send = spec.recv = wide.data();
    spec.count = wide.size();
    spec.type = DType::f64;
    must(comm, spec);
    must(comm, float_call(data, data, nullptr, Op::sum, Scope::node));
    const CommStats s = comm.stats();
    EXPECT_EQ(s.calls, 5u);
    EXPECT_EQ(s.calls_compact, 1u);
    EXPECT_EQ(s.calls_dense, 4u);
    EXPECT_EQ(s.bytes_logical, 4 * 4 * kCount + 8000);
    EXPECT_EQ(s.mismatches + s.violations + s.dropped_nonzero, 0u);
    const bool leads = rank != 1;
    EXPECT_EQ(s.bytes_dense, leads ? 3 * 4 * kCount + 8000 : 0u);
    EXPECT_GE(one.bytes_sent, leads ? 4 * 20'000u : 0u);
    EXPECT_LE(one.bytes_sent, leads ? 4 * 20'000u + 512 : 0u);
    EXPECT_GE(s.bytes_sent - one.bytes_sent, leads ? 2 * 4 * kCount + 8000 : 0u);
    EXPECT_LE(s.bytes_sent - one.bytes_sent, leads ? 2 * 4 * kCount + 8000 + 2048 : 0u);
    EXPECT_EQ(s.times.total > 0, true);
    EXPECT_EQ(s.times.inter > 0, leads);
    sent += s.bytes_sent;
    received += s.bytes_received;
  });
  EXPECT_EQ(sent, received);
}

TEST(Statistics, OneNodeSendsNothing) {
  run_ranks({0, 0}, [](Comm& comm, int) {
    std::vector<float> data(50'000, 1);
    must(comm, float_call(data, data));
    EXPECT_EQ(comm.stats().bytes_sent, 0u);
    EXPECT_EQ(comm.stats().bytes_received, 0u);
    EXPECT_EQ(comm.stats().bytes_dense, 0u);
  });
}

TEST(Reports, E15_nothing_of_an_earlier_call_is_left) {
  for (const char* algorithm : {"exchange", "scatter"}) {
    ClusterOptions options;
    options.adjust = [&](int, collective::CommOptions& o) { o.config.algorithm = algorithm; };
    run_ranks(
        {0, 0, 1},
        [](Comm& comm, int) {
          for (const uint64_t count : {uint64_t{1000}, uint64_t{200'000}}) {
            for (const Contract contract : {Contract::lossless, Contract::project}) {
              std::vector<float> data(count);
              for (uint64_t i = 0; i < count; ++i) {
                data[i] = i % 10 < 9 ? 7 : 0;
              }
              must(comm, float_call(data, data, striped(count, 9, 10, contract)));
              std::vector<float> in(count), out(count, 7);
              for (uint64_t i = 0; i < count; ++i) {
                in[i] = i % 10 < 1 ? 1 : 0;
              }
              must(comm, float_call(in, out, striped(count, 1, 10, contract)));
              for (uint64_t i = 0; i < count; ++i) {
                ASSERT_EQ(bits_of(out[i]), bits_of(i % 10 < 1 ? 3.0f : 0.0f)) << i;
              }
            }
          }
        },
        options);
  }
}

}  // namespace
}  // namespace prunex::test
