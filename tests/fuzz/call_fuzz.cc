// SPDX-License-Identifier: Apache-2.0
// What leaders send each other: any bytes are refused, or read as something that writes itself
// again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "plugin/collective/call.h"
#include "plugin/collective/recovery_records.h"

using namespace prunex::collective;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto header = decode_call(bytes)) {
    std::byte again[CallHeader::kWireBytes];
    encode(*header, again);
    const auto same = decode_call(std::span<const std::byte>(again));
    if (header->payload == 0 && (!same || !same->same_call(*header))) {
      std::abort();
    }
    if (header->payload != size - CallHeader::kWireBytes) {
      std::abort();
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto call = read_call(text); call && write(*call) != text) {
    std::abort();
  }
  if (const auto offences = read_offences(text); offences && write(*offences) != text) {
    std::abort();
  }
  return 0;
}
