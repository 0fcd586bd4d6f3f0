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
constexpr uint32_t kNumbers = 1U << 24;  // of queue pairs and of packets

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

void put_rail(Writer& out, const RailEnd& r) {
  put_text<kMaxName>(out, r.device);
  out.put(r.lid)
      .put(static_cast<uint8_t>(r.link))
      .put(r.gid_type)
      .put(r.gid_index)
      .put(std::as_bytes(std::span(r.gid)))
      .put(r.network_bits)
      .put(r.mtu)
      .put(r.speed)
      .put(r.max_message)
      .put(r.board_key)
      .put(r.partner)
      .put(r.packet)
      .put(static_cast<uint8_t>(r.queue_pairs.size()));
  for (const uint32_t number : r.queue_pairs) {
    out.put(number);
  }
}

RailEnd get_rail(Reader& in, bool* ok) {
  RailEnd r;
  r.device = get_text(in, kMaxName, ok);
  r.lid = in.get<uint16_t>();
  const unsigned link = in.get<uint8_t>();
  r.gid_type = in.get<uint8_t>();
  r.gid_index = in.get<uint16_t>();
  in.get(std::as_writable_bytes(std::span(r.gid)));
  r.network_bits = in.get<uint8_t>();
  r.mtu = in.get<uint32_t>();
  r.speed = in.get<uint32_t>();
  r.max_message = in.get<uint64_t>();
  r.board_key = in.get<uint32_t>();
  r.partner = in.get<uint8_t>();
  r.packet = in.get<uint32_t>();
  const size_t pairs = in.get<uint8_t>();
  *ok = *ok && link <= static_cast<unsigned>(Link::ethernet) &&
        r.gid_type <= static_cast<uint8_t>(GidType::roce_v2) && r.partner < kMaxRails &&
        r.packet < kNumbers && pairs >= 1 && pairs <= kMaxQueuePairs && r.network_bits <= 128;
  r.link = *ok ? static_cast<Link>(link) : Link::other;
  for (size_t i = 0; *ok && i < pairs; ++i) {
    r.queue_pairs.push_back(in.get<uint32_t>());
    *ok = r.queue_pairs.back() < kNumbers;
  }
  return r;
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
      .put(static_cast<uint16_t>(e.rails.size()))
      .put(e.first_sequence)
      .put(static_cast<uint8_t>(e.takes_eager ? 1 : 0))
      .put(e.board);
  put_text<kMaxFailure>(out, e.failure);
  for (const RailEnd& r : e.rails) {
    put_rail(out, r);
  }
  return bytes;
}

Result<Endpoint> decode_endpoint(std::span<const std::byte, kEndpointBytes> bytes) {
  Reader in(bytes);
  Endpoint e;
  const auto magic = in.get<uint32_t>();
  const auto version = in.get<uint16_t>();
  if (magic == kEndpointMagic && version != kWireVersion) {
    return fail(Code::mismatch, version_error("the other end", version));
  }
  const size_t rails = in.get<uint16_t>();
  e.first_sequence = in.get<uint32_t>();
  e.takes_eager = in.get<uint8_t>() != 0;
  e.board = in.get<uint64_t>();
  bool ok = magic == kEndpointMagic && rails <= kMaxRails;
  e.failure = get_text(in, kMaxFailure, &ok);
  for (size_t i = 0; ok && in.ok() && i < rails; ++i) {
    e.rails.push_back(get_rail(in, &ok));
  }
  ok = ok && in.ok() && (rails > 0 || !e.failure.empty());
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
  for (const uint32_t key : c.keys) {
    out.put(key);
  }
  out.put(static_cast<uint8_t>(c.kind));
  return bytes;
}

bool decode(std::span<const std::byte, kRecordBytes> bytes, Credit* out) {
  WireReader in(bytes);
  out->sequence = in.get<uint32_t>();
  out->consumed = in.get<uint32_t>();
  out->address = in.get<uint64_t>();
  out->capacity = in.get<uint64_t>();
  for (uint32_t& key : out->keys) {
    key = in.get<uint32_t>();
  }
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
  out.put(n.stripes);
  out.put(n.bytes);
  return bytes;
}

bool decode(std::span<const std::byte, kRecordBytes> bytes, Notice* out) {
  WireReader in(bytes);
  out->sequence = in.get<uint32_t>();
  const auto kind = in.get<uint8_t>();
  out->mark = in.get<Mark>();
  out->stripes = in.get<uint16_t>();
  out->bytes = in.get<uint64_t>();
  out->kind = static_cast<Notice::Kind>(kind);
  return in.ok() && kind >= Notice::arrived && kind <= Notice::too_long;
}

}  // namespace prunex::transport::verbs
