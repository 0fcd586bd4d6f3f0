// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that speak the C API only, and short forms of its structs.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "prunex/prunex.h"

namespace prunex::test {

class CStore {
 public:
  CStore() : store_{&CStore::set, &CStore::get, this} {}
  CStore(const CStore&) = delete;
  CStore& operator=(const CStore&) = delete;
  [[nodiscard]] const prunex_store_t* get_store() const { return &store_; }

 private:
  static int set(void* context, const char* key, const void* value, size_t length) {
    auto& self = *static_cast<CStore*>(context);
    const std::lock_guard lock(self.mutex_);
    self.values_[key] = std::string(static_cast<const char*>(value), length);
    self.changed_.notify_all();
    return 0;
  }
  static int get(void* context, const char* key, void* value, size_t capacity, size_t* length,
                 double timeout_s) {
    auto& self = *static_cast<CStore*>(context);
    std::unique_lock lock(self.mutex_);
    const auto there = [&] { return self.values_.contains(key); };
    if (!self.changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), there)) {
      return 1;
    }
    const std::string& found = self.values_[key];
    std::memcpy(value, found.data(), std::min(capacity, found.size()));
    *length = found.size();
    return 0;
  }

  prunex_store_t store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

#define EXPECT_OK(call)                                                         \
  do {                                                                          \
    const prunex_result_t result_ = (call);                                     \
    EXPECT_EQ(result_, PRUNEX_SUCCESS) << #call << ": " << prunex_last_error(); \
  } while (0)
#define ASSERT_OK(call)                                                         \
  do {                                                                          \
    const prunex_result_t result_ = (call);                                     \
    ASSERT_EQ(result_, PRUNEX_SUCCESS) << #call << ": " << prunex_last_error(); \
  } while (0)
// The code, and a word of the text that the user needs.
#define EXPECT_FAILS(call, code, word)                                        \
  do {                                                                        \
    EXPECT_EQ((call), (code)) << #call << ": " << prunex_last_error();        \
    EXPECT_NE(std::string(prunex_last_error()).find(word), std::string::npos) \
        << #call << ": " << prunex_last_error();                              \
  } while (0)

// Tests run on one machine, whatever interfaces it has.
inline void use_loopback() { ::setenv("PRUNEX_SOCKET_IFNAME", "lo", 1); }

inline void run_c_ranks(const std::vector<int>& node_of,
                        const std::function<void(prunex_comm_t, int rank)>& body) {
  use_loopback();
  CStore store;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < node_of.size(); ++r) {
    threads.emplace_back([&, r] {
      const std::string node = "node" + std::to_string(node_of[r]);
      prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
      config.rank = static_cast<int>(r);
      config.size = static_cast<int>(node_of.size());
      config.node_id = node.c_str();
      config.store = store.get_store();
      config.timeout_s = 60;
      prunex_comm_t comm = 0;
      ASSERT_OK(prunex_comm_create(&config, &comm));
      body(comm, static_cast<int>(r));
      EXPECT_OK(prunex_comm_destroy(comm));
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

// A one-dimensional fp32 tensor and a mask of bytes for it.
struct VectorMask {
  explicit VectorMask(std::vector<uint8_t> keep, prunex_contract_t contract = PRUNEX_LOSSLESS,
                      const char* name = "weight")
      : cells(std::move(keep)), size(static_cast<int64_t>(cells.size())) {
    tensor.struct_size = sizeof tensor;
    tensor.dtype = PRUNEX_FLOAT32;
    tensor.ndim = 1;
    tensor.sizes = &size;
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_BYTES;
    desc.contract = contract;
    desc.name = name;
    desc.declared_kept = -1;
    desc.cells = cells.data();
    desc.cells_len = cells.size();
  }
  VectorMask(const VectorMask&) = delete;
  VectorMask& operator=(const VectorMask&) = delete;

  std::vector<uint8_t> cells;
  int64_t size;
  prunex_tensor_t tensor{};
  prunex_mask_desc_t desc{};
};

[[nodiscard]] inline std::vector<uint8_t> keep_of(size_t n, size_t kept, size_t of) {
  std::vector<uint8_t> keep(n);
  for (size_t i = 0; i < n; ++i) {
    keep[i] = i % of < kept ? 1 : 0;
  }
  return keep;
}

[[nodiscard]] inline prunex_mask_info_t info_of(prunex_mask_t mask) {
  prunex_mask_info_t info{};
  info.struct_size = sizeof info;
  EXPECT_OK(prunex_mask_info(mask, &info));
  return info;
}

[[nodiscard]] inline prunex_stats_t stats_of(prunex_comm_t comm) {
  prunex_stats_t stats{};
  stats.struct_size = sizeof stats;
  EXPECT_OK(prunex_stats(comm, &stats));
  return stats;
}

[[nodiscard]] inline prunex_result_t sum(prunex_comm_t comm, const std::vector<float>& send,
                                         std::vector<float>& recv, prunex_layout_t layout = 0,
                                         const prunex_call_t* call = nullptr) {
  return prunex_all_reduce(comm, send.data(), recv.data(), send.size(), PRUNEX_FLOAT32, PRUNEX_SUM,
                           layout, call);
}

}  // namespace prunex::test
