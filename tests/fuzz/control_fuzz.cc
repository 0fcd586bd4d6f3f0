// SPDX-License-Identifier: Apache-2.0
// Everything that decodes bytes from the control connections and from the store. The first byte
// chooses; what decodes must encode to the same bytes again.
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "plugin/bootstrap/link.h"
#include "plugin/bootstrap/wire.h"

namespace {

using namespace prunex;  // NOLINT: a fuzz target is one function

void expect(bool truth) {
  if (!truth) {
    std::abort();
  }
}

bool same(const std::string& encoded, std::span<const std::byte> body) {
  const auto bytes = wire::bytes_of(encoded);
  return std::equal(bytes.begin(), bytes.end(), body.begin(), body.end());
}

// Feeds a link through a socket in pieces, as TCP may.
void feed_link(std::span<const std::byte> body, bool greeting) {
  constexpr size_t kPiece = 37;
  int fds[2];
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  Fd writer(fds[0]);
  Link link{Fd(fds[1]), 3};
  bool broken = false;
  while (!body.empty() && !broken) {
    const auto piece = body.first(std::min(kPiece, body.size()));
    body = body.subspan(piece.size());
    expect(send_some(writer.get(), piece).bytes == piece.size());
    Link::Got got = Link::Got::frame;
    while (got == Link::Got::frame) {
      Frame frame;
      got = greeting ? link.receive({wire::Kind::hello}, &frame)
                     : link.receive({wire::Kind::gather, wire::Kind::gathered, wire::Kind::verdict,
                                     wire::Kind::goodbye},
                                    &frame);
      expect(got != Link::Got::frame || frame.body.size() == frame.header.length);
    }
    expect(got != Link::Got::end);
    broken = got == Link::Got::broken;
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer wants it so
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  constexpr int kSize = 3;
  const auto body = std::as_bytes(std::span(data, bytes)).subspan(1);
  switch (data[0] % 8) {
    case 0:
      if (const auto header = wire::decode_header(body, kSize)) {
        expect(header->length <= wire::max_length(header->kind, kSize));
      }
      break;
    case 1:
      if (const auto hello = wire::decode_hello(body)) {
        expect(same(wire::encode(*hello), body));
      }
      break;
    case 2:
      if (const auto refusal = wire::decode_refusal(body)) {
        expect(same(wire::encode(*refusal), body));
      }
      break;
    case 3:
      if (const auto verdict = wire::decode_verdict(body, kSize)) {
        expect(same(wire::encode(*verdict), body));
      }
      break;
    case 4:
      if (const auto records = wire::decode_records(body, kSize)) {
        const std::vector<std::string_view> views(records->begin(), records->end());
        expect(same(wire::encode_records(views), body));
      }
      break;
    case 5:
      if (const auto card =
              wire::decode_card({reinterpret_cast<const char*>(body.data()), body.size()})) {
        const auto again = wire::decode_card(wire::encode(*card));
        expect(again && again->addresses.size() == card->addresses.size());
      }
      break;
    default:
      feed_link(body, data[0] % 8 == 6);
  }
  return 0;
}
