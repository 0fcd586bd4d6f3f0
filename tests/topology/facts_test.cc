// SPDX-License-Identifier: Apache-2.0
#include "topology/facts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& s) { return std::as_bytes(std::span(s)); }

RankFacts rich() {
  RankFacts f;
  f.rank = 12;
  f.node_id = "host 123 shm 0:25/1";
  f.host = "h\xc3\xb6st";
  f.numa = 1;
  f.gpus = {{"0000:19:00.0", "GPU-1", 0}, {"0000:19:00.0", "GPU-2", -1}};
  f.nics = {test::nic("mlx5_0", 400000, Distance::same_switch, "10.0.0.1"),
            test::nic("eth0", 0, Distance::unknown, "fe80::1%eth0")};
  f.nics[0].prefix = 24;
  f.nics[0].numa = 1;
  f.nics[0].rdma = true;
  f.transports = kTransportSocket | kTransportVerbs;
  f.note = std::string("with a \0 inside", 15);
  return f;
}

TEST(Facts, survive_the_wire) {
  for (const RankFacts& f : {rich(), RankFacts{}}) {
    const auto back = decode_facts(bytes_of(encode(f)));
    ASSERT_TRUE(back.has_value()) << back.error().text;
    EXPECT_EQ(*back, f);
  }
}

TEST(Facts, the_largest_record_survives_and_longer_ones_are_cut) {
  RankFacts f = rich();
  const std::string full(kMaxFactsString, 'x');
  f.node_id = f.host = f.note = full;
  f.gpus.assign(kMaxFactsGpus, {full, full, 3});
  f.nics.assign(kMaxFactsNics, test::nic(full, 1, Distance::same_numa, full));
  const std::string record = encode(f);
  EXPECT_LE(record.size(), kMaxFactsBytes);
  const auto back = decode_facts(bytes_of(record));
  ASSERT_TRUE(back.has_value()) << back.error().text;
  EXPECT_EQ(*back, f);

  RankFacts more = f;
  more.host += "y";
  more.nics.push_back(test::nic("one too many"));
  EXPECT_EQ(encode(more), record);
}

TEST(Facts, bytes_are_fixed) {
  // Another build, compiler or machine must read the same record.
  RankFacts f;
  f.rank = 1;
  f.node_id = std::string("n");
  f.host = std::string("h");
  f.numa = -1;
  f.transports = kTransportSocket;
  const std::string expected(
      "PXRF\x01\0\0\0\x24\0\0\0"
      "\x01\0\0\0"
      "\x01\0n"
      "\x01\0h"
      "\xff\xff\xff\xff"
      "\0\0"
      "\0\0"
      "\x01\0\0\0"
      "\0\0",
      36);
  EXPECT_EQ(encode(f), expected);
}

TEST(Facts, every_truncation_is_refused) {
  const std::string record = encode(rich());
  for (size_t n = 0; n < record.size(); ++n) {
    EXPECT_FALSE(decode_facts(bytes_of(record.substr(0, n))).has_value()) << n;
    // Also when the length field was made to agree.
    std::string patched = record.substr(0, n);
    if (n >= 12) {
      patched[8] = static_cast<char>(n & 0xff);
      patched[9] = static_cast<char>(n >> 8);
      EXPECT_FALSE(decode_facts(bytes_of(patched)).has_value()) << n;
    }
  }
  EXPECT_FALSE(decode_facts(bytes_of(record + "x")).has_value());
}

std::string with(size_t at, std::string_view bytes) {
  RankFacts f;  // offsets: rank 12, node id 16, host 18, numa 20, GPU count 24, NIC count 26,
                // transports 28
  std::string record = encode(f);
  std::copy(bytes.begin(), bytes.end(), record.begin() + static_cast<std::ptrdiff_t>(at));
  return record;
}

TEST(Facts, flaws_are_named) {
  using namespace std::string_view_literals;
  const std::pair<std::string, const char*> cases[] = {
      {with(0, "QXRF"), "starts with"},
      {with(4, "\x02\0"sv), "format 2, this library reads 1"},
      {with(8, "\x7f"), "claims 127 bytes but has"},
      {with(12, "\xfe\xff\xff\xff"), "rank is -2"},
      {with(16, "\x01\x04"), "node id length is 1025"},
      {with(16, "\x00\x04"sv), "more are needed"},
      {with(20, "\x00\x00\x02\x00"sv), "NUMA node is 131072"},
      {with(24, "\x41\x00"sv), "number of GPUs is 65"},
      {with(26, "\x81\x00"sv), "number of NICs is 129"},
      {with(28, "\x08"), "transport set is 8"},
  };
  for (const auto& [record, expected] : cases) {
    const auto result = decode_facts(bytes_of(record));
    ASSERT_FALSE(result.has_value()) << expected;
    EXPECT_THAT(result.error().text, HasSubstr(expected));
    EXPECT_EQ(result.error().code, Code::mismatch);
  }
}

TEST(Facts, noise_is_refused_or_read_as_exactly_one_record) {
  std::mt19937 random(7);
  const std::string record = encode(rich());
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string noisy = record;
    for (size_t flips = 1 + random() % 4; flips > 0; --flips) {
      noisy[random() % noisy.size()] = static_cast<char>(random());
    }
    if (const auto facts = decode_facts(bytes_of(noisy))) {
      ++accepted;
      ASSERT_EQ(encode(*facts), noisy);
    }
  }
  EXPECT_GT(accepted, 0);  // a changed name is still a record
}

TEST(Facts, speeds_read_well) {
  EXPECT_EQ(speed_text(400000), "400 Gb/s");
  EXPECT_EQ(speed_text(2500), "2.5 Gb/s");
  EXPECT_EQ(speed_text(100), "100 Mb/s");
  EXPECT_EQ(speed_text(0), "speed unknown");
  EXPECT_EQ(speed_text(-1), "speed unknown");
}

}  // namespace
}  // namespace prunex::topo
