// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/head.h"

#include "plugin/base/wire.h"

namespace prunex::nccl::coll {

void encode(const CollHead& h, std::span<std::byte, CollHead::kWireBytes> out) {
  WireWriter w(out);
  w.put(static_cast<uint8_t>(h.function));
  w.put(static_cast<uint8_t>(h.wish));
  w.put(h.contract);
  w.put(h.inlined);
  w.put(h.strict);
  w.zero(3);
  w.put(h.map_bytes);
  w.put(h.inline_bytes);
  w.put(h.piece);
  w.put(h.bytes_per_rank);
  w.put(h.window_offset);
  w.put(h.window_bytes);
  w.put(h.offender);
  w.put(h.nonzero);
}

Result<CollMessage> decode(const collective::CallHeader& header,
                           std::span<const std::byte> payload) {
  CollMessage m;
  m.header = header;
  if (payload.size() < CollHead::kWireBytes) {
    return fail(Code::mismatch, strf("a collective's head of %zu bytes, expected at least %zu",
                                     payload.size(), CollHead::kWireBytes));
  }
  WireReader r(payload);
  const auto function = r.get<uint8_t>();
  const auto wish = r.get<uint8_t>();
  m.head.contract = r.get<uint8_t>();
  m.head.inlined = r.get<uint8_t>();
  m.head.strict = r.get<uint8_t>();
  r.skip(3);
  m.head.map_bytes = r.get<uint32_t>();
  m.head.inline_bytes = r.get<uint32_t>();
  m.head.piece = r.get<uint64_t>();
  m.head.bytes_per_rank = r.get<uint64_t>();
  m.head.window_offset = r.get<uint64_t>();
  m.head.window_bytes = r.get<uint64_t>();
  m.head.offender = r.get<uint64_t>();
  m.head.nonzero = r.get<uint64_t>();
  if (function > 2 || wish > 2 || m.head.contract > 2 || m.head.inlined > 1 || m.head.strict > 1) {
    return fail(Code::mismatch, strf("a collective's head with function %u, wish %u, contract %u",
                                     function, wish, m.head.contract));
  }
  const size_t body = payload.size() - CollHead::kWireBytes;
  if (m.head.map_bytes > body || m.head.inline_bytes != body - m.head.map_bytes) {
    return fail(Code::mismatch, strf("a collective's head announces %u and %u bytes, %zu came",
                                     m.head.map_bytes, m.head.inline_bytes, body));
  }
  m.head.function = static_cast<Function>(function);
  m.head.wish = static_cast<Wish>(wish);
  m.map = payload.subspan(CollHead::kWireBytes, m.head.map_bytes);
  m.data = payload.subspan(CollHead::kWireBytes + m.head.map_bytes, m.head.inline_bytes);
  return m;
}

}  // namespace prunex::nccl::coll
