// SPDX-License-Identifier: Apache-2.0
// A listening port trusts nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <random>

#include "plugin/bootstrap/wire.h"
#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

// Connects as soon as somebody listens.
Fd knock(const SocketAddress& at) {
  while (true) {
    auto fd = start_connect(at);
    pollfd one{fd ? fd->get() : -1, POLLOUT, 0};
    ::poll(&one, 1, 1000);
    const auto done = connect_done(one.fd, at);
    if (done && *done) {
      return std::move(*fd);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void say(const Fd& fd, std::string_view bytes) {
  (void)send_some(fd.get(), std::as_bytes(std::span(bytes.data(), bytes.size())));
}

std::string hello(uint32_t rank, uint32_t size, const std::string& name) {
  return wire::encode_frame(wire::Kind::hello, 0, wire::encode(wire::Hello{rank, size, {}, name}));
}

std::vector<std::string> strange_greetings() {
  std::mt19937 random(7);
  std::string noise(4096, '\0');
  for (char& c : noise) {
    c = static_cast<char>(random());
  }
  std::string long_claim = hello(1, 3, "default");
  long_claim[23] = '\x7F';
  std::string other_version = hello(1, 3, "default");
  other_version[4] = 9;
  return {
      "",
      "P",
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00", 7),  // TLS
      noise,
      std::string(100'000, '\0'),
      hello(1, 3, "default").substr(0, 20),
      hello(1, 3, "default").substr(0, 40),
      hello(1, 3, "default"),          // and never an ack
      hello(1, 3, "default") + noise,  // no ack but noise
      hello(1, 3, "other"),
      hello(0, 3, "default"),
      hello(77, 3, "default"),
      hello(UINT32_MAX, UINT32_MAX, "default"),
      long_claim,
      other_version,
      wire::encode_frame(wire::Kind::ack, 0, {}),
      wire::encode_frame(wire::Kind::verdict, 0, wire::encode(Verdict{0, Code::internal, "die"})),
      wire::encode_frame(wire::Kind::goodbye, 0, {})};
}

// The strays are there before the ranks, and stay; or hang up at once.
void meet_among_strays(bool stay) {
  const auto port = free_port();
  const SocketAddress at = *parse_host("127.0.0.1", port);
  const std::string root = to_text(at);
  std::atomic<bool> knocked{false};
  std::vector<Fd> strays;
  run_ranks({0, 1, 2, 3}, [&](int rank) {
    if (rank == 3) {
      for (const std::string& greeting : strange_greetings()) {
        Fd fd = knock(at);
        say(fd, greeting);
        if (stay) {
          strays.push_back(std::move(fd));
        }
      }
      knocked = true;
      return;
    }
    while (rank != 0 && !knocked) {
      std::this_thread::yield();
    }
    auto opened = Control::open(options_at(root, rank, 3));
    ASSERT_TRUE(opened) << opened.error().text;
    const auto got = (*opened)->all_gather(std::to_string(rank), kNeverS);
    ASSERT_TRUE(got) << got.error().text;
    EXPECT_EQ((*got)[1], "1");
  });
}

TEST(Strays, that_stay_block_nobody) { meet_among_strays(true); }
TEST(Strays, that_hang_up_block_nobody) { meet_among_strays(false); }

TEST(Strays, in_great_number) {
  const auto port = free_port();
  const SocketAddress at = *parse_host("127.0.0.1", port);
  std::vector<Fd> strays;
  std::atomic<bool> knocked{false};
  run_ranks({0, 1, 2}, [&](int rank) {
    if (rank == 2) {
      for (int i = 0; i < 400; ++i) {
        strays.push_back(knock(at));
      }
      knocked = true;
      return;
    }
    while (rank == 1 && !knocked) {
      std::this_thread::yield();
    }
    const auto opened = Control::open(options_at(to_text(at), rank, 2));
    EXPECT_TRUE(opened) << opened.error().text;
  });
}

TEST(Strays, silent_ones_are_dropped_after_a_while) {
  const auto port = free_port();
  const SocketAddress at = *parse_host("127.0.0.1", port);
  std::atomic<bool> dropped{false};
  run_ranks({0, 1, 2}, [&](int rank) {
    if (rank == 2) {
      const Fd fd = knock(at);
      pollfd one{fd.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&one, 1, 60'000), 1);
      std::array<std::byte, 1> byte{};
      EXPECT_EQ(recv_some(fd.get(), byte).state, Transfer::closed);
      dropped = true;
      return;
    }
    while (rank == 1 && !dropped) {
      std::this_thread::yield();
    }
    const auto opened = Control::open(options_at(to_text(at), rank, 2));
    EXPECT_TRUE(opened) << opened.error().text;
  });
}

TEST(Strays, without_the_cookie_learn_nothing_and_take_no_place) {
  MemoryStore store;
  std::atomic<bool> tried{false};
  run_ranks({0, 1, 2}, [&](int rank) {
    if (rank == 2) {
      const auto card = wire::decode_card(*store.callbacks().get("job/root", kNeverS));
      ASSERT_TRUE(card);
      const Fd fd = knock(card->addresses[0]);
      say(fd, hello(1, 2, "job"));  // right in all but the cookie
      pollfd one{fd.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&one, 1, 60'000), 1);
      std::array<std::byte, 1> byte{};
      EXPECT_EQ(recv_some(fd.get(), byte).state, Transfer::closed);
      tried = true;
      return;
    }
    while (rank == 1 && !tried) {
      std::this_thread::yield();
    }
    const auto opened = Control::open(options_with(store, rank, 2));
    EXPECT_TRUE(opened) << opened.error().text;
  });
}

TEST(Strays, another_version_is_told_ours) {
  const auto port = free_port();
  const SocketAddress at = *parse_host("127.0.0.1", port);
  std::atomic<bool> told{false};
  run_ranks({0, 1, 2}, [&](int rank) {
    if (rank == 2) {
      const Fd fd = knock(at);
      std::string greeting = hello(1, 2, "default");
      greeting[4] = 9;
      say(fd, greeting);
      pollfd one{fd.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&one, 1, 60'000), 1);
      std::array<std::byte, wire::kHeaderBytes> bytes{};
      EXPECT_EQ(recv_some(fd.get(), bytes).bytes, bytes.size());
      const auto header = wire::decode_header(bytes, 2);
      ASSERT_TRUE(header);
      EXPECT_EQ(header->kind, wire::Kind::refuse);
      told = true;
      return;
    }
    while (rank == 1 && !told) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(Control::open(options_at(to_text(at), rank, 2)));
  });
}

// The other direction: a member finds something that is not rank 0.
std::string member_meets(const std::string& answer, bool hang_up) {
  const auto listening = listen_tcp(*parse_host("127.0.0.1", free_port()));
  std::atomic<bool> done{false};
  std::string text;
  run_ranks({0, 1}, [&](int who) {
    if (who == 1) {
      const auto opened = Control::open(options_at(to_text(listening->address), 1, 2, 1.0));
      EXPECT_FALSE(opened);
      text = opened ? "" : strf("%d ", opened.error().rank) + opened.error().text;
      done = true;
      return;
    }
    std::vector<Fd> kept;
    while (!done) {
      if (auto accepted = accept_tcp(listening->fd.get()); accepted && *accepted) {
        say((*accepted)->fd, answer);
        if (!hang_up) {
          kept.push_back(std::move((*accepted)->fd));
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  return text;
}

TEST(Strays, a_server_that_is_not_rank_0) {
  using testing::HasSubstr;
  EXPECT_THAT(member_meets("HTTP/1.1 400 Bad Request\r\n\r\n", true), HasSubstr("not PruneX"));
  EXPECT_THAT(member_meets("SSH-2.0-OpenSSH_9.2\r\n", false), HasSubstr("not PruneX"));
  EXPECT_THAT(member_meets("", false), HasSubstr("said nothing"));
  EXPECT_THAT(member_meets("", true), HasSubstr("closed"));
  std::string other = wire::encode_frame(wire::Kind::welcome, 0, {});
  other[4] = 9;
  EXPECT_THAT(member_meets(other, false), HasSubstr("version 9"));
}

}  // namespace
}  // namespace prunex::test
