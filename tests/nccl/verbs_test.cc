// SPDX-License-Identifier: Apache-2.0
// Which network the plugin chooses, and what it says of that, on a libibverbs that is made of
// tests. LD_LIBRARY_PATH leads to it; FAKE_IBVERBS says what devices it has.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>

#include "tests/nccl/pipe.h"

namespace prunex::nccl::host {
namespace {

void use(const char* devices, const char* transport = nullptr) {
  ::setenv("FAKE_IBVERBS", devices, 1);
  ::setenv("PRUNEX_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_DEBUG", "INFO", 1);
  transport == nullptr ? ::unsetenv("PRUNEX_TRANSPORT")
                       : ::setenv("PRUNEX_TRANSPORT", transport, 1);
}

size_t lines_with(int level, const std::string& text) {
  size_t n = 0;
  for (const LogLine& line : log_lines(level)) {
    n += line.text.find(text) != std::string::npos ? 1 : 0;
  }
  return n;
}

std::string said() {
  std::string all;
  for (const int level : {abi::kLogWarn, abi::kLogInfo}) {
    for (const LogLine& line : log_lines(level)) {
      all += line.text + "\n";
    }
  }
  return all;
}

std::vector<Properties> devices_of(HostNet& net) {
  PRUNEX_MUST(net.init(1, -1, log_from_plugin) == kSuccess);
  int count = 0;
  PRUNEX_MUST(net.devices(&count) == kSuccess);
  std::vector<Properties> out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    PRUNEX_MUST(net.properties(i, &out[static_cast<size_t>(i)]) == kSuccess);
  }
  return out;
}

std::vector<std::string> names_of(HostNet& net) {
  std::vector<std::string> out;
  for (const Properties& p : devices_of(net)) {
    out.push_back(p.name);
  }
  return out;
}

using Names = std::vector<std::string>;

// The devices under a filter, with what else the environment says; "" or what is wrong.
void expect_devices(const char* devices, const char* hca, const Names& expected) {
  SCOPED_TRACE(hca);
  PRUNEX_EXPECT_WELL(in_child([&] {
    use(devices);
    ::setenv("NCCL_IB_HCA", hca, 1);
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(names_of(*net) == expected, "%s", said().c_str());
  }));
}

// init fails, and its warning holds all of these.
void expect_refused(const std::function<void()>& set, const std::vector<std::string>& words) {
  PRUNEX_EXPECT_WELL(in_child([&] {
    set();
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) != kSuccess);
    for (const std::string& word : words) {
      PRUNEX_MUST(lines_with(abi::kLogWarn, word) > 0, "%s is not in: %s", word.c_str(),
                  said().c_str());
    }
  }));
}

TEST(Verbs, a_device_per_port_with_its_own_identity) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("mlx5_1:2,mlx5_0:1");
    const auto net = open_net(load_plugin(plugin_path()), 12);
    const auto devices = devices_of(*net);
    PRUNEX_MUST(devices.size() == 2 && devices[0].name == "mlx5_0" && devices[1].name == "mlx5_1");
    PRUNEX_MUST(devices[0].guid != devices[1].guid && devices[0].port == 1);
    PRUNEX_MUST(devices[0].pci_path.empty() && devices[0].speed > 0, "no PCI path is no fault");
    PRUNEX_MUST(devices[0].ptr_support == kPtrHost && log_lines(abi::kLogWarn).empty());
    PRUNEX_MUST(lines_with(abi::kLogInfo, "RDMA: mlx5_0:1, mlx5_1:1") == 1, "%s", said().c_str());
  }));
}

TEST(Verbs, no_device_is_sockets_and_one_line) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("");
    Pipe pipe(12);
    pipe.exchange(pattern(100000, 1));
    pipe.close();
    PRUNEX_MUST(lines_with(abi::kLogInfo, "TCP sockets and no RDMA") == 1, "%s", said().c_str());
    PRUNEX_MUST(log_lines(abi::kLogWarn).empty());
  }));
}

TEST(Verbs, asked_for_sockets_nothing_is_said_of_rdma) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("rxe0:1", "socket");
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(names_of(*net) == Names{"lo"} && lines_with(abi::kLogInfo, "RDMA") == 0);
  }));
}

TEST(Verbs, forced_and_missing_is_an_error_with_the_remedy) {
  expect_refused([] { use("", "verbs"); }, {"PRUNEX_TRANSPORT=verbs", "no RDMA device", "unset"});
  expect_refused([] { use("rxe0:1:down", "verbs"); }, {"rxe0:1", "DOWN", "unset"});
  expect_refused(
      [] {
        use("rxe0:1", "verbs");
        ::setenv("NCCL_IB_DISABLE", "1", 1);
      },
      {"PRUNEX_TRANSPORT=verbs", "NCCL_IB_DISABLE"});
}

TEST(Verbs, disabled_as_nccl_disables_it) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("rxe0:1");
    ::setenv("NCCL_IB_DISABLE", "1", 1);
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(names_of(*net) == Names{"lo"} && lines_with(abi::kLogInfo, "IB_DISABLE") > 0);
  }));
}

TEST(Verbs, a_gid_index_that_is_not_there_is_an_error) {
  expect_refused(
      [] {
        use("rxe0:1");
        ::setenv("NCCL_IB_GID_INDEX", "7", 1);
      },
      {"GID_INDEX=7", "::ffff:10.0.0.1"});
}

// An end that uses RDMA cannot talk with one that does not: both are told, and how to go on.
TEST(Verbs, ends_of_different_networks_are_told_so) {
  PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 2, [](Rank& rank) {
    use("rxe0:1", rank.rank() == 0 ? "verbs" : "socket");
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) == kSuccess);
    Handle own{}, theirs{};
    void *listening = nullptr, *send = nullptr;
    PRUNEX_MUST(net->listen(0, own, &listening) == kSuccess);
    rank.post(1 - rank.rank(), 0, own);
    rank.take(1 - rank.rank(), 0, theirs);
    PRUNEX_MUST(net->connect(0, theirs, &send) != kSuccess);
    PRUNEX_MUST(lines_with(abi::kLogWarn, "PRUNEX_TRANSPORT=socket") == 1, "%s", said().c_str());
    rank.barrier();
  }));
}

TEST(Reports, A8_rdma_devices_are_in_one_order) {
  for (const char* list :
       {"mlx5_0:1,mlx5_1:2,mlx5_2:3", "mlx5_2:3,mlx5_0:1,mlx5_1:2", "mlx5_1:2,mlx5_2:3,mlx5_0:1"}) {
    expect_devices(list, "", {"mlx5_0", "mlx5_1", "mlx5_2"});
  }
}

TEST(Reports, B8_locked_memory_is_sockets_and_the_limit_is_named) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("rxe0:1:nomem");
    const rlimit limit{65536, 65536};
    PRUNEX_MUST(::setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    Pipe pipe(12);
    pipe.exchange(pattern(100000, 1));
    pipe.close();
    PRUNEX_MUST(lines_with(abi::kLogInfo, "65536") == 1, "%s", said().c_str());
    PRUNEX_MUST(lines_with(abi::kLogInfo, "ulimit -l") == 1 && log_lines(abi::kLogWarn).empty());
  }));
  expect_refused(
      [] {
        use("rxe0:1:nomem", "verbs");
        const rlimit limit{65536, 65536};
        (void)::setrlimit(RLIMIT_MEMLOCK, &limit);
      },
      {"PRUNEX_TRANSPORT=verbs", "65536", "CAP_IPC_LOCK", "unset PRUNEX_TRANSPORT"});
  PRUNEX_EXPECT_WELL(in_child([] {  // once: a log's line ends somewhere
    use("rxe0:1:nomem", "verbs");
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) != kSuccess);
    const std::string all = said();
    PRUNEX_MUST(all.find("CAP_IPC_LOCK") != std::string::npos &&
                    all.find("CAP_IPC_LOCK") == all.rfind("CAP_IPC_LOCK"),
                "%s", all.c_str());
  }));
}

TEST(Reports, B15_devices_by_nccls_grammar) {
  const char* two = "mlx5_1:1,mlx5_11:2";
  expect_devices(two, "=mlx5_1:1", {"mlx5_1"});
  expect_devices(two, "mlx5_1", {"mlx5_1", "mlx5_11"});
  expect_devices(two, "^=mlx5_1", {"mlx5_11"});
  expect_devices(two, "^mlx5_1", {"lo"});  // all are excluded: TCP
  expect_devices(two, "^", {"lo"});
  expect_devices(two, ",mlx5_11,,", {"mlx5_11"});
  expect_refused(
      [two] {
        use(two);
        ::setenv("NCCL_IB_HCA", "mlxl5_7", 1);
      },
      {"mlxl5_7", "mlx5_11"});
}

TEST(Reports, B15_a_word_that_matches_nothing_is_a_warning) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("mlx5_1:1");
    ::setenv("PRUNEX_IB_HCA", "mlx5_1,mlxl5_7", 1);
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(names_of(*net) == Names{"mlx5_1"});
    PRUNEX_MUST(lines_with(abi::kLogWarn, "mlxl5_7") == 1, "%s", said().c_str());
  }));
}

TEST(Reports, B16_devices_that_cannot_be_used_are_left_out_and_said) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("rxe0:1,rxe1:2:closed,rxe2:3:down");
    const auto net = open_net(load_plugin(plugin_path()), 12);
    PRUNEX_MUST(names_of(*net) == Names{"rxe0"});
    PRUNEX_MUST(lines_with(abi::kLogInfo, "rxe1:1 is not used: it cannot be opened") == 1 &&
                    lines_with(abi::kLogInfo, "rxe2:1 is not used: its state is DOWN") == 1,
                "%s", said().c_str());
    PRUNEX_MUST(log_lines(abi::kLogWarn).empty());
  }));
}

TEST(Reports, B18_functions_with_one_guid_are_two_devices) {
  PRUNEX_EXPECT_WELL(in_child([] {
    use("mlx5_0:1,mlx5_1:2");  // the fake gives all of them one node GUID, and each port 1
    const auto net = open_net(load_plugin(plugin_path()), 12);
    const auto devices = devices_of(*net);
    PRUNEX_MUST(devices.size() == 2 && devices[0].guid != devices[1].guid);
    PRUNEX_MUST(devices[0].port == 1 && devices[1].port == 1);
  }));
}

}  // namespace
}  // namespace prunex::nccl::host
