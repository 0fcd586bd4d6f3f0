// SPDX-License-Identifier: Apache-2.0
// Ranks as processes or as threads of one process, and the board on which they exchange handles.
// The test's own process never loads the plugin: it forks first.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "tests/nccl/host/tables.h"

namespace prunex::nccl::host {

inline constexpr int kMaxRanks = 8, kMaxChannels = 8;
inline constexpr double kPatienceSeconds = 60;  // with a loaded machine in mind

enum class Ranks { processes, threads };

struct Board {  // lies in memory that all ranks share
  struct Mail {
    std::atomic<uint32_t> full;
    Handle bytes;
  };
  std::atomic<uint32_t> failed;
  std::atomic<uint64_t> arrivals;
  Mail mail[kMaxRanks][kMaxRanks][kMaxChannels];
};

// Calls until it answers true.
void wait_for(const char* what, const std::function<bool()>& ready, const Board* board = nullptr);

class Rank {
 public:
  Rank(Board& board, int rank, int size) : board_(board), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const Board& board() const { return board_; }
  void post(int to, int channel, const Handle& handle);
  void take(int from, int channel,
            Handle& handle);  // one message per (from, to, channel) at a time
  void barrier();

 private:
  Board& board_;
  int rank_, size_;
  uint64_t barriers_ = 0;
};

// "" when all ranks' bodies return; else what failed first, "skip: …" as it is.
std::string run_world(Ranks kind, int ranks, const std::function<void(Rank&)>& body);

// One body in a process of its own.
std::string in_child(const std::function<void()>& body);

}  // namespace prunex::nccl::host

// Fails or skips the test by what run_world() or in_child() said.
#define PRUNEX_EXPECT_WELL(said)         \
  do {                                   \
    const std::string text_ = (said);    \
    if (text_.rfind("skip: ", 0) == 0) { \
      GTEST_SKIP() << text_.substr(6);   \
    }                                    \
    EXPECT_EQ(text_, "");                \
  } while (0)
