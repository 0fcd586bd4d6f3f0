// SPDX-License-Identifier: Apache-2.0
// N ranks as N threads on emulated nodes: an in-memory store, real shared memory, real sockets on
// loopback.
#pragma once
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plugin/base/log.h"
#include "plugin/collective/comm.h"

namespace prunex::test {

class MemoryStore {
 public:
  [[nodiscard]] StoreCallbacks callbacks() {
    StoreCallbacks c;
    c.set = [this](std::string_view key, std::string_view value) -> Result<> {
      const std::lock_guard lock(mutex_);
      values_[std::string(key)] = std::string(value);
      changed_.notify_all();
      return {};
    };
    c.get = [this](std::string_view key, double timeout_s) -> Result<std::string> {
      std::unique_lock lock(mutex_);
      const bool there = changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                           [&] { return values_.contains(std::string(key)); });
      if (!there) {
        return fail(Code::timeout, "key " + std::string(key) + " did not come");
      }
      return values_[std::string(key)];
    };
    return c;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// node_of[r]: the node of rank r. `{0,0,1,1}` is two nodes of two ranks.
[[nodiscard]] inline std::vector<int> nodes_of(std::initializer_list<int> ranks_per_node) {
  std::vector<int> out;
  int node = 0;
  for (const int n : ranks_per_node) {
    out.insert(out.end(), static_cast<size_t>(n), node++);
  }
  return out;
}

// Catches messages while it lives. One at a time: the sink belongs to the process.
class LogCapture {
 public:
  LogCapture() {
    lines().clear();
    set_log_sink([](LogLevel level, const char*, int, const char* text) {
      const std::lock_guard lock(mutex());
      if (level == LogLevel::warn) {
        lines().emplace_back(text);
      }
    });
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture() { set_log_sink(nullptr); }
  [[nodiscard]] std::vector<std::string> warnings() const {
    const std::lock_guard lock(mutex());
    return lines();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> l;
    return l;
  }
};

struct ClusterOptions {
  std::function<void(int rank, collective::CommOptions&)> adjust;
  double timeout_s = 60;
};

// Every rank creates a communicator and runs `body`. A rank whose creation fails gets a test
// failure.
inline void run_ranks(const std::vector<int>& node_of,
                      const std::function<void(collective::Comm&, int rank)>& body,
                      const ClusterOptions& options = {}) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < node_of.size(); ++r) {
    threads.emplace_back([&, r] {
      collective::CommOptions o;
      o.config.rank = static_cast<int>(r);
      o.config.size = static_cast<int>(node_of.size());
      o.config.node_id = "node" + std::to_string(node_of[r]);
      o.config.socket_ifname = "lo";
      o.config.timeout_s = options.timeout_s;
      o.store = store.callbacks();
      if (options.adjust) {
        options.adjust(static_cast<int>(r), o);
      }
      auto comm = collective::Comm::create(o);
      ASSERT_TRUE(comm) << "rank " << r << ": " << comm.error().text;
      body(**comm, static_cast<int>(r));
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

}  // namespace prunex::test
