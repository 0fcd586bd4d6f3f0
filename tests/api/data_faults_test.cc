// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stay away or close while data move, as real processes: every survivor fails and
// names the same rank. A program of its own: it forks before it has threads.
#include "tests/api/api_world.h"
#include "tests/collective/rank_processes.h"

namespace prunex::test {
namespace {

constexpr double kTimeoutS = 3;
constexpr size_t kSize = 2'000'000;

struct Report {
  int code = -1, again = -1;
  char text[400] = {};
};

struct Scenario {
  const char* name;
  std::vector<int> node_of;
  int victim;
  enum class Fault { kill, absent } fault;  // absent: makes a few calls, then no more
  prunex_result_t (*call)(prunex_comm_t, std::vector<uint8_t>& a, std::vector<uint8_t>& b, int rank,
                          int size);
};

std::ostream& operator<<(std::ostream& out, const Scenario& s) { return out << s.name; }

prunex_result_t broadcast(prunex_comm_t c, std::vector<uint8_t>& a, std::vector<uint8_t>&, int,
                          int) {
  return prunex_broadcast(c, a.data(), kSize, 1, nullptr);
}
prunex_result_t all_gather(prunex_comm_t c, std::vector<uint8_t>& a, std::vector<uint8_t>& b, int,
                           int size) {
  return prunex_all_gather(c, a.data(), b.data(), kSize / static_cast<size_t>(size), nullptr);
}
prunex_result_t reduce_scatter(prunex_comm_t c, std::vector<uint8_t>& a, std::vector<uint8_t>& b,
                               int, int size) {
  return prunex_reduce_scatter(c, a.data(), b.data(), kSize / static_cast<size_t>(size),
                               PRUNEX_UINT8, PRUNEX_SUM, nullptr);
}
prunex_result_t barrier(prunex_comm_t c, std::vector<uint8_t>&, std::vector<uint8_t>&, int, int) {
  return prunex_barrier(c);
}
// A ring of messages: some ranks neither send to the victim nor hear from it.
template <size_t n>
prunex_result_t ring(prunex_comm_t c, std::vector<uint8_t>& a, std::vector<uint8_t>& b, int rank,
                     int size) {
  prunex_request_t got = 0;
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.request = &got;
  const prunex_result_t posted = prunex_recv(c, b.data(), n, (rank + size - 1) % size, 0, &call);
  if (posted != PRUNEX_SUCCESS) {
    return posted;
  }
  const prunex_result_t sent = prunex_send(c, a.data(), n, (rank + 1) % size, 0, nullptr);
  const prunex_result_t received = prunex_request_wait(got);
  return sent != PRUNEX_SUCCESS ? sent : received;
}

void live(const Scenario& s, int rank, int port, int report_fd) {
  use_loopback();
  const int size = static_cast<int>(s.node_of.size());
  const std::string root = "127.0.0.1:" + std::to_string(port);
  const std::string node = "node" + std::to_string(s.node_of[static_cast<size_t>(rank)]);
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  config.rank = rank;
  config.size = size;
  config.root = root.c_str();
  config.node_id = node.c_str();
  config.timeout_s = kTimeoutS;
  prunex_comm_t comm = 0;
  Report report;
  std::vector<uint8_t> a(kSize), b(kSize);
  prunex_result_t last = prunex_comm_create(&config, &comm);
  for (int i = 0; i < 1'000'000 && last == PRUNEX_SUCCESS; ++i) {
    if (rank == s.victim && i == 5 && s.fault == Scenario::Fault::absent) {
      ::pause();
    }
    last = s.call(comm, a, b, rank, size);
  }
  report.code = last;
  std::snprintf(report.text, sizeof report.text, "%s", prunex_last_error());
  report.again = prunex_barrier(comm);
  (void)!::write(report_fd, &report, sizeof report);
}

class DataFaults : public ::testing::TestWithParam<Scenario> {};

TEST_P(DataFaults, SurvivorsNameTheSameRank) {
  const Scenario& s = GetParam();
  const int port = free_port();
  const int size = static_cast<int>(s.node_of.size());
  const RankProcesses ranks(size, 60, [&](int rank, int report_fd) {
    live(s, rank, port, report_fd);
    ::pause();  // an orderly end is another thing to notice
  });
  if (s.fault == Scenario::Fault::kill) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    ranks.signal(s.victim, SIGKILL);
  }
  for (int r = 0; r < size; ++r) {
    if (r == s.victim) {
      continue;
    }
    Report report;
    if (!ranks.read(r, &report)) {
      ADD_FAILURE() << "rank " << r << " did not report";
      continue;
    }
    EXPECT_EQ(report.code,
              s.fault == Scenario::Fault::kill ? PRUNEX_ERROR_PEER_LOST : PRUNEX_ERROR_TIMEOUT)
        << report.text;
    EXPECT_NE(std::string(report.text).find("rank " + std::to_string(s.victim)), std::string::npos)
        << "rank " << r << ": " << report.text;
    EXPECT_EQ(report.again, report.code) << "rank " << r;
  }
}

using Fault = Scenario::Fault;
INSTANTIATE_TEST_SUITE_P(
    Cases, DataFaults,
    ::testing::Values(Scenario{"broadcast_leader_killed", {0, 0, 1, 1}, 2, Fault::kill, broadcast},
                      Scenario{"broadcast_root_killed", {0, 0, 1, 1, 2}, 1, Fault::kill, broadcast},
                      Scenario{"broadcast_middle_killed", {0, 0, 1, 2}, 2, Fault::kill, broadcast},
                      Scenario{"gather_follower_killed", {0, 0, 1, 1}, 3, Fault::kill, all_gather},
                      Scenario{
                          "scatter_rank_0_killed", {0, 0, 1, 1}, 0, Fault::kill, reduce_scatter},
                      Scenario{"barrier_absent", {0, 0, 1, 1}, 3, Fault::absent, barrier},
                      Scenario{"gather_absent", {0, 1, 1}, 0, Fault::absent, all_gather},
                      Scenario{"message_absent", {0, 1}, 1, Fault::absent, ring<1'000'000>},
                      Scenario{"small_message_absent", {0, 0}, 0, Fault::absent, ring<100>},
                      Scenario{"ring_killed", {0, 0, 1, 1}, 2, Fault::kill, ring<1'000'000>},
                      Scenario{"small_ring_killed", {0, 0, 1, 1}, 3, Fault::kill, ring<100>},
                      Scenario{"ring_rank_0_killed", {0, 0, 1, 1}, 0, Fault::kill, ring<100>},
                      Scenario{"ring_in_a_node_killed", {0, 0, 0}, 1, Fault::kill, ring<100'000>}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

}  // namespace
}  // namespace prunex::test
