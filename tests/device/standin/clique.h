// SPDX-License-Identifier: Apache-2.0
// Ranks of one communicator, threads of one process: they meet at each collective, the last to come
// does it for all.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/device/nccl_library.h"

namespace prunex::test::standin {

enum class Verb { all_reduce, reduce, reduce_scatter, all_gather, broadcast };

struct Work {
  Verb verb = Verb::all_reduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  int type = 0, op = 0, root = 0;
};

struct Clique;

struct Member {
  std::shared_ptr<Clique> clique;  // null: a split that is not over; under split_mutex() until then
  int rank = 0;
  std::atomic<int> error{0};
  std::atomic<bool> aborted{false};
  uint64_t met = 0;  // collectives so far; on the stream, in order
  uint64_t splits = 0;
  std::atomic<bool> splitting{false};
};
using MemberPtr = std::shared_ptr<Member>;

struct Clique {
  explicit Clique(int n) : size(n) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  struct Round {
    std::map<int, Work> works;
    bool done = false;
    int error = 0, left = 0;
  };
  std::map<uint64_t, Round> rounds;
  struct Split {
    struct Part {
      int color, key;
      std::weak_ptr<Member> parent;  // it holds the clique that holds this
      MemberPtr child;
    };
    std::map<int, Part> parts;  // by rank
  };
  std::map<uint64_t, Split> splits;
};

// Blocks until all have come, or this member is aborted. The round's error.
[[nodiscard]] int meet(const MemberPtr& member, const Work& work);
// Returns at once; over when `splitting` is false again. Null: this member is in no part.
[[nodiscard]] MemberPtr split(const MemberPtr& member, int color, int key);
[[nodiscard]] std::mutex& split_mutex();

}  // namespace prunex::test::standin
