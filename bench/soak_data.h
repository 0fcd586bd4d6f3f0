// SPDX-License-Identifier: Apache-2.0
// The messages of a soak run: sizes, kinds and contents as a function of a seed, so that the
// receiver knows every byte.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace prunex::soak {

inline constexpr size_t kMost = size_t{2} << 20;        // bytes of a message
inline constexpr size_t kMaskRun = 1024;                // bytes that a mask keeps or drops together
inline constexpr size_t kSmallSlot = size_t{64} << 10;  // of LL-sized buffers
inline constexpr int kInflight = 8;
inline constexpr size_t kLlBytes = kSmallSlot * kInflight;  // tells NCCL's LL protocol

constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E37'79B9'7F4A'7C15U + b + 0x632B'E59B'D9B4'E019U;
  z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9U;
  z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBU;
  return z ^ (z >> 31);
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix(state_++, 77); }
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

enum class Kind : uint8_t { dense = 0, zero_blocks, masked, dirty, low_latency };
inline constexpr size_t kKinds = 5;
inline constexpr const char* kKindNames[kKinds] = {"dense", "zero-blocks", "masked", "dirty", "LL"};

struct Plan {
  Kind kind = Kind::dense;
  size_t bytes = 0;
  size_t offset = 0;  // of masked ones in their slot
  uint64_t seed = 0;
};

// Whether the mask of this seed keeps the run of the tensor.
inline bool keeps(uint64_t mask_seed, size_t run) { return mix(mask_seed, run) % 5 < 2; }

inline Plan plan_of(uint64_t link_seed, int direction, uint64_t number) {
  Dice dice(mix(mix(link_seed, static_cast<uint64_t>(direction)), number));
  Plan plan;
  plan.kind = static_cast<Kind>(dice.below(kKinds));
  plan.seed = dice.next();
  switch (dice.below(8)) {
    case 0:
      plan.bytes = dice.below(65);
      break;
    case 1:
    case 2:
      plan.bytes = dice.below(size_t{8} << 10);
      break;
    case 3:
      plan.bytes = size_t{1} << dice.below(22);
      break;
    default:
      plan.bytes = dice.below(dice.one_in(4) ? kMost : size_t{300} << 10);
  }
  if (plan.kind == Kind::low_latency) {
    plan.bytes = std::min(plan.bytes, kSmallSlot);
  } else if (plan.kind == Kind::masked || plan.kind == Kind::dirty) {
    plan.bytes &= ~size_t{3};
    plan.offset = dice.below(kMost - plan.bytes + 1) & ~size_t{3};
  }
  return plan;
}

// slot_offset: of the message's first byte in the masked tensor.
inline void write_message(const Plan& plan, uint64_t mask_seed, size_t slot_offset, std::byte* to) {
  const bool masked = plan.kind == Kind::masked || plan.kind == Kind::dirty;
  uint64_t state = plan.seed;
  for (size_t i = 0; i < plan.bytes;) {
    const size_t place = masked ? slot_offset + i : i;
    const size_t run = masked ? kMaskRun : 512;
    const size_t length = std::min(plan.bytes - i, run - place % run);
    const bool zero = masked
                          ? !keeps(mask_seed, place / run)
                          : plan.kind == Kind::zero_blocks && mix(plan.seed, place / run) % 3 != 0;
    if (zero) {
      std::memset(to + i, 0, length);
    } else {
      for (size_t j = 0; j < length; j += 8) {
        const uint64_t word = mix(state++, 5) | 1;
        std::memcpy(to + i + j, &word, std::min<size_t>(8, length - j));
      }
    }
    i += length;
  }
  if (plan.kind == Kind::dirty && plan.bytes > 0) {  // somewhere, wherever the mask stands
    to[plan.seed % plan.bytes] = std::byte{0x80};
  }
}

}  // namespace prunex::soak
