// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/wire.h"

#include <algorithm>

#include "plugin/base/wire.h"
#include "plugin/transport/bytes.h"
#include "plugin/transport/socket/wire.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint32_t kEndpointMagic = 0x45585250;  // "PRXE"
constexpr size_t kMaxName = 80, kMaxFailure = 800;

template <size_t N>
void put_text(Writer& out, const std::string& text) {
  const size_t n = std::min(text.size(), N);
  out.put(static_cast<uint16_t>(n));
  out.put(std::as_bytes(std::span(text.data(), n)));
}

std::string get_text(Reader& in, size_t limit, bool* ok) {
  const size_t n = in.get<uint16_t>();
  if (n > limit) {
    *ok = false;
    return {};
  }
  std::string text(n, '\0');
  in.get(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string wrap_handle(std::string_view meeting) {
  std::array<std::byte, kHandlePrefixBytes> prefix{};
  Writer out(prefix);
  put_handle_prefix(out, HandleKind::verbs, Cookie{});  // the cookie is in the inner one
  return std::string(reinterpret_cast<const char*>(prefix.data()), prefix.size()) +
         std::string(meeting);
}

Result<std::string> unwrap_handle(std::string_view handle) {
  Reader in(std::as_bytes(std::span(handle)));
  if (auto prefix = get_handle_prefix(in, handle.size(), HandleKind::verbs); !prefix) {
    return tl::unexpected<Error>(prefix.error());
  }
  const std::string_view inner = handle.substr(kHandlePrefixBytes);
  if (!decode_handle(inner)) {
    return damaged_handle(handle.size());
  }
  return std::string(inner);
}

std::array<std::byte, kEndpointBytes> encode(const Endpoint& e) {
  std::array<std::byte, kEndpointBytes> bytes{};
  Writer out(bytes);
  out.put(kEndpointMagic)
      .put(kWireVersion)
      .put(e.lid)
      .put(e.queue_pair)
      .put(e.packet)
      .put(e.mtu)
      .put(e.max_message)
      .put(e.first_sequence)
      .put(e.board)
      .put(e.board_key)
      .put(e.gid_index)
      .put(static_cast<uint8_t>(e.link))
      .put(e.gid_type)
      .put(std::as_bytes(std::span(e.gid)));
  put_text<kMaxName>(out, e.device);
  put_text<kMaxFailure>(out, e.failure);
  return bytes;
}

Result<Endpoint> decode_endpoint(std::span<const std::byte, kEndpointBytes> bytes) {
  Reader in(bytes);
  Endpoint e;
  const auto magic = in.get<uint32_t>();
  const auto version = in.get<uint16_t>();
  e.lid = in.get<uint16_t>();
  e.queue_pair = in.get<uint32_t>();
  e.packet = in.get<uint32_t>();
  e.mtu = in.get<uint32_t>();
  e.max_message = in.get<uint64_t>();
  e.first_sequence = in.get<uint32_t>();
  e.board = in.get<uint64_t>();
  e.board_key = in.get<uint32_t>();
  e.gid_index = in.get<uint16_t>();
  const unsigned link = in.get<uint8_t>();
  e.gid_type = in.get<uint8_t>();
  in.get(std::as_writable_bytes(std::span(e.gid)));
  bool ok = link <= static_cast<unsigned>(Link::ethernet) &&
            e.gid_type <= static_cast<uint8_t>(GidType::roce_v2);
  e.link = ok ? static_cast<Link>(link) : Link::other;
  e.device = get_text(in, kMaxName, &ok);
  e.failure = get_text(in, kMaxFailure, &ok);
  constexpr uint32_t kPackets = 1U << 24;
  ok = ok && in.ok() && magic == kEndpointMagic && e.queue_pair < kPackets && e.packet < kPackets;
  if (ok && version != kWireVersion) {
    return fail(Code::mismatch, version_error("the other end", version));
  }
  if (!ok) {
    return fail(Code::mismatch, "what the other end says about its RDMA port makes no sense");
  }
  return e;
}

RecordBytes encode(const Credit& c) {
  RecordBytes bytes{};
  WireWriter out(bytes);
  out.put(c.sequence);
  out.put(c.consumed);
  out.put(c.address);
  out.put(c.capacity);
  out.put(c.key);
  out.put(static_cast<uint8_t>(c.kind));
  return bytes;
}

bool decode(std::span<const std::byte, kRecordBytes> bytes, Credit* out) {
  WireReader in(bytes);
  out->sequence = in.get<uint32_t>();
  out->consumed = in.get<uint32_t>();
  out->address = in.get<uint64_t>();
  out->capacity = in.get<uint64_t>();
  out->key = in.get<uint32_t>();
  const auto kind = in.get<uint8_t>();
  out->kind = static_cast<Credit::Kind>(kind);
  return in.ok() && kind <= Credit::granted;
}

RecordBytes encode(const Notice& n) {
  RecordBytes bytes{};
  WireWriter out(bytes);
  out.put(n.sequence);
  out.put(static_cast<uint8_t>(n.kind));
  out.put(n.mark);
  out.put(uint16_t{0});
  out.put(n.bytes);
  return bytes;
}

bool decode(std::span<const std::byte, kRecordBytes> bytes, Notice* out) {
  WireReader in(bytes);
  out->sequence = in.get<uint32_t>();
  const auto kind = in.get<uint8_t>();
  out->mark = in.get<Mark>();
  in.skip(2);
  out->bytes = in.get<uint64_t>();
  out->kind = static_cast<Notice::Kind>(kind);
  return in.ok() && kind >= Notice::arrived && kind <= Notice::too_long;
}

}  // namespace prunex::transport::verbs
