// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/handle.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "plugin/transport/bytes.h"

namespace prunex::nccl {
namespace {

constexpr size_t kPrefixBytes = 8;
constexpr uint32_t kHelloMagic = 0x4858'5250;  // "PRXH"
constexpr size_t kHelloBytes = 12;

const char* name_of(Tuner tuner) {
  constexpr std::array<const char*, 3> kNames{"off", "simple", "collnet"};
  return kNames[static_cast<size_t>(tuner)];
}

}  // namespace

Result<> write_handle(std::string_view transport_handle, std::span<std::byte, kHandleBytes> out,
                      HandleFor use) {
  if (transport_handle.size() > kHandleBytes - kPrefixBytes) {
    return fail(Code::internal, strf("a transport's handle of %zu bytes does not fit into %zu",
                                     transport_handle.size(), kHandleBytes - kPrefixBytes));
  }
  std::fill(out.begin(), out.end(), std::byte{0});
  transport::Writer(out)
      .put(static_cast<uint32_t>(use))
      .put(kNetVersion)
      .put(static_cast<uint8_t>(transport_handle.size()))
      .put(uint8_t{0})
      .put(std::as_bytes(std::span(transport_handle)));
  return {};
}

Result<std::string> read_handle(std::span<const std::byte> handle, HandleFor use) {
  transport::Reader in(handle);
  const auto magic = in.get<uint32_t>();
  const auto version = in.get<uint16_t>();
  const auto length = in.get<uint8_t>();
  if (!in.ok() || magic != static_cast<uint32_t>(use)) {
    return fail(
        Code::mismatch,
        strf("the peer's handle is not PruneX's (it begins with %#010x): all ranks must run "
             "with NCCL_NET_PLUGIN=prunex; NCCL_NET=PRUNEX makes a rank fail where it would "
             "fall back to another network",
             magic));
  }
  if (version != kNetVersion) {
    return fail(Code::mismatch,
                strf("the peer's plugin speaks version %u, this one version %u: install the same "
                     "release of PruneX on all nodes",
                     unsigned{version}, unsigned{kNetVersion}));
  }
  const size_t room = std::min(handle.size(), kHandleBytes);
  if (length == 0 || room < kPrefixBytes || length > room - kPrefixBytes) {
    return fail(Code::mismatch,
                strf("the peer's handle is damaged: it holds %u bytes of at most %zu",
                     unsigned{length}, kHandleBytes - kPrefixBytes));
  }
  std::string out(length, '\0');
  std::memcpy(out.data(), handle.data() + kPrefixBytes, length);
  return out;
}

std::string encode(const NetHello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  transport::Writer(bytes)
      .put(kHelloMagic)
      .put(hello.version)
      .put(hello.transport)
      .put(hello.rails)
      .put(static_cast<uint8_t>(hello.tuner));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<NetHello> decode_net_hello(std::string_view bytes, Tuner tuner) {
  transport::Reader in(std::as_bytes(std::span(bytes)));
  NetHello out;
  const auto magic = in.get<uint32_t>();
  out.version = in.get<uint16_t>();
  out.transport = in.get<uint8_t>();
  out.rails = in.get<uint8_t>();
  const auto theirs = in.get<uint8_t>();
  (void)in.get<uint8_t>();  // reserved
  (void)in.get<uint16_t>();
  if (!in.ok() || magic != kHelloMagic) {
    return fail(Code::mismatch, strf("a caller of %zu bytes is no PruneX plugin", bytes.size()));
  }
  if (out.version != kNetVersion || (out.transport != 1 && out.transport != 3) || out.rails != 1) {
    return fail(Code::mismatch,
                strf("a peer's plugin speaks version %u over transport %u with %u rails, this one "
                     "version %u over transport 1 or 3 with 1 rail: install the same release of "
                     "PruneX on all nodes",
                     unsigned{out.version}, unsigned{out.transport}, unsigned{out.rails},
                     unsigned{kNetVersion}));
  }
  if (theirs > static_cast<uint8_t>(Tuner::collnet)) {
    return fail(Code::mismatch, strf("a peer's hello is damaged: tuner %u", unsigned{theirs}));
  }
  out.tuner = static_cast<Tuner>(theirs);
  if (out.tuner != tuner) {
    return fail(
        Code::mismatch,
        strf("a peer has PRUNEX_TUNER=%s, this rank %s: NCCL would choose differently on the "
             "two and hang; set it alike on all ranks",
             name_of(out.tuner), name_of(tuner)));
  }
  return out;
}

}  // namespace prunex::nccl
