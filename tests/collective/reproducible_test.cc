// SPDX-License-Identifier: Apache-2.0
// Rules 2 and 3: the same bits on all ranks and in every run, and how far from the exact sum.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "plugin/base/digest.h"
#include "tests/collective/cluster.h"
#include "tests/collective/random_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::Contract;
using collective::Scope;

const std::vector<int> kOneTwoThree = {0, 1, 1, 2, 2, 2};

// Real numbers of both signs over six decades.
void fill_reals(RandomCall& call, Random& random, size_t ranks) {
  call.inputs.assign(ranks, std::vector<std::byte>(call.count * size_of(call.type)));
  std::normal_distribution<double> normal;
  for (auto& input : call.inputs) {
    for (size_t i = 0; i < call.count; ++i) {
      const bool kept = call.layout.fate.empty() || call.layout.fate[i] == Fate::kept;
      const double v = kept ? normal(random) * std::exp(7 * normal(random) / 3) : 0;
      store(call.type, input.data(), i, {v, 0});
    }
  }
}

uint64_t digest_of_run(const RandomCall& call, const std::vector<int>& node_of, bool sleepy,
                       int64_t chunk_bytes) {
  std::mutex mutex;
  std::set<uint64_t> digests;
  ClusterOptions options;
  options.adjust = [&](int, collective::CommOptions& o) { o.config.chunk_bytes = chunk_bytes; };
  run_ranks(
      node_of,
      [&](Comm& comm, int rank) {
        std::vector<std::byte> data = call.inputs[static_cast<size_t>(rank)];
        collective::CallSpec spec;
        spec.send = spec.recv = data.data();
        spec.count = call.count;
        spec.type = call.type;
        spec.op = call.op;
        spec.masked = call.layout.masked;
        if (sleepy) {
          std::this_thread::sleep_for(std::chrono::microseconds(rank * 137 % 500));
        }
        const auto result = comm.all_reduce(spec);
        ASSERT_TRUE(result) << result.error().text;
        const std::lock_guard lock(mutex);
        digests.insert(digest_bytes(data.data(), data.size()));
      },
      options);
  EXPECT_EQ(digests.size(), 1u) << "ranks differ: " << call.text();
  return digests.empty() ? 0 : *digests.begin();
}

// A sanitizer looks for races, which every run has alike; that the bits are the same is for the
// build without one.
#ifdef PRUNEX_SANITIZED
constexpr int kRuns = 4;
#else
constexpr int kRuns = 20;
#endif

TEST(Reports, E16_same_bits_on_all_ranks_and_in_every_run) {
  Random random(16);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool masked : {false, true}) {
      RandomCall call;
      call.type = type;
      call.op = masked ? Op::avg : Op::sum;
      call.count = 40'007;
      if (masked) {
        call.layout = random_mask(random, call.count, 0.5, Contract::lossless);
      }
      fill_reals(call, random, 6);
      std::set<uint64_t> runs;
      for (int run = 0; run < kRuns; ++run) {
        runs.insert(digest_of_run(call, kOneTwoThree, run % 2 == 1, 0));
      }
      EXPECT_EQ(runs.size(), 1u) << "runs differ: " << call.text();
    }
  }
}

// Contributions are added node by node in ascending order, per element: neither the algorithm nor
// where chunks and masks cut can be seen in the bits.
TEST(Reproducible, BitsDoNotDependOnChunks) {
  Random random(17);
  RandomCall call;
  call.count = 100'003;
  fill_reals(call, random, 6);
  std::set<uint64_t> bits;
  for (const int64_t chunk : {0, 4096, 20'000, 262'144}) {
    bits.insert(digest_of_run(call, kOneTwoThree, false, chunk));
  }
  EXPECT_EQ(bits.size(), 1u);
}

TEST(Reproducible, BlockingCallsAndRequestsGiveTheSameBits) {
  Random random(18);
  RandomCall call;
  call.count = 30'000;
  fill_reals(call, random, 6);
  run_ranks(kOneTwoThree, [&](Comm& comm, int rank) {
    const auto& input = call.inputs[static_cast<size_t>(rank)];
    std::vector<std::byte> a = input, b = input;
    collective::CallSpec spec;
    spec.count = call.count;
    spec.send = spec.recv = a.data();
    ASSERT_TRUE(comm.all_reduce(spec));
    spec.send = spec.recv = b.data();
    ASSERT_TRUE(comm.submit(spec)->wait());
    EXPECT_EQ(a, b);
  });
}

// Half the distance between neighbours at 1: one rounding to the type costs at most this share.
double unit(DType type) {
  switch (type) {
    case DType::f32:
      return std::ldexp(1, -24);
    case DType::f64:
      return std::ldexp(1, -53);
    case DType::f16:
      return std::ldexp(1, -11);
    default:
      return std::ldexp(1, -8);
  }
}

// |result - exact| of a sum over nodes: a 16-bit type adds in fp32 inside a node and is rounded
// when it leaves the node, then the nodes' sums are added in fp32 and rounded once more. Others
// round at every addition.
double bound_of(const RandomCall& call, const std::vector<int>& node_of, size_t i) {
  const double u = unit(call.type);
  double magnitudes = 0;
  std::map<int, double> by_node;
  double all = 0;
  for (size_t r = 0; r < node_of.size(); ++r) {
    const double v = load(call.type, call.inputs[r].data(), i).real;
    magnitudes += std::fabs(v);
    by_node[node_of[r]] += v;
    all += v;
  }
  const auto n = static_cast<double>(node_of.size());
  if (size_of(call.type) != 2) {
    return n * u * magnitudes * 1.01;
  }
  double bound = 2 * n * unit(DType::f32) * magnitudes;
  for (const auto& [node, sum] : by_node) {
    bound += u * std::fabs(sum);
  }
  bound += u * (std::fabs(all) + bound);
  // Below the smallest normal number of fp16, steps have a fixed size.
  return bound * 1.01 + (call.type == DType::f16 ? 4 * std::ldexp(1, -25) : 0);
}

// `cuts`: calls that the buffer is reduced in.
void expect_within_bound(const RandomCall& call, const std::vector<int>& node_of, size_t cuts) {
  run_ranks(node_of, [&](Comm& comm, int rank) {
    std::vector<std::byte> data = call.inputs[static_cast<size_t>(rank)];
    const size_t bytes = size_of(call.type);
    for (size_t c = 0; c < cuts; ++c) {
      const size_t begin = call.count * c / cuts, end = call.count * (c + 1) / cuts;
      collective::CallSpec spec;
      spec.send = spec.recv = data.data() + begin * bytes;
      spec.count = end - begin;
      spec.type = call.type;
      spec.op = call.op;
      ASSERT_TRUE(comm.all_reduce(spec));
    }
    if (rank != 0) {
      return;
    }
    const double divisor = call.op == Op::avg ? static_cast<double>(node_of.size()) : 1;
    for (size_t i = 0; i < call.count; ++i) {
      long double exact = 0;
      for (const auto& input : call.inputs) {
        exact += static_cast<long double>(load(call.type, input.data(), i).real);
      }
      const double got = load(call.type, data.data(), i).real;
      const double bound =
          (bound_of(call, node_of, i) + unit(call.type) * std::fabs(static_cast<double>(exact))) /
          divisor;
      ASSERT_LE(std::fabs(static_cast<double>(exact / static_cast<long double>(divisor)) - got),
                bound)
          << "element " << i << " in " << cuts << " calls: " << call.text();
    }
  });
}

TEST(Reports, E21_every_split_is_within_the_bound_of_the_exact_sum) {
  Random random(21);
  for (const DType type : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    for (const Op op : {Op::sum, Op::avg}) {
      RandomCall call;
      call.type = type;
      call.op = op;
      call.count = 20'011;
      fill_reals(call, random, 6);
      for (const size_t cuts : std::initializer_list<size_t>{1, 2, 7}) {
        expect_within_bound(call, kOneTwoThree, cuts);
      }
    }
  }
}

TEST(Reports, E18_half_precision_average_neither_overflows_nor_vanishes) {
  const std::vector<std::vector<int>> worlds = {
      {0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3}, {0, 1, 1, 1}};
  for (const auto& node_of : worlds) {
    for (const char* algorithm : {"", "exchange", "scatter"}) {
      for (const double value : {30000.0, std::ldexp(1, -24)}) {
        for (const size_t count : {size_t{10}, size_t{70'000}}) {
          RandomCall call;
          call.type = DType::f16;
          call.op = Op::avg;
          call.count = count;
          ClusterOptions options;
          options.adjust = [&](int, collective::CommOptions& o) { o.config.algorithm = algorithm; };
          run_ranks(
              node_of,
              [&](Comm& comm, int) {
                std::vector<uint16_t> data(count);
                for (size_t i = 0; i < count; ++i) {
                  store(DType::f16, data.data(), i, {value, 0});
                }
                const std::vector<uint16_t> before = data;
                collective::CallSpec spec;
                spec.send = spec.recv = data.data();
                spec.count = count;
                spec.type = DType::f16;
                spec.op = Op::avg;
                ASSERT_TRUE(comm.all_reduce(spec));
                EXPECT_EQ(data, before) << value;
              },
              options);
        }
      }
    }
  }
}

// Integer averages are of the whole sum, not of sums that have wrapped, and cut toward zero.
TEST(Average, OfIntegersDoesNotWrap) {
  struct Case {
    DType type;
    int64_t value;
  };
  for (const auto& node_of : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}}) {
    run_ranks(node_of, [&](Comm& comm, int rank) {
      for (const Case& c : {Case{DType::i8, 127}, Case{DType::i8, -128}, Case{DType::u8, 255},
                            Case{DType::i32, INT32_MAX}, Case{DType::i32, INT32_MIN}}) {
        std::vector<std::byte> data(5000 * size_of(c.type));
        for (size_t i = 0; i < 5000; ++i) {
          // The last element's sum is one short of, or past, a multiple of the ranks.
          const int64_t off = i == 4999 && rank == 0 ? (c.value < 0 ? 1 : -1) : 0;
          store(c.type, data.data(), i, {0, c.value + off});
        }
        collective::CallSpec spec;
        spec.send = spec.recv = data.data();
        spec.count = 5000;
        spec.type = c.type;
        spec.op = Op::avg;
        ASSERT_TRUE(comm.all_reduce(spec));
        EXPECT_EQ(load(c.type, data.data(), 0).integer, c.value) << name_of(c.type);
        EXPECT_EQ(load(c.type, data.data(), 4999).integer, c.value + (c.value < 0 ? 1 : -1))
            << name_of(c.type);
      }
    });
  }
}

}  // namespace
}  // namespace prunex::test
