// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/wire.h"

#include <bit>

#include "plugin/transport/bytes.h"
#include "plugin/transport/shm/segment.h"

namespace prunex::transport::shm {
namespace {

constexpr uint32_t kHelloMagic = 0x4D585250;  // "PRXM"
constexpr uint32_t kReplyMagic = 0x4E585250;  // "PRXN"
constexpr size_t kHelloFixed = 40;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string get_text(Reader& in, size_t n) {
  std::string out(n, '\0');
  in.get(std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

std::string encode(const Handle& handle) {
  std::array<std::byte, kHandlePrefixBytes + kNameBytes> bytes{};
  static_assert(sizeof bytes <= kMaxHandle);
  Writer out(bytes);
  put_handle_prefix(out, HandleKind::shm, handle.cookie);
  out.put(bytes_of(handle.path));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<Handle> decode_handle(std::string_view bytes) {
  Reader in(bytes_of(bytes));
  auto cookie = get_handle_prefix(in, bytes.size(), HandleKind::shm);
  if (!cookie) {
    return tl::unexpected<Error>(cookie.error());
  }
  Handle handle{get_text(in, kNameBytes), *cookie};
  if (!in.ok() || !is_valid_name(handle.path)) {
    return damaged_handle(bytes.size());
  }
  return handle;
}

std::string encode(const Hello& hello) {
  std::array<std::byte, kMaxHelloRecord> bytes{};
  Writer out(bytes);
  out.put(kHelloMagic)
      .put(hello.version)
      .put(static_cast<uint16_t>(hello.text.size()))
      .put(std::span<const std::byte>(hello.cookie))
      .put(hello.ring_bytes)
      .put(hello.first_sequence)
      .put(uint32_t{0})
      .put(bytes_of(hello.segment))
      .put(bytes_of(hello.text));
  return {reinterpret_cast<const char*>(bytes.data()), out.size()};
}

bool decode_hello(std::span<const std::byte> record, Hello* out) {
  static_assert(kHelloFixed + kNameBytes + kMaxHello == kMaxHelloRecord);
  Reader in(record);
  const auto magic = in.get<uint32_t>();
  out->version = in.get<uint16_t>();
  const size_t text_bytes = in.get<uint16_t>();
  in.get(out->cookie);
  if (!in.ok() || magic != kHelloMagic || out->version != kWireVersion) {
    return in.ok() && magic == kHelloMagic;
  }
  out->ring_bytes = in.get<uint64_t>();
  out->first_sequence = in.get<uint32_t>();
  (void)in.get<uint32_t>();
  if (text_bytes > kMaxHello) {
    return false;
  }
  out->segment = get_text(in, kNameBytes);
  out->text = get_text(in, text_bytes);
  return in.ok() && is_valid_name(out->segment) && std::has_single_bit(out->ring_bytes) &&
         out->ring_bytes >= kMinRing && out->ring_bytes <= kMaxRing;
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) {
  std::array<std::byte, kReplyBytes> bytes{};
  Writer(bytes).put(kReplyMagic).put(reply.version).put(static_cast<uint16_t>(reply.code));
  return bytes;
}

bool decode_reply(std::span<const std::byte> record, Reply* out) {
  Reader in(record);
  const auto magic = in.get<uint32_t>();
  out->version = in.get<uint16_t>();
  const auto code = in.get<uint16_t>();
  out->code = static_cast<ReplyCode>(code);
  return in.ok() && magic == kReplyMagic && code <= static_cast<uint16_t>(ReplyCode::no_memory);
}

}  // namespace prunex::transport::shm
