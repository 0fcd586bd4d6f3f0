// SPDX-License-Identifier: Apache-2.0
// What two ranks say to each other about a message between them. Small messages travel behind their
// note (eager); of a long one the note only offers it, and the data follow once the receiver has
// said where they go (taken).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plugin/base/result.h"

namespace prunex::collective {

struct Note {
  static constexpr uint32_t kMagic = 0x50525850;  // "PXRP"
  static constexpr size_t kWireBytes = 32;
  // Messages up to this are sent at once, while no more than kEagerWindow bytes of such messages
  // to one peer lie with it untaken: that bounds what a rank that receives late has to keep.
  static constexpr size_t kEagerBytes = 16 * 1024;
  static constexpr size_t kEagerWindow = 256 * 1024;
  static constexpr size_t kLeastWeight = 256;  // what an untaken message counts at least, bytes

  enum class Kind : uint32_t { eager = 1, offer, taken };
  Kind kind = Kind::eager;
  int64_t tag = 0;
  uint64_t bytes = 0;  // of the message
  uint64_t id = 0;     // counts the sender's messages to this peer
};

void encode(const Note& note, std::span<std::byte, Note::kWireBytes> out);
// `bytes`: a whole received message; an eager note is followed by note.bytes of data, others by
// none.
[[nodiscard]] Result<Note> decode_note(std::span<const std::byte> bytes);

// The connecting rank introduces itself.
[[nodiscard]] std::string p2p_hello(int rank);
// -1: nobody of this world.
[[nodiscard]] int decode_p2p_hello(std::string_view hello, int world_size);

}  // namespace prunex::collective
