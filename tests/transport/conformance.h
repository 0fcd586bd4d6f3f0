// SPDX-License-Identifier: Apache-2.0
// The transports under test, and how a message is sent and checked.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plugin/transport/shm/shm.h"
#include "plugin/transport/socket/socket.h"
#include "tests/transport/pair.h"

namespace prunex::transport {

struct Kind {
  const char* name;
  std::unique_ptr<Transport> (*open)();  // nullptr: not on this machine
  size_t holds;       // bytes that are surely under way before the receiver reads
  bool forks = true;  // its two ends may be in two processes
};

inline std::unique_ptr<Transport> open_socket(int streams) {
  SocketOptions o;
  o.streams = streams;
  auto t = open_socket_transport(o);
  EXPECT_TRUE(t);
  return std::move(*t);
}

inline std::unique_ptr<Transport> open_shm(size_t ring_bytes) {
  ShmOptions o;
  o.ring_bytes = ring_bytes;
  auto t = open_shm_transport(o);
  EXPECT_TRUE(t);
  return std::move(*t);
}

class Conformance : public testing::TestWithParam<Kind> {
 protected:
  Conformance() : transport_(GetParam().open()) {}
  void SetUp() override {
    if (!transport_) {
      GTEST_SKIP() << "this machine has no such device";
    }
  }
  Pair connect(std::string_view hello = "hi") { return make_pair(*transport_, *transport_, hello); }
  std::unique_ptr<Transport> transport_;
};

// Sends one message and receives it; both ends checked.
inline void exchange(Connection& from, Connection& to, const std::vector<std::byte>& data) {
  std::vector<std::byte> into(data.size() + 16, std::byte{0xEE});
  Ticket s = 0, r = 0;
  ASSERT_EQ(to.irecv(into.data(), into.size(), nullptr, &r), Io::done) << to.error().text;
  ASSERT_EQ(from.isend(data.data(), data.size(), nullptr, &s), Io::done) << from.error().text;
  size_t bytes = ~size_t{0};
  ASSERT_EQ(finish(to, &from, r, &bytes), Io::done) << to.error().text << from.error().text;
  EXPECT_EQ(bytes, data.size());
  ASSERT_EQ(finish(from, &to, s, &bytes), Io::done) << from.error().text;
  EXPECT_EQ(bytes, data.size());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), into.begin()));
  for (size_t i = data.size(); i < into.size(); ++i) {
    ASSERT_EQ(into[i], std::byte{0xEE}) << "written behind the message, at +" << i - data.size();
  }
}

}  // namespace prunex::transport
