// SPDX-License-Identifier: Apache-2.0
// All-reduces of registered tensors: the three contracts, pieces of a tensor, masks that differ
// between nodes, promises that are not kept.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "tests/collective/cluster.h"
#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

using prunex::test::LogCapture;

class Mask {
 public:
  Mask(const void* base, std::vector<uint8_t> keep, prunex_contract_t contract,
       const char* name = "weight", prunex_dtype_t type = PRUNEX_FLOAT32)
      : keep_(std::move(keep)), size_(static_cast<int64_t>(keep_.size())) {
    tensor_.struct_size = sizeof tensor_;
    tensor_.dtype = type;
    tensor_.ndim = 1;
    tensor_.sizes = &size_;
    desc_ = description(contract, name);
    EXPECT_EQ(prunex_register_mask(base, &tensor_, &desc_, &mask_), PRUNEX_SUCCESS)
        << prunex_last_error();
  }
  ~Mask() { EXPECT_EQ(prunex_unregister_mask(mask_), PRUNEX_SUCCESS); }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;
  void update(std::vector<uint8_t> keep, prunex_contract_t contract) {
    keep_ = std::move(keep);
    desc_ = description(contract, "weight");
    EXPECT_EQ(prunex_update_mask(mask_, &desc_), PRUNEX_SUCCESS) << prunex_last_error();
  }
  [[nodiscard]] uint64_t violations() const {
    prunex_mask_info_t info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(prunex_mask_info(mask_, &info), PRUNEX_SUCCESS);
    return info.violations;
  }

 private:
  prunex_mask_desc_t description(prunex_contract_t contract, const char* name) {
    prunex_mask_desc_t d{};
    d.struct_size = sizeof d;
    d.kind = PRUNEX_MASK_BYTES;
    d.contract = contract;
    d.name = name;
    d.declared_kept = -1;
    d.cells = keep_.data();
    d.cells_len = keep_.size();
    return d;
  }
  std::vector<uint8_t> keep_;
  int64_t size_;
  prunex_tensor_t tensor_{};
  prunex_mask_desc_t desc_{};
  prunex_mask_t mask_ = 0;
};

std::vector<uint8_t> keep_of(size_t n, size_t kept, size_t of, size_t shift = 0) {
  std::vector<uint8_t> keep(n);
  for (size_t i = 0; i < n; ++i) {
    keep[i] = (i + shift) % of < kept ? 1 : 0;
  }
  return keep;
}

// Integer-valued; zero in dropped places, or `dropped`.
std::vector<float> data_of(const std::vector<uint8_t>& keep, int node, float dropped = 0) {
  std::vector<float> data(keep.size());
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = keep[i] != 0 ? static_cast<float>((i + static_cast<size_t>(node) * 5) % 19) : dropped;
  }
  return data;
}

std::vector<float> sum_of(const std::vector<uint8_t>& keep, int nodes, float dropped = 0) {
  std::vector<float> sum(keep.size());
  for (int n = 0; n < nodes; ++n) {
    const std::vector<float> one = data_of(keep, n, dropped);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += one[i];
    }
  }
  return sum;
}

int sum(const Node& node, const float* send, float* recv, size_t count) {
  return node.all_reduce(send, recv, count, kFloat32, kSum);
}

class Masked : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CollNet, Masked, ::testing::Values(1, 2, 3, 5));

TEST_P(Masked, lossless_sends_only_what_is_kept) {
  run_nodes(GetParam(), [](Node& node) {
    for (const size_t count : {size_t{1000}, size_t{60'000}, size_t{1'000'000}}) {
      const auto keep = keep_of(count, 4, 10);
      std::vector<float> data = data_of(keep, node.rank);
      const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
      const CollStats before = node.stats();
      std::vector<float> out(count, -1.0f);
      ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
      ASSERT_EQ(out, sum_of(keep, node.nodes));
      ASSERT_EQ(sum(node, data.data(), data.data(), count), kSuccess);
      ASSERT_EQ(data, out);
      const CollStats after = node.stats();
      EXPECT_EQ(after.masked - before.masked, 2u);
      EXPECT_EQ(after.dense, before.dense);
      // 0.4 of a dense reduce-scatter and all-gather, or exchange in small calls.
      const auto nodes = static_cast<uint64_t>(node.nodes);
      EXPECT_LE(after.wire_bytes - before.wire_bytes,
                2 * (nodes - 1) * (count * 4 * 4 / 10 + 1024));
      if (count == 1'000'000) {
        EXPECT_LE(after.wire_bytes - before.wire_bytes,
                  2 * (2 * (nodes - 1) * count * 4 * 4 / 10 / nodes + nodes * 4096));
      }
    }
  });
}

// NCCL cuts a tensor: each call covers a piece of the registered range, wherever that begins.
TEST_P(Masked, pieces_of_a_tensor_and_a_whole_one_longer_than_a_piece) {
  run_nodes(GetParam(), [](Node& node) {
    constexpr size_t kCount = 2'500'003;  // 10 MB
    const auto keep = keep_of(kCount, 3, 7);
    std::vector<float> data = data_of(keep, node.rank);
    const std::vector<float> want = sum_of(keep, node.nodes);
    std::vector<float> out(kCount, -1.0f);
    const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
    ASSERT_EQ(sum(node, data.data(), out.data(), kCount), kSuccess);
    ASSERT_EQ(out, want);
    EXPECT_EQ(node.stats().masked, 2u);
    EXPECT_EQ(node.stats().calls, 1u);
    out.assign(kCount, -1.0f);
    void* requests[8] = {};
    size_t at = 0;
    for (int i = 0; i < 8; ++i) {
      const size_t n = i == 7 ? kCount - at : 300'001 + static_cast<size_t>(i);
      ASSERT_EQ(node.calls.iallreduce(node.comm, data.data() + at, out.data() + at, n, kFloat32,
                                      kSum, nullptr, nullptr, &requests[i]),
                kSuccess);
      at += n;
    }
    for (void* r : requests) {
      ASSERT_EQ(node.wait(r), kSuccess);
    }
    ASSERT_EQ(out, want);
    EXPECT_EQ(node.stats().masked, 10u);
    EXPECT_EQ(node.stats().dense, 0u);
  });
}

TEST_P(Masked, found_by_the_receive_buffer_too) {
  run_nodes(GetParam(), [](Node& node) {
    const auto keep = keep_of(50'000, 1, 5);
    const std::vector<float> data = data_of(keep, node.rank);
    std::vector<float> out(keep.size(), -1.0f);
    const Mask mask(out.data(), keep, PRUNEX_LOSSLESS);
    ASSERT_EQ(sum(node, data.data(), out.data(), keep.size()), kSuccess);
    EXPECT_EQ(out, sum_of(keep, node.nodes));
    EXPECT_EQ(node.stats().masked, 1u);
  });
}

TEST_P(Masked, project_cuts_off_whatever_is_dropped) {
  run_nodes(GetParam(), [](Node& node) {
    const auto keep = keep_of(90'000, 2, 5);
    for (const float junk : {3.0f, std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
      std::vector<float> data = data_of(keep, node.rank, junk);
      const Mask mask(data.data(), keep, PRUNEX_PROJECT);
      ASSERT_EQ(sum(node, data.data(), data.data(), keep.size()), kSuccess);
      ASSERT_EQ(data, sum_of(keep, node.nodes));
    }
    // The other operations too, and masks that keep nearly all.
    auto most = keep_of(90'000, 1000, 1001);
    std::vector<float> data = data_of(most, node.rank, 7);
    const Mask mask(data.data(), most, PRUNEX_PROJECT);
    ASSERT_EQ(node.all_reduce(data.data(), data.data(), data.size(), kFloat32, kMax), kSuccess);
    for (size_t i = 0; i < data.size(); ++i) {
      if (most[i] == 0) {
        ASSERT_EQ(data[i], 0.0f);
      }
    }
    EXPECT_EQ(node.stats().dense, 0u);
    EXPECT_GT(node.stats().dropped_nonzero, 0u);
    EXPECT_EQ(node.stats().violated, 0u);
  });
}

// One node has one non-zero dropped element: the call is the dense sum everywhere, one warning in
// the job, and this mask stays dense until it changes.
TEST_P(Masked, a_broken_promise_is_dense_everywhere_and_said_once) {
  for (const size_t count : {size_t{3000}, size_t{200'000}}) {
    const LogCapture log;
    run_nodes(GetParam(), [&](Node& node) {
      const auto keep = keep_of(count, 4, 10);
      std::vector<float> data = data_of(keep, node.rank);
      std::vector<float> other = data;
      const bool guilty = node.rank == node.nodes - 1;
      const size_t at = count / 10 / 2 * 10 + 7;
      data[at] = guilty ? 5.0f : 0.0f;
      Mask mask(data.data(), keep, PRUNEX_LOSSLESS, "layer1.weight");
      const Mask innocent(other.data(), keep, PRUNEX_LOSSLESS, "layer2.weight");
      std::vector<float> want = sum_of(keep, node.nodes);
      want[at] = 5;
      std::vector<float> out(count);
      ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
      ASSERT_EQ(out, want);
      EXPECT_EQ(node.stats().violated, 1u);
      EXPECT_EQ(node.stats().dense, 1u);
      EXPECT_EQ(mask.violations(), 1u);
      data[at] = 0;
      want[at] = 0;
      ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
      ASSERT_EQ(out, want);
      EXPECT_EQ(node.stats().dense, 2u);
      EXPECT_EQ(node.stats().violated, 1u);
      ASSERT_EQ(sum(node, other.data(), out.data(), count), kSuccess);
      ASSERT_EQ(out, want);
      EXPECT_EQ(node.stats().masked, 1u);  // the other parameter is not to blame
      const auto next = keep_of(count, 4, 10, 3);
      mask.update(next, PRUNEX_LOSSLESS);
      const std::vector<float> fresh = data_of(next, node.rank);
      std::copy(fresh.begin(), fresh.end(), data.begin());
      ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
      ASSERT_EQ(out, sum_of(next, node.nodes));
      EXPECT_EQ(node.stats().masked, 2u);
    });
    ASSERT_EQ(log.warnings().size(), 1u);
    const std::string said = log.warnings()[0];
    EXPECT_NE(said.find("layer1.weight"), std::string::npos) << said;
    EXPECT_NE(said.find("node " + std::to_string(GetParam() - 1)), std::string::npos) << said;
    EXPECT_NE(said.find("element " + std::to_string(count / 10 / 2 * 10 + 7)), std::string::npos)
        << said;
    EXPECT_NE(said.find("project"), std::string::npos) << said;
  }
}

TEST_P(Masked, a_promise_broken_in_the_second_piece_of_a_long_tensor) {
  const LogCapture log;
  run_nodes(GetParam(), [](Node& node) {
    constexpr size_t kCount = 3'000'000, kAt = 2'900'007;
    const auto keep = keep_of(kCount, 4, 10);
    std::vector<float> data = data_of(keep, node.rank);
    data[kAt] = node.rank == 0 ? NAN : 0.0f;
    const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
    std::vector<float> out(kCount);
    ASSERT_EQ(sum(node, data.data(), out.data(), kCount), kSuccess);
    EXPECT_TRUE(std::isnan(out[kAt]));
    out[kAt] = 0;
    EXPECT_EQ(out, sum_of(keep, node.nodes));
    EXPECT_EQ(node.stats().violated, 1u);
    EXPECT_EQ(node.stats().masked, 1u);
  });
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_NE(log.warnings()[0].find("element 2900007"), std::string::npos) << log.warnings()[0];
}

TEST_P(Masked, masks_that_keep_nothing_or_almost_all) {
  run_nodes(GetParam(), [](Node& node) {
    for (const size_t count : {size_t{1000}, size_t{100'000}}) {
      const auto none = keep_of(count, 0, 10);
      std::vector<float> data(count, 0.0f), out(count, 3.0f);
      {
        const Mask mask(data.data(), none, PRUNEX_LOSSLESS);
        ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
        EXPECT_EQ(out, data);
        EXPECT_EQ(node.stats().masked, count == 1000 ? 1u : 2u);
      }
      // Not worth compacting: dense, and never an error.
      const auto most = keep_of(count, 99, 100);
      std::vector<float> full = data_of(most, node.rank, 4);
      const Mask mask(full.data(), most, PRUNEX_LOSSLESS);
      ASSERT_EQ(sum(node, full.data(), full.data(), count), kSuccess);
      EXPECT_EQ(full, sum_of(most, node.nodes, 4));
      EXPECT_EQ(node.stats().violated, 0u);
    }
  });
}

TEST_P(Masked, negative_zero_is_zero) {
  run_nodes(GetParam(), [](Node& node) {
    const auto keep = keep_of(50'000, 1, 2);
    std::vector<float> data = data_of(keep, node.rank, -0.0f);
    const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
    ASSERT_EQ(sum(node, data.data(), data.data(), data.size()), kSuccess);
    for (size_t i = 1; i < data.size(); i += 2) {
      ASSERT_FALSE(std::signbit(data[i])) << i;
    }
    EXPECT_EQ(node.stats().masked, 1u);
  });
}

TEST_P(Masked, sampled_is_checked_on_the_first_ten_calls_and_one_in_sixty_four) {
  const LogCapture log;
  run_nodes(GetParam(), [](Node& node) {
    const auto keep = keep_of(20'000, 1, 4);
    std::vector<float> data = data_of(keep, node.rank), out(keep.size());
    const Mask mask(data.data(), keep, PRUNEX_SAMPLED);
    const std::vector<float> want = sum_of(keep, node.nodes);
    for (int i = 0; i < 80; ++i) {
      // Broken from the eleventh call on: seen at call 64.
      data[1] = i >= 10 ? 1.0f : 0.0f;
      ASSERT_EQ(sum(node, data.data(), out.data(), out.size()), kSuccess);
      ASSERT_EQ(out[0], want[0]);
      ASSERT_EQ(out[1], i >= 64 ? static_cast<float>(node.nodes) : 0.0f) << i;
    }
    EXPECT_EQ(node.stats().violated, 1u);
    EXPECT_EQ(node.stats().masked, 64u);
  });
  EXPECT_EQ(log.warnings().size(), 1u);
}

TEST(CollNet, unequal_masks_go_dense_and_that_is_said_once) {
  for (const size_t count : {size_t{2000}, size_t{150'000}}) {
    const LogCapture log;
    run_nodes(3, [&](Node& node) {
      // Node 1 has another mask, and node 2 has none.
      const auto keep = keep_of(count, 4, 10, node.rank == 1 ? 1 : 0);
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = keep[i] != 0 ? 1.0f : 0.0f;
      }
      std::unique_ptr<Mask> mask;
      if (node.rank != 2) {
        mask = std::make_unique<Mask>(data.data(), keep, PRUNEX_LOSSLESS);
      }
      for (int call = 0; call < 4; ++call) {
        std::vector<float> out(count, -1.0f);
        ASSERT_EQ(sum(node, data.data(), out.data(), count), kSuccess);
        for (size_t i = 0; i < count; ++i) {
          const float want = (i % 10 < 4 ? 2.0f : 0.0f) + ((i + 1) % 10 < 4 ? 1.0f : 0.0f);
          ASSERT_EQ(out[i], want) << i;
        }
      }
      EXPECT_EQ(node.stats().mismatched, 4u);
      EXPECT_EQ(node.stats().dense, 4u);
    });
    ASSERT_EQ(log.warnings().size(), 1u);
    EXPECT_NE(log.warnings()[0].find("node 1"), std::string::npos) << log.warnings()[0];
    EXPECT_NE(log.warnings()[0].find("parameter weight"), std::string::npos) << log.warnings()[0];
  }
}

TEST(CollNet, unequal_masks_under_project_are_the_same_error_everywhere) {
  const LogCapture log;
  std::atomic<int> failed{0};
  run_nodes(3, [&](Node& node) {
    const auto keep = keep_of(100'000, 4, 10, node.rank == 2 ? 1 : 0);
    std::vector<float> data(keep.size(), 1.0f);
    const Mask mask(data.data(), keep, PRUNEX_PROJECT);
    failed += sum(node, data.data(), data.data(), data.size()) == kInvalidUsage ? 1 : 0;
    EXPECT_EQ(data, std::vector<float>(keep.size(), 1.0f)) << "the buffer changed";
  });
  EXPECT_EQ(failed, 3);
  for (const std::string& w : log.warnings()) {
    EXPECT_NE(w.find("node 2"), std::string::npos) << w;
    EXPECT_NE(w.find("project"), std::string::npos) << w;
  }
}

// A call with another type over the same memory has nothing to do with the mask.
TEST(CollNet, another_type_than_the_masks_is_as_if_there_were_none) {
  run_nodes(2, [](Node& node) {
    const auto keep = keep_of(50'000, 4, 10);
    std::vector<float> data = data_of(keep, node.rank);
    const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
    std::vector<int32_t> ints(keep.size(), 1 + node.rank);
    std::memcpy(data.data(), ints.data(), ints.size() * 4);
    ASSERT_EQ(node.all_reduce(data.data(), data.data(), keep.size(), kInt32, kSum), kSuccess);
    std::memcpy(ints.data(), data.data(), ints.size() * 4);
    EXPECT_EQ(ints, std::vector<int32_t>(keep.size(), 3));
    EXPECT_EQ(node.stats().masked, 0u);
  });
}

// Masks only make sums smaller; the other operations go dense unless the contract says 'project'.
TEST(CollNet, other_operations_do_not_use_lossless_masks) {
  run_nodes(2, [](Node& node) {
    const auto keep = keep_of(50'000, 4, 10);
    std::vector<float> data(keep.size(), node.rank == 0 ? -1.0f : -2.0f);
    const Mask mask(data.data(), keep, PRUNEX_LOSSLESS);
    ASSERT_EQ(node.all_reduce(data.data(), data.data(), data.size(), kFloat32, kMax), kSuccess);
    EXPECT_EQ(data, std::vector<float>(keep.size(), -1.0f));
    EXPECT_EQ(node.stats().masked, 0u);
    EXPECT_EQ(node.stats().violated, 0u);
  });
}

}  // namespace
}  // namespace prunex::nccl::test
