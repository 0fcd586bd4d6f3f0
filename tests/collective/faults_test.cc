// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop or come late, as real processes: every survivor fails in the same call or
// the next, all name the same rank, and a fresh communicator works afterwards in the same
// processes.
#include <chrono>
#include <cstring>
#include <thread>

#include "plugin/collective/comm.h"
#include "tests/collective/rank_processes.h"

namespace prunex::test {
namespace {

using collective::CallSpec;
using collective::Comm;
using collective::CommOptions;
using collective::Scope;

// What a survivor tells the test through its pipe.
struct Report {
  int failed = 0;  // the first communicator failed
  int code = -1, rank = -1;
  int again = 0;  // the next call on it failed with the same rank
  int fresh = 0;  // a communicator of the survivors gave the right sum
  char text[400] = {};
};

Result<std::unique_ptr<Comm>> make_comm(int rank, int size, int node, int port, double timeout_s) {
  CommOptions o;
  o.config.rank = rank;
  o.config.size = size;
  o.config.node_id = "node" + std::to_string(node);
  o.config.socket_ifname = "lo";
  o.config.root = "127.0.0.1:" + std::to_string(port);
  o.config.timeout_s = timeout_s;
  return Comm::create(o);
}

Result<> sum_of_ones(Comm& comm, size_t count, float expect) {
  std::vector<float> data(count, 1);
  CallSpec spec;
  spec.send = spec.recv = data.data();
  spec.count = count;
  auto result = comm.all_reduce(spec);
  if (result && (data.front() != expect || data.back() != expect)) {
    return fail(Code::internal, "wrong sum");
  }
  return result;
}

struct Scenario {
  const char* name;
  std::vector<int> node_of;
  int victim;
  // What happens to the victim. stop: SIGSTOP, until the survivors have reported.
  enum class Fault { kill, stop, late, close } fault;
  size_t count = 3'000'000;
};

std::ostream& operator<<(std::ostream& out, const Scenario& s) { return out << s.name; }

class Faults : public ::testing::TestWithParam<Scenario> {};

constexpr double kTimeoutS = 3;
constexpr int kCallsBefore = 3;

void survive(const Scenario& s, int rank, const std::vector<int>& ports, int report_fd) {
  Report report;
  const int size = static_cast<int>(s.node_of.size());
  {
    auto comm = make_comm(rank, size, s.node_of[static_cast<size_t>(rank)], ports[0], kTimeoutS);
    if (!comm) {
      std::snprintf(report.text, sizeof report.text, "create: %s", comm.error().text.c_str());
      (void)!::write(report_fd, &report, sizeof report);
      return;
    }
    Result<> last;
    for (int i = 0; i < 100'000 && last; ++i) {
      if (rank == s.victim && i == kCallsBefore && s.fault == Scenario::Fault::late) {
        std::this_thread::sleep_for(std::chrono::duration<double>(kTimeoutS + 6));
      }
      if (rank == s.victim && i == kCallsBefore && s.fault == Scenario::Fault::close) {
        comm->reset();
        break;
      }
      last = sum_of_ones(**comm, s.count, static_cast<float>(size));
    }
    if (!last) {
      report.failed = 1;
      report.code = static_cast<int>(last.error().code);
      report.rank = last.error().rank;
      std::snprintf(report.text, sizeof report.text, "%s", last.error().text.c_str());
      auto next = sum_of_ones(**comm, 10, static_cast<float>(size));
      report.again = !next && next.error().rank == report.rank ? 1 : 0;
    }
  }
  if (rank != s.victim) {
    const int fresh_rank = rank > s.victim ? rank - 1 : rank;
    auto comm = make_comm(fresh_rank, size - 1, s.node_of[static_cast<size_t>(rank)], ports[1], 60);
    if (comm) {
      report.fresh = sum_of_ones(**comm, s.count, static_cast<float>(size - 1)) ? 1 : 0;
    } else {
      std::snprintf(report.text, sizeof report.text, "fresh: %s", comm.error().text.c_str());
    }
  }
  (void)!::write(report_fd, &report, sizeof report);
}

TEST_P(Faults, SurvivorsNameTheSameRankAndGoOn) {
  const Scenario& s = GetParam();
  const int size = static_cast<int>(s.node_of.size());
  const std::vector<int> ports = {free_port(), free_port()};
  const RankProcesses ranks(size, 100,
                            [&](int rank, int report_fd) { survive(s, rank, ports, report_fd); });
  if (s.fault == Scenario::Fault::kill || s.fault == Scenario::Fault::stop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    ranks.signal(s.victim, s.fault == Scenario::Fault::kill ? SIGKILL : SIGSTOP);
  }
  for (int r = 0; r < size; ++r) {
    if (r == s.victim) {
      continue;
    }
    Report report;
    ASSERT_TRUE(ranks.read(r, &report)) << "rank " << r << " did not report";
    EXPECT_EQ(report.failed, 1) << "rank " << r << ": " << report.text;
    EXPECT_EQ(report.rank, s.victim) << "rank " << r << ": " << report.text;
    EXPECT_NE(std::string(report.text).find("rank " + std::to_string(s.victim)), std::string::npos)
        << report.text;
    EXPECT_EQ(report.again, 1) << "rank " << r;
    EXPECT_EQ(report.fresh, 1) << "rank " << r << ": " << report.text;
  }
}

using Fault = Scenario::Fault;
INSTANTIATE_TEST_SUITE_P(
    Cases, Faults,
    ::testing::Values(Scenario{"killed_follower", {0, 0, 1, 1}, 3, Fault::kill},
                      Scenario{"killed_leader", {0, 0, 1, 1}, 2, Fault::kill},
                      Scenario{"killed_rank_0", {0, 0, 1, 1}, 0, Fault::kill},
                      Scenario{"killed_in_one_node", {0, 0, 0}, 1, Fault::kill},
                      Scenario{"killed_of_three_nodes", {0, 1, 2}, 1, Fault::kill},
                      Scenario{"stopped_follower", {0, 0, 1, 1}, 1, Fault::stop},
                      Scenario{"stopped_leader", {0, 0, 1, 1}, 2, Fault::stop},
                      Scenario{"stopped_rank_0", {0, 0, 1, 1}, 0, Fault::stop},
                      Scenario{"late_follower", {0, 0, 1, 1}, 3, Fault::late},
                      Scenario{"late_leader", {0, 0, 1, 1}, 2, Fault::late, 100},
                      Scenario{"closed_follower", {0, 0, 1, 1}, 3, Fault::close},
                      Scenario{"closed_leader", {0, 0, 1, 1}, 2, Fault::close, 100}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

}  // namespace
}  // namespace prunex::test
