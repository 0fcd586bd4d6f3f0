// SPDX-License-Identifier: Apache-2.0
// Two ends of a connection in one process, driven by turns: every interleaving of the conformance
// suite is the test's own.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

inline constexpr double kPatience = 120;  // seconds until a test calls it a hang

struct Pair {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> a, b;  // a connected, b accepted
};

inline Pair make_pair(Transport& from, Transport& to, std::string_view hello = "hi") {
  Pair p;
  auto listener = to.listen();
  EXPECT_TRUE(listener) << listener.error().text;
  if (!listener) {
    return p;
  }
  p.listener = std::move(*listener);
  auto connecting = from.connect(p.listener->handle(), hello, 30);
  EXPECT_TRUE(connecting) << connecting.error().text;
  const Deadline deadline = Deadline::after(kPatience);
  while (connecting && (!p.a || !p.b) && !deadline.passed()) {
    if (!p.a) {
      auto r = (*connecting)->step();
      EXPECT_TRUE(r) << r.error().text;
      if (!r) {
        break;
      }
      p.a = std::move(*r);
    }
    if (!p.b) {
      auto r = p.listener->accept();
      EXPECT_TRUE(r) << r.error().text;
      if (!r) {
        break;
      }
      p.b = std::move(*r);
    }
  }
  EXPECT_TRUE(p.a && p.b);
  return p;
}

// Tests `ticket`, letting the other end work too, until it is decided.
inline Io finish(Connection& c, Connection* other, Ticket ticket, size_t* bytes) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    const Io r = c.test(ticket, bytes);
    if (r != Io::again) {
      return r;
    }
    if (other != nullptr) {
      (void)other->progress();
    }
  }
  ADD_FAILURE() << "hangs";
  return Io::again;
}

inline std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  uint64_t x = seed * 0x9E3779B97F4A7C15 + 1;
  for (std::byte& b : out) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    b = static_cast<std::byte>(x);
  }
  return out;
}

}  // namespace prunex::transport
