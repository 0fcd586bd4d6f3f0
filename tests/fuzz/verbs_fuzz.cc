// SPDX-License-Identifier: Apache-2.0
// What RDMA's ends tell each other: over TCP before they connect, and as records written into
// memory. The first byte chooses what. What is accepted is in range, and says the same when it is
// said again.
#include "plugin/transport/verbs/wire.h"
#include "tests/fuzz/decode.h"

namespace {

using namespace prunex::transport;  // NOLINT: a program, not a library

template <size_t N>
std::array<std::byte, N> padded(std::span<const std::byte> bytes) {
  std::array<std::byte, N> out{};
  std::copy_n(bytes.begin(), std::min(N, bytes.size()), out.begin());
  return out;
}

void handle(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (auto inner = verbs::unwrap_handle(text)) {
    PRUNEX_FUZZ_CHECK(verbs::unwrap_handle(verbs::wrap_handle(*inner)) == *inner);
  }
}

void endpoint(std::span<const std::byte> bytes) {
  const auto e = verbs::decode_endpoint(padded<verbs::kEndpointBytes>(bytes));
  if (!e) {
    return;
  }
  PRUNEX_FUZZ_CHECK(e->rails.size() <= verbs::kMaxRails);
  PRUNEX_FUZZ_CHECK(!e->rails.empty() || !e->failure.empty());
  for (const verbs::RailEnd& rail : e->rails) {
    PRUNEX_FUZZ_CHECK(rail.partner < verbs::kMaxRails);
    PRUNEX_FUZZ_CHECK(!rail.queue_pairs.empty() &&
                      rail.queue_pairs.size() <= verbs::kMaxQueuePairs);
  }
  const auto once = verbs::encode(*e);
  const auto again = verbs::decode_endpoint(once);
  PRUNEX_FUZZ_CHECK(again && verbs::encode(*again) == once);
}

template <class Record>
void record(std::span<const std::byte> bytes) {
  Record said;
  if (verbs::decode(padded<verbs::kRecordBytes>(bytes), &said)) {
    const auto once = verbs::encode(said);
    Record again;
    PRUNEX_FUZZ_CHECK(verbs::decode(once, &again) && verbs::encode(again) == once);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0:
      handle(bytes);
      break;
    case 1:
      endpoint(bytes);
      break;
    case 2:
      record<verbs::Credit>(bytes);
      break;
    default:
      record<verbs::Notice>(bytes);
      break;
  }
  return 0;
}
