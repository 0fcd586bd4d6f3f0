// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/call.h"

#include <bit>
#include <cstring>

#include "plugin/base/wire.h"

namespace prunex::collective {

void encode(const CallHeader& h, std::span<std::byte, CallHeader::kWireBytes> out) {
  WireWriter w(out);
  w.put(CallHeader::kMagic);
  w.put(CallHeader::kVersion);
  w.put(static_cast<uint8_t>(h.kind));
  w.put(static_cast<uint8_t>(h.audit));
  w.put(h.sequence);
  w.put(h.count);
  w.put(h.shape_digest);
  w.put(h.mask_digest);
  w.put(h.extra_digest);
  w.put(h.wire_kept);
  w.put(h.op);
  w.put(h.dtype);
  w.put(h.scope);
  w.put(h.audited);
  w.put(h.local_mismatch);
  w.put(h.late);
  w.zero(2);
  w.put(h.payload);
  w.put(static_cast<uint32_t>(h.culprit));
  w.zero(8);
}

Result<CallHeader> decode_call(std::span<const std::byte> bytes) {
  if (bytes.size() < CallHeader::kWireBytes) {
    return fail(Code::mismatch, strf("call header of %zu bytes, expected at least %zu",
                                     bytes.size(), CallHeader::kWireBytes));
  }
  WireReader r(bytes);
  const auto magic = r.get<uint32_t>();
  const auto version = r.get<uint16_t>();
  if (magic != CallHeader::kMagic || version != CallHeader::kVersion) {
    return fail(Code::mismatch,
                strf("call header with magic %08x version %u, expected %08x version %u", magic,
                     version, CallHeader::kMagic, CallHeader::kVersion));
  }
  CallHeader h;
  const auto kind = r.get<uint8_t>();
  const auto audit = r.get<uint8_t>();
  h.kind = static_cast<MessageKind>(kind);
  h.audit = static_cast<Audit>(audit);
  h.sequence = r.get<uint64_t>();
  h.count = r.get<uint64_t>();
  h.shape_digest = r.get<uint64_t>();
  h.mask_digest = r.get<uint64_t>();
  h.extra_digest = r.get<uint64_t>();
  h.wire_kept = r.get<uint64_t>();
  h.op = r.get<uint8_t>();
  h.dtype = r.get<uint8_t>();
  h.scope = r.get<uint8_t>();
  h.audited = r.get<uint8_t>();
  h.local_mismatch = r.get<uint8_t>();
  h.late = r.get<uint8_t>();
  r.skip(2);
  h.payload = r.get<uint32_t>();
  h.culprit = static_cast<int32_t>(r.get<uint32_t>());
  if (kind < 1 || kind > 3 || audit > 2 || h.op >= kNumOps || h.dtype >= kNumAllDTypes ||
      h.scope > 2) {
    return fail(Code::mismatch, strf("call header with kind %u audit %u op %u dtype %u scope %u",
                                     kind, audit, h.op, h.dtype, h.scope));
  }
  if (h.payload != bytes.size() - CallHeader::kWireBytes) {
    return fail(Code::mismatch, strf("call header announces %u bytes of payload, %zu came",
                                     h.payload, bytes.size() - CallHeader::kWireBytes));
  }
  return h;
}

}  // namespace prunex::collective
