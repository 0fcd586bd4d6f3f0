// SPDX-License-Identifier: Apache-2.0
// What prunex_net_stats tells a C caller about messages that went through the tables.
#include <cstring>

#include "prunex/prunex.h"
#include "tests/nccl_net/pair.h"

namespace prunex::nccl {
namespace {

prunex_net_stats_t stats_now() {
  prunex_net_stats_t stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(prunex_net_stats(&stats), PRUNEX_SUCCESS) << prunex_last_error();
  return stats;
}

TEST(NetStats, arguments) {
  EXPECT_EQ(prunex_net_stats(nullptr), PRUNEX_ERROR_INVALID_ARGUMENT);
  prunex_net_stats_t stats{};
  EXPECT_EQ(prunex_net_stats(&stats), PRUNEX_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(prunex_last_error(), "struct_size is 0"), nullptr) << prunex_last_error();
}

TEST(NetStats, every_message_once_and_under_its_kind) {
  const Variable mode("PRUNEX_NET_MODE", "compact");
  const prunex_net_stats_t before = stats_now();
  const std::vector<std::byte> dense(100'000, std::byte{7});
  const std::vector<std::byte> empty(300'000, std::byte{0});
  {
    NetPair pair(41);
    for (int i = 0; i < 3; ++i) {
      pair.exchange(dense);
    }
    for (int i = 0; i < 2; ++i) {
      pair.exchange(empty);
    }
  }
  const prunex_net_stats_t after = stats_now();  // the communicator is closed: still counted
  EXPECT_EQ(after.sent_raw.messages - before.sent_raw.messages, 3U);
  EXPECT_EQ(after.sent_raw.bytes_logical - before.sent_raw.bytes_logical, 300'000U);
  EXPECT_EQ(after.sent_raw.bytes_wire - before.sent_raw.bytes_wire, 300'000U);
  EXPECT_EQ(after.sent_zero_block.messages - before.sent_zero_block.messages, 2U);
  EXPECT_EQ(after.sent_zero_block.bytes_logical - before.sent_zero_block.bytes_logical, 600'000U);
  const uint64_t wire = after.sent_zero_block.bytes_wire - before.sent_zero_block.bytes_wire;
  EXPECT_GT(wire, 0U);
  EXPECT_LT(wire, 10'000U);
  EXPECT_EQ(after.received_raw.messages - before.received_raw.messages, 3U);
  EXPECT_EQ(after.received_zero_block.messages - before.received_zero_block.messages, 2U);
  EXPECT_EQ(after.received_zero_block.bytes_wire - before.received_zero_block.bytes_wire, wire);
  EXPECT_EQ(after.sent_masked.messages, before.sent_masked.messages);
  EXPECT_GT(after.pack_ns, before.pack_ns);
  EXPECT_GT(after.unpack_ns, before.unpack_ns);
  EXPECT_EQ(after.violated, before.violated);
}

}  // namespace
}  // namespace prunex::nccl
