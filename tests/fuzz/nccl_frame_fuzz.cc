// SPDX-License-Identifier: Apache-2.0
// Any bytes are refused or are a header within all limits that encodes to the same bytes.
#include <string_view>

#include "plugin/nccl/codec/frame.h"
#include "tests/fuzz/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex::nccl::codec;
  const auto frame = std::as_bytes(std::span(data, size));
  FrameHeader h;
  const FrameStatus status = decode(frame, &h);
  PRUNEX_FUZZ_CHECK(!std::string_view(text_of(status)).empty());
  if (status != FrameStatus::ok) {
    PRUNEX_FUZZ_CHECK(h == FrameHeader{});
    return 0;
  }
  PRUNEX_FUZZ_CHECK(h.payload == size - kFrameBytes);
  PRUNEX_FUZZ_CHECK(h.logical <= kMaxPiece && h.slot < kMaxMaskSlots);
  if (h.kind == FrameKind::mask_definition) {
    PRUNEX_FUZZ_CHECK(h.payload <= kMaxMaskDefinition && h.logical == 0);
  } else {
    PRUNEX_FUZZ_CHECK(h.payload <= h.logical && h.logical > 0);
  }
  if (h.kind == FrameKind::zero_block || h.kind == FrameKind::stored) {
    PRUNEX_FUZZ_CHECK(h.element_size == 0 && h.offset == 0 && h.slot == 0);
    PRUNEX_FUZZ_CHECK(h.kind != FrameKind::stored || h.payload == h.logical);
  } else {
    PRUNEX_FUZZ_CHECK(valid_element_size(h.element_size));
    PRUNEX_FUZZ_CHECK(h.offset % h.element_size == 0 && h.logical % h.element_size == 0);
    PRUNEX_FUZZ_CHECK(h.offset + h.logical <= kMaxTensorBytes);
  }
  std::byte again[kFrameBytes];
  encode(h, again);
  PRUNEX_FUZZ_CHECK(std::memcmp(again, data, kFrameBytes) == 0);
  return 0;
}
