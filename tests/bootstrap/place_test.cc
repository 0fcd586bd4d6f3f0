// SPDX-License-Identifier: Apache-2.0
// Where rank 0 listens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "plugin/base/interfaces.h"
#include "plugin/bootstrap/wire.h"
#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void expect_meets(const std::string& root) {
  run_ranks({0, 1}, [&](int rank) {
    const auto opened = Control::open(options_at(root, rank, 2));
    EXPECT_TRUE(opened) << root << ": " << opened.error().text;
  });
}

TEST(Place, numbers_names_and_both_families) {
  const std::string port = ":" + std::to_string(free_port());
  expect_meets("127.0.0.1" + port);
  expect_meets("127.0.0.2" + port);
  expect_meets("localhost" + port);
  if (listen_tcp(*parse_host("::1", 0))) {
    expect_meets("[::1]" + port);
  }
}

TEST(Place, own_host_name_whatever_it_resolves_to) {
  char name[256] = "";
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);
  const HostPort root{name, free_port()};
  if (!resolve(root)) {
    GTEST_SKIP() << "this machine cannot resolve its own name";
  }
  expect_meets(to_text(root));
}

TEST(Place, every_address_of_this_machine) {
  const auto have = list_interfaces();
  ASSERT_TRUE(have);
  for (const Interface& one : *have) {
    if (one.up && one.address && !one.address.is_link_local()) {
      expect_meets(to_text(HostPort{host_text(one.address), free_port()}));
    }
  }
}

TEST(Place, rank_0_on_another_machine_than_the_root_names_it) {
  const auto opened = Control::open(options_at("192.0.2.77:4711", 0, 2));  // RFC 5737: nobody's
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::config);
  EXPECT_THAT(opened.error().text,
              AllOf(HasSubstr("PRUNEX_ROOT=192.0.2.77:4711"),
                    HasSubstr("no address of this machine"), HasSubstr("lo(127.0.0.1)")));
}

TEST(Place, port_that_a_stranger_holds) {
  const auto stranger = listen_tcp(*parse_host("127.0.0.1", free_port()));
  ASSERT_TRUE(stranger);
  const auto opened = Control::open(options_at(to_text(stranger->address), 0, 2));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::system);
  EXPECT_THAT(opened.error().text, AllOf(HasSubstr(to_text(stranger->address)),
                                         HasSubstr("in use by something that is not")));
}

TEST(Place, stranger_that_leaves_in_time) {
  auto stranger = listen_tcp(*parse_host("127.0.0.1", free_port()));
  ASSERT_TRUE(stranger);
  const std::string root = to_text(stranger->address);
  run_ranks({0, 1, 2}, [&](int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      stranger->fd.reset();
      return;
    }
    const auto opened = Control::open(options_at(root, rank, 2));
    EXPECT_TRUE(opened) << opened.error().text;
  });
}

TEST(Place, store_gets_a_port_of_the_range) {
  MemoryStore store;
  const uint16_t port = free_port();
  run_ranks({0, 1}, [&](int rank) {
    ControlOptions options = options_with(store, rank, 2);
    options.socket_ifname = "lo";
    options.port_range = strf("%u-%u", unsigned{port}, unsigned{port});
    const auto opened = Control::open(options);
    EXPECT_TRUE(opened) << opened.error().text;
  });
  const auto card = wire::decode_card(store.at("job/root"));
  ASSERT_TRUE(card) << card.error().text;
  for (const SocketAddress& one : card->addresses) {
    EXPECT_EQ(one.port(), port);
  }
}

TEST(Reports, C14_range_is_used_up) {
  const auto taken = listen_tcp(*parse_host("127.0.0.1", free_port()));
  const auto taken6 = listen_tcp(*parse_host("::1", taken->address.port()));
  MemoryStore store;
  ControlOptions options = options_with(store, 0, 2);
  options.socket_ifname = "lo";
  options.port_range = std::to_string(taken->address.port());
  const auto opened = Control::open(options);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().text,
              AllOf(HasSubstr("PRUNEX_PORT_RANGE=" + options.port_range), HasSubstr("has 1 port,"),
                    HasSubstr("a leader needs one port for each rail")));
}

TEST(Reports, C1_no_such_interface_fails_on_every_rank_at_once) {
  MemoryStore store;
  for (const int rank : {0, 1}) {
    for (ControlOptions options :
         {options_with(store, rank, 2), options_at(free_root(), rank, 2)}) {
      options.socket_ifname = "eth77";
      const auto opened = Control::open(options);
      ASSERT_FALSE(opened);
      EXPECT_EQ(opened.error().code, Code::config);
      EXPECT_THAT(opened.error().text, AllOf(HasSubstr("eth77"), HasSubstr("lo(")));
    }
  }
}

}  // namespace
}  // namespace prunex::test
