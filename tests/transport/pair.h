// SPDX-License-Identifier: Apache-2.0
// Two ends of a connection in one process, driven by turns: every interleaving of the conformance
// suite is the test's own.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
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

// Messages for receives whose memory is registered anew with `to` for each, and given back while
// the other end may write there. registered(): how many regions there are.
template <class Registered>
void receive_into_fresh_regions(Transport& to, Pair& p, size_t bytes, Registered registered) {
  const auto out = pattern(bytes, 21);
  std::vector<std::byte> into(out.size());
  const auto before = registered();
  for (int i = 0; i < 1000; ++i) {
    auto region = to.register_memory(into.data(), into.size());
    ASSERT_TRUE(region);
    Ticket s = 0, r = 0;
    size_t arrived = 0;
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), region->get(), &r), Io::done);
    region->reset();
    ASSERT_EQ(registered(), before + 1);
    ASSERT_EQ(p.a->isend(out.data(), out.size(), nullptr, &s), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &arrived), Io::done) << p.b->error().text;
    ASSERT_EQ(finish(*p.a, p.b.get(), s, &arrived), Io::done) << p.a->error().text;
    ASSERT_EQ(registered(), before);
    ASSERT_EQ(into, out);
    std::fill(into.begin(), into.end(), std::byte{});
  }
}

}  // namespace prunex::transport
