// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/p2p_note.h"

#include "plugin/base/wire.h"

namespace prunex::collective {

void encode(const Note& note, std::span<std::byte, Note::kWireBytes> out) {
  WireWriter w(out);
  w.put(Note::kMagic);
  w.put(static_cast<uint32_t>(note.kind));
  w.put(static_cast<uint64_t>(note.tag));
  w.put(note.bytes);
  w.put(note.id);
}

Result<Note> decode_note(std::span<const std::byte> bytes) {
  WireReader r(bytes);
  const auto magic = r.get<uint32_t>();
  const auto kind = r.get<uint32_t>();
  Note note;
  note.kind = static_cast<Note::Kind>(kind);
  note.tag = static_cast<int64_t>(r.get<uint64_t>());
  note.bytes = r.get<uint64_t>();
  note.id = r.get<uint64_t>();
  const uint64_t follows = note.kind == Note::Kind::eager ? note.bytes : 0;
  if (!r.ok() || magic != Note::kMagic || kind < 1 || kind > 3 || r.left() != follows) {
    return fail(Code::mismatch,
                strf("a note of %zu bytes with magic %08x kind %u announces %llu bytes",
                     bytes.size(), magic, kind, static_cast<unsigned long long>(note.bytes)));
  }
  return note;
}

std::string p2p_hello(int rank) {
  WireAppender w;
  w.put(Note::kMagic);
  w.put(static_cast<uint32_t>(rank));
  return w.take();
}

int decode_p2p_hello(std::string_view hello, int world_size) {
  WireReader r(hello);
  const auto magic = r.get<uint32_t>();
  const auto rank = r.get<uint32_t>();
  const bool good =
      r.ok() && r.left() == 0 && magic == Note::kMagic && rank < static_cast<uint32_t>(world_size);
  return good ? static_cast<int>(rank) : -1;
}

}  // namespace prunex::collective
