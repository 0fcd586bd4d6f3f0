// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/world.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::host {
namespace {

constexpr unsigned kKillSeconds = 150;  // a process that hangs ends by SIGALRM

// The body's failure, with the plugin's last warning, which mostly says why.
std::string run_body(const std::function<void()>& body) {
  std::string said;
  try {
    body();
  } catch (const std::exception& e) {
    said = e.what();
    if (said.empty()) {
      said = "failed without a word";
    }
    if (const auto warnings = log_lines(abi::kLogWarn); !warnings.empty()) {
      said += " [plugin: " + warnings.back().text + "]";
    }
  }
  return said;
}

struct Child {
  pid_t pid;
  int from;
};

Child start(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return {-1, -1};
  }
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    ::alarm(kKillSeconds);
    const std::string said = body();
    const bool ok = ::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    std::fflush(nullptr);
    ::_exit(ok ? 0 : 1);
  }
  ::close(ends[1]);
  return {pid, ends[0]};
}

std::string finish(const Child& child) {
  if (child.pid < 0) {
    return "no process";
  }
  std::string said;
  std::array<char, 1024> buffer;
  for (ssize_t n; (n = ::read(child.from, buffer.data(), buffer.size())) > 0;) {
    said.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(child.from);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status)) {
    said += std::string(" (ended by ") + ::strsignal(WTERMSIG(status)) + ")";
  } else if (WEXITSTATUS(status) != 0) {
    said += " (exit status " + std::to_string(WEXITSTATUS(status)) + ")";
  }
  return said;
}

// What others say after the first failure is a consequence of it.
constexpr const char* kOtherFailed = "another rank failed";

std::string of_rank(int rank, const std::string& said) {
  return said.rfind("skip: ", 0) == 0 ? said : "rank " + std::to_string(rank) + ": " + said;
}

}  // namespace

void wait_for(const char* what, const std::function<bool()>& ready, const Board* board) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatienceSeconds);
  for (int round = 0; !ready(); ++round) {
    if (board != nullptr && board->failed.load(std::memory_order_relaxed) != 0) {
      throw Failure(kOtherFailed);
    }
    if (round % 16 == 15) {
      PRUNEX_MUST(std::chrono::steady_clock::now() < end, "waited %g s for: %s", kPatienceSeconds,
                  what);
      ::sched_yield();
    }
  }
}

void Rank::post(int to, int channel, const Handle& handle) {
  Board::Mail& mail = board_.mail[rank_][to][channel];
  wait_for(
      "an empty mailbox", [&] { return mail.full.load() == 0; }, &board_);
  std::memcpy(mail.bytes, handle, sizeof mail.bytes);
  mail.full.store(1, std::memory_order_release);
}

void Rank::take(int from, int channel, Handle& handle) {
  Board::Mail& mail = board_.mail[from][rank_][channel];
  wait_for(
      "a handle", [&] { return mail.full.load(std::memory_order_acquire) == 1; }, &board_);
  std::memcpy(handle, mail.bytes, sizeof mail.bytes);
  mail.full.store(0, std::memory_order_release);
}

void Rank::barrier() {
  ++barriers_;
  board_.arrivals.fetch_add(1);
  const uint64_t all = barriers_ * static_cast<uint64_t>(size_);
  wait_for(
      "all ranks at a barrier", [&] { return board_.arrivals.load() >= all; }, &board_);
}

std::string in_child(const std::function<void()>& body) {
  return finish(start([&] { return run_body(body); }));
}

std::string run_world(Ranks kind, int ranks, const std::function<void(Rank&)>& body) {
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return "no memory for the board";
  }
  Board& board = *new (memory) Board{};
  const auto run_rank = [&](int rank) {
    Rank self(board, rank, ranks);
    const std::string said = run_body([&] { body(self); });
    if (!said.empty()) {
      board.failed.store(1);
    }
    return said;
  };
  std::vector<std::string> said(static_cast<size_t>(ranks));
  if (kind == Ranks::processes) {
    std::vector<Child> children;
    for (int rank = 0; rank < ranks; ++rank) {
      children.push_back(start([&, rank] { return run_rank(rank); }));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      said[static_cast<size_t>(rank)] = finish(children[static_cast<size_t>(rank)]);
    }
  } else {
    said.assign(
        1, finish(start([&] {
          std::vector<std::thread> threads;
          std::vector<std::string> each(static_cast<size_t>(ranks));
          for (int rank = 0; rank < ranks; ++rank) {
            threads.emplace_back([&, rank] { each[static_cast<size_t>(rank)] = run_rank(rank); });
          }
          std::string all;
          for (size_t i = 0; i < threads.size(); ++i) {
            threads[i].join();
            if (!each[i].empty() && (all.empty() || all.find(kOtherFailed) != std::string::npos)) {
              all = of_rank(static_cast<int>(i), each[i]);
            }
          }
          return all;
        })));
  }
  ::munmap(memory, sizeof(Board));
  std::string first;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const bool blind = first.find(kOtherFailed) != std::string::npos;
    if (!said[rank].empty() && (first.empty() || blind)) {
      first = kind == Ranks::threads ? said[rank] : of_rank(static_cast<int>(rank), said[rank]);
    }
  }
  return first;
}

}  // namespace prunex::nccl::host
