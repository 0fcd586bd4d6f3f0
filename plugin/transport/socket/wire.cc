// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/wire.h"

#include <netinet/in.h>

#include <algorithm>

#include "plugin/transport/bytes.h"

namespace prunex::transport {
namespace {

constexpr uint32_t kHelloMagic = 0x43585250;  // "PRXC"
constexpr uint32_t kReplyMagic = 0x52585250;  // "PRXR"
constexpr uint16_t kFragmentMagic = 0x5850;   // "PX"
constexpr size_t kAddressBytes = 16;          // IPv4 uses the first 4

}  // namespace

std::string encode(const Handle& handle) {
  std::array<std::byte, kAddressBytes> host{};
  if (handle.address.family() == AF_INET6) {
    std::memcpy(host.data(),
                &reinterpret_cast<const sockaddr_in6*>(handle.address.data())->sin6_addr, 16);
  } else {
    std::memcpy(host.data(), &reinterpret_cast<const sockaddr_in*>(handle.address.data())->sin_addr,
                4);
  }
  std::array<std::byte, kHandleBytes> bytes{};
  Writer out(bytes);
  put_handle_prefix(out, HandleKind::socket, handle.cookie);
  out.put(static_cast<uint16_t>(handle.address.family() == AF_INET6 ? 6 : 4))
      .put(handle.address.port())
      .put(std::span<const std::byte>(host));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<Handle> decode_handle(std::string_view bytes) {
  Reader in(std::as_bytes(std::span(bytes)));
  auto cookie = get_handle_prefix(in, bytes.size(), HandleKind::socket);
  if (!cookie) {
    return tl::unexpected<Error>(cookie.error());
  }
  Handle handle;
  handle.cookie = *cookie;
  const auto family = in.get<uint16_t>();
  const auto port = in.get<uint16_t>();
  std::array<std::byte, kAddressBytes> host{};
  in.get(host);
  const bool spare_is_clear =
      family == 6 ||
      std::all_of(host.begin() + 4, host.end(), [](std::byte b) { return b == std::byte{0}; });
  if (!in.ok() || (family != 4 && family != 6) || port == 0 || !spare_is_clear) {
    return damaged_handle(bytes.size());
  }
  if (family == 6) {
    auto* a = reinterpret_cast<sockaddr_in6*>(handle.address.data());
    a->sin6_family = AF_INET6;
    std::memcpy(&a->sin6_addr, host.data(), sizeof a->sin6_addr);
    handle.address.length = sizeof *a;
  } else {
    auto* a = reinterpret_cast<sockaddr_in*>(handle.address.data());
    a->sin_family = AF_INET;
    std::memcpy(&a->sin_addr, host.data(), sizeof a->sin_addr);
    handle.address.length = sizeof *a;
  }
  handle.address.set_port(port);
  return handle;
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  Writer(bytes)
      .put(kHelloMagic)
      .put(hello.version)
      .put(hello.text_bytes)
      .put(std::span<const std::byte>(hello.cookie))
      .put(hello.connection)
      .put(hello.stream)
      .put(hello.streams)
      .put(hello.first_sequence);
  return bytes;
}

bool decode_hello(std::span<const std::byte, kHelloBytes> bytes, Hello* out) {
  Reader in(bytes);
  const auto magic = in.get<uint32_t>();
  out->version = in.get<uint16_t>();
  out->text_bytes = in.get<uint16_t>();
  in.get(out->cookie);
  out->connection = in.get<uint64_t>();
  out->stream = in.get<uint16_t>();
  out->streams = in.get<uint16_t>();
  out->first_sequence = in.get<uint32_t>();
  if (magic != kHelloMagic) {
    return false;
  }
  return out->version != kWireVersion ||
         (out->text_bytes <= kMaxHello && out->streams >= 1 && out->streams <= kMaxStreams &&
          out->stream < out->streams);
}

bool may_be_hello(std::span<const std::byte> bytes) {
  std::array<std::byte, 4> magic{};
  Writer(magic).put(kHelloMagic);
  return std::equal(
      bytes.begin(),
      bytes.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(bytes.size(), magic.size())),
      magic.begin());
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) {
  std::array<std::byte, kReplyBytes> bytes{};
  Writer(bytes).put(kReplyMagic).put(reply.version).put(static_cast<uint16_t>(reply.code));
  return bytes;
}

bool decode_reply(std::span<const std::byte, kReplyBytes> bytes, Reply* out) {
  Reader in(bytes);
  const auto magic = in.get<uint32_t>();
  out->version = in.get<uint16_t>();
  const auto code = in.get<uint16_t>();
  out->code = code == 0 ? ReplyCode::accepted : ReplyCode::wrong_version;
  return magic == kReplyMagic && code <= 1;
}

std::array<std::byte, kFragmentBytes> encode(const FragmentHeader& header) {
  std::array<std::byte, kFragmentBytes> bytes{};
  Writer(bytes)
      .put(kFragmentMagic)
      .put(header.kind)
      .put(header.flags)
      .put(header.sequence)
      .put(header.message)
      .put(header.offset)
      .put(header.length);
  return bytes;
}

bool decode_fragment(std::span<const std::byte, kFragmentBytes> bytes, FragmentHeader* out) {
  Reader in(bytes);
  const auto magic = in.get<uint16_t>();
  out->kind = in.get<uint8_t>();
  out->flags = in.get<uint8_t>();
  out->sequence = in.get<uint32_t>();
  out->message = in.get<uint64_t>();
  out->offset = in.get<uint64_t>();
  out->length = in.get<uint64_t>();
  return magic == kFragmentMagic && out->kind == 0 && out->offset <= out->message &&
         out->length <= out->message - out->offset;
}

}  // namespace prunex::transport
