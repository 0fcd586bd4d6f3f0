// SPDX-License-Identifier: Apache-2.0
// What needs a network of its own: black holes, single families, routes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/netns.h"
#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string open_text(const ControlOptions& options) {
  const auto opened = Control::open(options);
  return opened
             ? "open"
             : strf("%d %d ", int(opened.error().code), opened.error().rank) + opened.error().text;
}

TEST(Reports, C15_dropped_syns_are_retried_and_counted) {
  const auto got = in_network_namespace(
      "ip link set lo up && ip link add eno1 type veth peer name p1 && ip link set eno1 up && "
      "ip link set p1 up && ip addr add 10.9.0.2/24 dev eno1 && "
      "ip neigh add 10.9.0.1 lladdr 02:00:00:00:00:01 dev eno1 && "
      "echo 1 > /proc/sys/net/ipv4/tcp_syn_retries",
      [] { return open_text(options_at("10.9.0.1:4711", 1, 2, 4.0)); });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, AllOf(testing::StartsWith(strf("%d 0 ", int(Code::timeout))),
                              HasSubstr("10.9.0.1:4711"), HasSubstr("attempts")));
}

TEST(Reports, C6_root_of_a_family_that_is_not_here) {
  const auto got = in_network_namespace(
      "ip link set lo up && ip link add eno1 type veth peer name p1 && ip link set eno1 up && "
      "ip link set p1 up && ip -6 addr add fd00:9::2/64 dev eno1 nodad",
      [] { return open_text(options_at("10.9.0.1:4711", 1, 2)); });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, AllOf(HasSubstr("10.9.0.1:4711"), HasSubstr("IPv4"), HasSubstr("IPv6"),
                              HasSubstr("fd00:9::2")));
}

TEST(Reports, C4_store_address_without_a_route_is_passed_over) {
  // Rank 0 publishes both its addresses; from where rank 1 is only the second can be reached.
  const auto got = in_network_namespace(
      "ip link set lo up && ip link add eno1 type veth peer name p1 && "
      "ip link add eno2 type veth peer name p2 && ip link set eno1 up && ip link set p1 up && "
      "ip link set eno2 up && ip link set p2 up && ip addr add 10.9.0.2/24 dev eno1 && "
      "ip addr add 10.8.0.2/24 dev eno2",
      [] {
        MemoryStore store;
        std::array<std::string, 2> texts;
        run_ranks({0, 1}, [&](int rank) {
          ControlOptions options = options_with(store, rank, 2);
          if (rank == 1) {
            const StoreCallbacks real = store.callbacks();
            options.store->get = [real](std::string_view key, double s) -> Result<std::string> {
              auto card = real.get(key, s);
              const size_t at = card ? card->find("10.9.0.2") : std::string::npos;
              return at == std::string::npos ? card : card->replace(at, 8, "10.7.0.2");
            };
          }
          texts[static_cast<size_t>(rank)] = open_text(options);
        });
        return texts[0] + ", " + texts[1];
      });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_EQ(got.text, "open, open");
}

TEST(Reports, C18_store_gets_the_routed_address_of_lo) {
  const auto got = in_network_namespace("ip link set lo up && ip addr add 10.77.0.1/32 dev lo", [] {
    MemoryStore store;
    run_ranks({0, 1}, [&](int rank) {
      ControlOptions options = options_with(store, rank, 2);
      options.socket_ifname = "lo";
      (void)Control::open(options);
    });
    return store.at("job/root");
  });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, testing::ContainsRegex("^prunex1 [0-9a-f]* 10\\.77\\.0\\.1:"));
}

TEST(Namespace, machine_with_ipv6_alone) {
  const auto got = in_network_namespace(
      "ip link set lo up && ip link add eno1 type veth peer name p1 && ip link set eno1 up && "
      "ip link set p1 up && ip -6 addr add fd00:9::2/64 dev eno1 nodad",
      [] {
        std::array<std::string, 4> texts;
        MemoryStore store;
        const std::string root = "[fd00:9::2]:4711";
        run_ranks({0, 1}, [&](int rank) {
          texts[static_cast<size_t>(rank)] = open_text(options_at(root, rank, 2));
          texts[static_cast<size_t>(rank + 2)] = open_text(options_with(store, rank, 2));
        });
        return texts[0] + ", " + texts[1] + ", " + texts[2] + ", " + texts[3];
      });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_EQ(got.text, "open, open, open, open");
}

}  // namespace
}  // namespace prunex::test
