// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/handle.h"

namespace prunex::transport {
namespace {

constexpr uint32_t kHandleMagic = 0x48585250;  // "PRXH"

const char* name_of(unsigned kind) {
  constexpr const char* kNames[] = {"unknown", "socket", "shm", "verbs"};
  return kNames[kind < 4 ? kind : 0];
}

}  // namespace

void put_handle_prefix(Writer& out, HandleKind kind, const Cookie& cookie) {
  out.put(kHandleMagic).put(kWireVersion).put(static_cast<uint8_t>(kind)).put(uint8_t{0});
  out.put(std::span<const std::byte>(cookie));
}

Result<Cookie> get_handle_prefix(Reader& in, size_t all, HandleKind kind) {
  const auto magic = in.get<uint32_t>();
  const auto version = in.get<uint16_t>();
  const unsigned theirs = in.get<uint8_t>();
  const auto spare = in.get<uint8_t>();
  Cookie cookie{};
  in.get(cookie);
  if (!in.ok() || magic != kHandleMagic) {
    return fail(Code::invalid_argument,
                strf("a listener's handle was expected, got %zu bytes that are none: they were "
                     "damaged on the way or are another library's",
                     all));
  }
  if (version != kWireVersion) {
    return fail(Code::mismatch, version_error("the listener of this handle", version));
  }
  if (theirs != static_cast<unsigned>(kind)) {
    return fail(Code::mismatch,
                strf("the handle is for the %s transport, not for %s: both ends must "
                     "use the same transport",
                     name_of(theirs), name_of(static_cast<unsigned>(kind))));
  }
  if (spare != 0) {
    return damaged_handle(all);
  }
  return cookie;
}

tl::unexpected<Error> damaged_handle(size_t all) {
  return fail(
      Code::invalid_argument,
      strf("a listener's handle of %zu bytes is damaged: it was cut or changed on the way", all));
}

std::string version_error(std::string_view peer, unsigned theirs) {
  return strf(
      "%.*s speaks version %u of the prunex wire format, this process speaks version %u: install "
      "the "
      "same prunex on all nodes",
      static_cast<int>(peer.size()), peer.data(), theirs, unsigned{kWireVersion});
}

Result<> check_hello_size(std::string_view hello) {
  if (hello.size() > kMaxHello) {
    return fail(Code::invalid_argument,
                strf("a hello has at most %zu bytes, not %zu", kMaxHello, hello.size()));
  }
  return {};
}

}  // namespace prunex::transport
