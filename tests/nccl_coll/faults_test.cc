// SPDX-License-Identifier: Apache-2.0
// What goes wrong: nodes that do not come, processes that die or stand still, and closing at any
// time. Never a hang, and the message names the node.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "plugin/nccl/coll/connect.h"
#include "tests/collective/cluster.h"
#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

using prunex::test::LogCapture;

bool says(const std::vector<std::string>& lines, const std::string& what) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& l) { return l.find(what) != std::string::npos; });
}

TEST(CollNet, a_node_that_does_not_come_is_named_at_the_deadline) {
  use_loopback();
  Config config;
  config.socket_ifname = "lo";
  config.timeout_s = 0.5;
  const auto context = context_with(config);
  Handle handles[3];
  std::unique_ptr<ListenComm> listens[3];
  for (int n = 0; n < 3; ++n) {
    auto l = listen(context, 0, std::as_writable_bytes(std::span(handles[n])), HandleFor::coll);
    ASSERT_TRUE(l) << l.error().text;
    listens[n] = std::move(*l);
  }
  const void* all[] = {handles[0].data(), handles[1].data(), handles[2].data()};
  std::thread other([&] {
    const auto comm = coll::connect(all, 2, *listens[2]);
    EXPECT_FALSE(comm);
  });
  const auto comm = coll::connect(all, 0, *listens[0]);
  other.join();
  ASSERT_FALSE(comm);
  EXPECT_EQ(comm.error().rank, 1);
  EXPECT_NE(comm.error().text.find("node 1 (127.0.0.1:"), std::string::npos) << comm.error().text;
}

// A group of real processes; node `victim` is killed in the middle of its calls. Returns what the
// survivors said.
std::vector<std::string> kill_one(int nodes, int victim, size_t count) {
  use_loopback();
  std::vector<Handle> handles(static_cast<size_t>(nodes));
  std::vector<void*> listens(handles.size()), pointers;
  void* context = nullptr;
  EXPECT_EQ(coll_calls().init(&context, 3, nullptr), kSuccess);
  for (size_t n = 0; n < handles.size(); ++n) {
    EXPECT_EQ(coll_calls().listen(context, 0, handles[n].data(), &listens[n]), kSuccess);
    pointers.push_back(handles[n].data());
  }
  std::vector<std::array<int, 2>> pipes(handles.size());
  std::vector<pid_t> children;
  for (int n = 0; n < nodes; ++n) {
    EXPECT_EQ(::pipe(pipes[static_cast<size_t>(n)].data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      for (int other = 0; other < nodes; ++other) {
        if (other != n) {
          coll_calls().close_listen(listens[static_cast<size_t>(other)]);
        }
      }
      const LogCapture log;
      Node node;
      node.rank = n;
      if (coll_calls().connect(pointers.data(), nodes, n, listens[static_cast<size_t>(n)],
                               &node.comm) != kSuccess) {
        ::_exit(2);
      }
      coll_calls().close_listen(listens[static_cast<size_t>(n)]);
      std::vector<float> data(count, 1.0f), out(count);
      int rc = kSuccess;
      for (int i = 0; rc == kSuccess; ++i) {
        if (n == victim && i == 5) {  // in the middle of a call
          void* request = nullptr;
          (void)node.calls.iallreduce(node.comm, data.data(), out.data(), count, kFloat32, kSum,
                                      nullptr, nullptr, &request);
          ::raise(SIGKILL);
        }
        rc = node.all_reduce(data.data(), out.data(), count, kFloat32, kSum);
      }
      std::string said = std::to_string(rc) + ":";
      for (const std::string& w : log.warnings()) {
        said += " " + w;
      }
      said += log.warnings().size() == 1 ? "" : " (not one warning)";
      [[maybe_unused]] const ssize_t w =
          ::write(pipes[static_cast<size_t>(n)][1], said.data(), said.size());
      coll_calls().close_coll(node.comm);
      ::_exit(0);
    }
    children.push_back(child);
    ::close(pipes[static_cast<size_t>(n)][1]);
  }
  for (void* l : listens) {
    coll_calls().close_listen(l);
  }
  std::vector<std::string> said(handles.size());
  for (int n = 0; n < nodes; ++n) {
    char buffer[4096];
    for (ssize_t got = 0;
         (got = ::read(pipes[static_cast<size_t>(n)][0], buffer, sizeof buffer)) > 0;) {
      said[static_cast<size_t>(n)].append(buffer, static_cast<size_t>(got));
    }
    ::close(pipes[static_cast<size_t>(n)][0]);
    int status = 0;
    ::waitpid(children[static_cast<size_t>(n)], &status, 0);
    if (n != victim) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "node " << n;
    }
  }
  return said;
}

TEST(CollNet, a_killed_process_is_named_by_all_survivors) {
  for (const int nodes : {2, 4}) {
    for (const size_t count : {size_t{100}, size_t{1'000'000}}) {
      const int victim = nodes == 2 ? 0 : 2;
      const std::vector<std::string> said = kill_one(nodes, victim, count);
      for (int n = 0; n < nodes; ++n) {
        if (n == victim) {
          continue;
        }
        const std::string& s = said[static_cast<size_t>(n)];
        EXPECT_EQ(s.rfind(std::to_string(kRemoteError) + ":", 0), 0u) << "node " << n << ": " << s;
        const std::string who = "node " + std::to_string(victim) + " of " + std::to_string(nodes);
        EXPECT_NE(s.find(who + " (127.0.0.1:"), std::string::npos) << "node " << n << ": " << s;
        EXPECT_EQ(s.find("not one warning"), std::string::npos) << "node " << n << ": " << s;
      }
    }
  }
}

// A node closes while the others have a call open: they are told, and nobody hangs.
TEST(CollNet, closing_with_calls_in_flight) {
  for (const size_t count : {size_t{10}, size_t{3'000'000}}) {
    const LogCapture log;
    std::atomic<int> failed{0};
    run_nodes(3, [&](Node& node) {
      std::vector<float> data(count, 1.0f), out(count);
      ASSERT_EQ(node.all_reduce(data.data(), out.data(), count, kFloat32, kSum), kSuccess);
      if (node.rank == 1) {
        // Posted, perhaps begun, never tested; or not even posted.
        if (count > 10) {
          void* request = nullptr;
          ASSERT_EQ(node.calls.iallreduce(node.comm, data.data(), out.data(), count, kFloat32, kSum,
                                          nullptr, nullptr, &request),
                    kSuccess);
        }
        return;
      }
      const int rc = node.all_reduce(data.data(), out.data(), count, kFloat32, kSum);
      failed += rc == kRemoteError ? 1 : 0;
      // Dead is dead: no later call hangs or succeeds.
      EXPECT_EQ(node.all_reduce(data.data(), out.data(), count, kFloat32, kSum), rc);
    });
    EXPECT_EQ(failed, 2);
    EXPECT_TRUE(says(log.warnings(), "node 1 of 3"));
  }
}

// A group with a configuration of its own.
void run_configured(const Config& config, int nodes,
                    const std::function<void(coll::CollComm&)>& body) {
  std::vector<Handle> handles(static_cast<size_t>(nodes));
  std::vector<std::unique_ptr<ListenComm>> listens;
  std::vector<const void*> pointers;
  const auto context = context_with(config);
  for (Handle& h : handles) {
    auto l = listen(context, 0, std::as_writable_bytes(std::span(h)), HandleFor::coll);
    ASSERT_TRUE(l) << l.error().text;
    listens.push_back(std::move(*l));
    pointers.push_back(h.data());
  }
  std::vector<std::thread> threads;
  for (size_t n = 0; n < handles.size(); ++n) {
    threads.emplace_back([&, n] {
      auto comm = coll::connect(pointers, n, *listens[n]);
      ASSERT_TRUE(comm) << comm.error().text;
      body(**comm);
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

// One that has announced its call and then stands still, alive: given up after PRUNEX_TIMEOUT.
TEST(CollNet, a_node_that_stands_still_in_the_middle_of_a_call) {
  const LogCapture log;
  Config config;
  config.socket_ifname = "lo";
  config.timeout_s = 0.5;
  std::atomic<bool> over{false};
  run_configured(config, 2, [&](coll::CollComm& comm) {
    std::vector<float> data(4'000'000, 1.0f), out(data.size());
    auto request = comm.all_reduce({data.data(), out.data(), data.size(), DType::f32, Op::sum});
    // Both must have said what they will do before one of them falls asleep.
    for (int i = 0; i < 2000 && request && comm.self() == 1 && comm.stats().dense == 0; ++i) {
      const auto tested = comm.test(**request);
      ASSERT_TRUE(!tested || !*tested);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    while (comm.self() == 1 && !over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (comm.self() == 0) {
      ASSERT_TRUE(request);
      Result<bool> tested = false;
      while (tested && !*tested) {
        tested = comm.test(**request);
      }
      over = true;
      ASSERT_FALSE(tested);
      EXPECT_EQ(tested.error().code, Code::timeout) << tested.error().text;
      EXPECT_EQ(tested.error().rank, 1);
      EXPECT_NE(tested.error().text.find("node 1 of 2 (127.0.0.1:"), std::string::npos);
    }
  });
}

// Groups that are configured differently would cut their data differently.
TEST(CollNet, different_configurations_are_an_error) {
  const LogCapture log;
  std::vector<Handle> handles(2);
  std::unique_ptr<ListenComm> listens[2];
  const void* pointers[2];
  for (size_t n = 0; n < 2; ++n) {
    Config config;
    config.socket_ifname = "lo";
    config.algorithm = n == 0 ? "exchange" : "scatter";
    auto l = listen(context_with(config), 0, std::as_writable_bytes(std::span(handles[n])),
                    HandleFor::coll);
    ASSERT_TRUE(l);
    listens[n] = std::move(*l);
    pointers[n] = handles[n].data();
  }
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (size_t n = 0; n < 2; ++n) {
    threads.emplace_back([&, n] {
      auto comm = coll::connect(pointers, n, *listens[n]);
      ASSERT_TRUE(comm);
      std::vector<float> data(100'000, 1.0f);
      auto request =
          (*comm)->all_reduce({data.data(), data.data(), data.size(), DType::f32, Op::sum});
      Result<bool> tested = false;
      while (request && tested && !*tested) {
        tested = (*comm)->test(**request);
      }
      const Error e = request ? tested.error() : request.error();
      failed += e.code == Code::mismatch ? 1 : 0;
      EXPECT_NE(e.text.find("PRUNEX_ALGORITHM"), std::string::npos) << e.text;
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  EXPECT_EQ(failed, 2);
}

// PRUNEX_ON_MISMATCH=error, on one of the nodes: all return the same error.
TEST(CollNet, unequal_masks_are_an_error_where_that_is_asked_for) {
  const LogCapture log;
  Config config;
  config.socket_ifname = "lo";
  config.on_mismatch = OnMismatch::error;
  std::atomic<int> failed{0};
  run_configured(config, 2, [&](coll::CollComm& comm) {
    std::vector<float> data(50'000, 0.0f);
    std::vector<uint8_t> keep(data.size());
    for (size_t i = 0; i < keep.size(); ++i) {
      keep[i] = i % 3 == comm.self() ? 1 : 0;
    }
    prunex_mask_t mask = 0;
    const auto size = static_cast<int64_t>(keep.size());
    prunex_tensor_t tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.ndim = 1;
    tensor.sizes = &size;
    prunex_mask_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_BYTES;
    desc.declared_kept = -1;
    desc.cells = keep.data();
    desc.cells_len = keep.size();
    ASSERT_EQ(prunex_register_mask(data.data(), &tensor, &desc, &mask), PRUNEX_SUCCESS);
    auto request = comm.all_reduce({data.data(), data.data(), data.size(), DType::f32, Op::sum});
    Result<bool> tested = false;
    while (request && tested && !*tested) {
      tested = comm.test(**request);
    }
    const Error e = request ? tested.error() : request.error();
    failed += e.code == Code::mismatch ? 1 : 0;
    EXPECT_NE(e.text.find("PRUNEX_ON_MISMATCH"), std::string::npos) << e.text;
    EXPECT_EQ(prunex_unregister_mask(mask), PRUNEX_SUCCESS);
  });
  EXPECT_EQ(failed, 2);
}

// The first to finish may close at once; the others still get all of its data.
TEST(CollNet, closing_right_after_the_last_call) {
  const LogCapture log;
  for (int round = 0; round < 10; ++round) {
    run_nodes(3, [&](Node& node) {
      std::vector<float> data(round % 2 == 0 ? 4 : 500'000, 1.0f);
      if (node.rank == round % 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      ASSERT_EQ(node.all_reduce(data.data(), data.data(), data.size(), kFloat32, kSum), kSuccess);
      ASSERT_EQ(data.back(), 3.0f);
    });
  }
  EXPECT_TRUE(log.warnings().empty());
}

}  // namespace
}  // namespace prunex::nccl::test
