// SPDX-License-Identifier: Apache-2.0
// N ranks as N threads over loopback, and what they bring: options, a free port, a store in memory.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/sockets.h"
#include "plugin/bootstrap/control.h"

namespace prunex::test {

// Long enough for any machine; reached only when something is broken.
inline constexpr double kNeverS = 120;

using Opened = Result<std::unique_ptr<Control>>;

// A port below the kernel's own range, so that no test's ephemeral port takes it in between.
inline uint16_t free_port() {
  static std::atomic<unsigned> next{static_cast<unsigned>(::getpid()) * 37};
  for (int i = 0; i < 10'000; ++i) {
    const auto port = static_cast<uint16_t>(10'000 + next++ % 20'000);
    if (listen_tcp(*parse_host("127.0.0.1", port))) {
      return port;
    }
  }
  ADD_FAILURE() << "no free port";
  return 0;
}

inline std::string free_root() { return "127.0.0.1:" + std::to_string(free_port()); }

inline ControlOptions options_at(const std::string& root, int rank, int size,
                                 double timeout_s = kNeverS, const std::string& name = "default") {
  ControlOptions out;
  out.rank = rank;
  out.size = size;
  out.root = root;
  out.store_prefix = name;
  out.timeout_s = timeout_s;
  return out;
}

inline void run_ranks(const std::vector<int>& ranks, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&run, rank] { run(rank); });
  }
  for (std::thread& one : threads) {
    one.join();
  }
}

inline std::vector<int> up_to(int size) {
  std::vector<int> out;
  for (int rank = 0; rank < size; ++rank) {
    out.push_back(rank);
  }
  return out;
}

// All ranks of one communicator in this process.
struct World {
  std::vector<std::unique_ptr<Control>> ranks;
  explicit World(int size, const std::string& name = "default") : ranks(static_cast<size_t>(size)) {
    const std::string root = free_root();
    run_ranks(up_to(size), [&](int rank) {
      auto opened = Control::open(options_at(root, rank, size, kNeverS, name));
      ASSERT_TRUE(opened) << rank << ": " << opened.error().text;
      ranks[static_cast<size_t>(rank)] = std::move(*opened);
    });
  }
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  Control& operator[](int rank) { return *ranks[static_cast<size_t>(rank)]; }
};

// Polls one rank's control plane as an engine's progress thread does.
class Poller {
 public:
  explicit Poller(Control& control)
      : thread_([this, &control] {
          while (!stop_) {
            control.poll();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~Poller() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class MemoryStore {
 public:
  [[nodiscard]] StoreCallbacks callbacks() {
    return {[this](std::string_view key, std::string_view value) -> Result<> {
              const std::lock_guard lock(mutex_);
              entries_[std::string(key)] = value;
              changed_.notify_all();
              return {};
            },
            [this](std::string_view key, double timeout_s) -> Result<std::string> {
              std::unique_lock lock(mutex_);
              const auto there = [&] { return entries_.count(std::string(key)) != 0; };
              if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), there)) {
                return fail(Code::timeout, "the store has no such key");
              }
              return entries_[std::string(key)];
            }};
  }
  [[nodiscard]] std::string at(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return entries_[key];
  }
  void put(const std::string& key, const std::string& value) { (void)callbacks().set(key, value); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> entries_;
};

inline ControlOptions options_with(MemoryStore& store, int rank, int size,
                                   double timeout_s = kNeverS, const std::string& name = "job") {
  ControlOptions out = options_at("", rank, size, timeout_s, name);
  out.store = store.callbacks();
  return out;
}

}  // namespace prunex::test
