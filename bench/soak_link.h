// SPDX-License-Identifier: Apache-2.0
// One connection of a soak run, both directions, driven by one thread. Every byte is checked.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "bench/soak_data.h"
#include "plugin/base/result.h"
#include "tools/net_api.h"
#include "tools/p2p_data.h"

namespace prunex::soak {

struct Counts {
  uint64_t messages = 0, bytes = 0, wrong = 0;
  std::array<uint64_t, kKinds> sent{};
};

class Link {
 public:
  // side: 0 or 1. messages: in each direction.
  Link(tools::NetApi& api, const tools::PluginLibrary& library, uint64_t seed, int side,
       uint64_t messages);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // handle: 128 bytes, for the other end.
  [[nodiscard]] Result<> listen(std::string* handle);
  void aim(const std::string& handle);
  // true: connected in both directions.
  [[nodiscard]] Result<bool> connect();
  // true: something moved. An error is the network's, or a message that is not what was sent.
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] bool done() const { return received_ == messages_ && sent_ == messages_; }
  // Given up while connecting: tables before v11 have no call that tells the plugin.
  [[nodiscard]] bool abandoned() const { return send_ == nullptr; }
  [[nodiscard]] uint64_t received() const { return received_; }
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  [[nodiscard]] Result<> prepare();
  [[nodiscard]] Result<bool> post_sends();
  [[nodiscard]] Result<bool> post_receives();
  [[nodiscard]] Result<bool> reap();
  [[nodiscard]] Result<> check(uint64_t number, int bytes);
  [[nodiscard]] std::byte* place_of(uint64_t number, const Plan& plan, void** mr, size_t* offset);

  tools::NetApi& api_;
  const tools::PluginLibrary& library_;
  uint64_t seed_;
  int side_;
  uint64_t messages_;
  alignas(8) std::array<char, nccl::kHandleBytes> handle_{};
  void *listen_ = nullptr, *send_ = nullptr, *recv_ = nullptr;
  tools::P2pSlots plain_, masked_, small_, in_;
  tools::P2pBuffer scratch_;
  void *plain_mr_ = nullptr, *masked_mr_ = nullptr, *small_mr_ = nullptr, *in_mr_ = nullptr;
  prunex_mask_t mask_ = 0;
  std::array<void*, kInflight> sends_{}, receives_{};
  uint64_t posted_ = 0, sent_ = 0, awaited_ = 0, received_ = 0;
  Counts counts_;
};

}  // namespace prunex::soak
