// SPDX-License-Identifier: Apache-2.0
// What the messages hold: random bytes, with runs of zeros where asked for. A function of seed,
// sender and size, so that the receiver knows every byte.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "prunex/prunex.h"
#include "tools/p2p.h"

namespace prunex::tools {

// Memory of its own pages.
class P2pBuffer {
 public:
  P2pBuffer() = default;
  ~P2pBuffer() { reset(); }
  P2pBuffer(P2pBuffer&& other) noexcept { swap(other); }
  P2pBuffer& operator=(P2pBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  [[nodiscard]] static Result<P2pBuffer> make(size_t bytes);
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  void reset();
  void swap(P2pBuffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Messages of one size, side by side. `kept`: in ascending order; what is not kept is zero.
struct P2pSlots {
  P2pBuffer buffer;
  size_t stride = 0, bytes = 0;
  std::vector<prunex_range_t> kept;  // bytes of the buffer
  double density = 1;
  [[nodiscard]] std::byte* slot(uint64_t message, int slots) const {
    return buffer.data() + static_cast<size_t>(message % static_cast<uint64_t>(slots)) * stride;
  }
};

// Room for `slots` messages. NCCL's own buffers have lengths that tell its protocols apart; this
// one has none of them.
[[nodiscard]] Result<P2pSlots> make_slots(size_t bytes, int slots);
// Fills them for the end that sends.
void fill_slots(const P2pSpec& spec, int sender, int slots, P2pSlots& into);

// With --check every message begins with its number, as far as it has room for one.
void stamp(std::byte* message, size_t bytes, uint64_t number);
// Bytes that differ from `expected`, which is stamped first.
[[nodiscard]] uint64_t wrong_bytes(const std::byte* got, std::byte* expected, size_t bytes,
                                   uint64_t number);

// prunex_register_mask and the others of the library that the plugin itself uses.
class PluginLibrary {
 public:
  explicit PluginLibrary(void* library);
  [[nodiscard]] bool is_prunex() const { return stats_ != nullptr; }
  [[nodiscard]] bool stats(prunex_net_stats_t* out) const;
  // Publishes what `slots` keeps.
  [[nodiscard]] Result<prunex_mask_t> publish(const P2pSlots& slots) const;
  void withdraw(prunex_mask_t mask) const;

 private:
  decltype(&prunex_register_mask) register_ = nullptr;
  decltype(&prunex_unregister_mask) unregister_ = nullptr;
  decltype(&prunex_net_stats) stats_ = nullptr;
  decltype(&prunex_last_error) last_error_ = nullptr;
};

}  // namespace prunex::tools
