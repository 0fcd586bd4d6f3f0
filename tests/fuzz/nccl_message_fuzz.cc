// SPDX-License-Identifier: Apache-2.0
// What comes from the peer of an NCCL connection: handles, hellos, and encoded messages. The
// decoder keeps masks from one message to the next, so that an input is several messages.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "plugin/nccl/net/handle.h"
#include "plugin/nccl/net/message.h"
#include "tests/fuzz/decode.h"

namespace {

using namespace prunex::nccl;  // NOLINT: a program, not a library

constexpr size_t kCapacity = 4096;

void decode_messages(std::span<const std::byte> input) {
  MessageDecoder decoder;
  while (input.size() > 3) {
    const auto length = static_cast<size_t>(input[0]) | static_cast<size_t>(input[1]) << 8;
    const size_t budget_of_step = 1 + static_cast<size_t>(input[2]) * 16;
    input = input.subspan(3);
    const auto one = input.first(std::min(length, input.size()));
    input = input.subspan(one.size());
    std::vector<std::byte> copy(one.begin(), one.end());  // so that its end is seen
    std::vector<std::byte> into(kCapacity);
    decoder.begin(copy, into);
    codec::Decoding result = codec::Decoding::more;
    for (int steps = 0; result == codec::Decoding::more; ++steps) {
      size_t budget = budget_of_step;
      result = decoder.step(&budget);
      PRUNEX_FUZZ_CHECK(steps < 1 << 20);
    }
    PRUNEX_FUZZ_CHECK(decoder.logical() <= kCapacity);
    PRUNEX_FUZZ_CHECK(result != codec::Decoding::corrupt || !decoder.fault().empty());
  }
}

// What an encoder makes of the same bytes comes back.
void round_trip(std::span<const std::byte> input) {
  std::vector<std::byte> message;
  for (const std::byte b : input) {  // runs, so that there are blocks of zeros
    message.insert(message.end(), 1 + static_cast<size_t>(b) / 2,
                   (b & std::byte{1}) != std::byte{0} ? b : std::byte{0});
  }
  if (message.empty()) {
    return;
  }
  std::vector<std::byte> room(message.size() + kSideSlack), back(message.size(), std::byte{0xEE});
  MessageEncoder encoder;
  encoder.begin(message, room, std::nullopt);
  codec::Encoding encoded = codec::Encoding::more;
  while (encoded == codec::Encoding::more) {
    size_t budget = 1000;
    encoded = encoder.step(&budget);
  }
  if (encoded != codec::Encoding::done) {
    return;
  }
  PRUNEX_FUZZ_CHECK(encoder.size() < message.size());
  MessageDecoder decoder;
  decoder.begin(std::span(room).first(encoder.size()), back);
  codec::Decoding decoded = codec::Decoding::more;
  while (decoded == codec::Decoding::more) {
    size_t budget = 777;
    decoded = decoder.step(&budget);
  }
  PRUNEX_FUZZ_CHECK(decoded == codec::Decoding::done && back == message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  if (size >= kHandleBytes) {
    (void)read_handle(input.first<kHandleBytes>());
  }
  (void)decode_net_hello({reinterpret_cast<const char*>(data), size}, prunex::Tuner::off);
  decode_messages(input);
  round_trip(input);
  return 0;
}
