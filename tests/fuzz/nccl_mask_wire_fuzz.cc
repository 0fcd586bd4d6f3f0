// SPDX-License-Identifier: Apache-2.0
// Any definition of a mask is refused, or is a mask with every property that masks have, whose
// pieces can be decoded; and compiled masks come back as they were.
#include "kernels/exact.h"
#include "kernels/pattern.h"
#include "plugin/nccl/codec/mask_wire.h"
#include "plugin/nccl/codec/masked.h"
#include "tests/fuzz/mask_input.h"
#include "tests/fuzz/nccl_bytes.h"

namespace prunex::fuzz {
namespace {

using namespace nccl::codec;  // NOLINT: a program, not a library

void check_mask(const CompiledMask& mask) {
  uint64_t end = 0, kept = 0;
  for (const Panel& panel : mask.panels) {
    PRUNEX_FUZZ_CHECK(panel.offset >= end && panel.rows > 0 && panel.columns > 0);
    PRUNEX_FUZZ_CHECK(panel.row_stride >= panel.columns && panel.kept_before == kept);
    uint64_t row_kept = panel.columns;
    if (panel.pattern >= 0) {
      PRUNEX_FUZZ_CHECK(static_cast<size_t>(panel.pattern) < mask.patterns.size());
      const Pattern& pattern = mask.patterns[static_cast<size_t>(panel.pattern)];
      PRUNEX_FUZZ_CHECK(pattern.columns == panel.columns && pattern.kept > 0);
      PRUNEX_FUZZ_CHECK(pattern.kept == count_bits(pattern.bits));
      row_kept = pattern.kept;
    }
    uint64_t span = 0;
    PRUNEX_FUZZ_CHECK(!__builtin_mul_overflow(panel.rows - 1, panel.row_stride, &span));
    PRUNEX_FUZZ_CHECK(!__builtin_add_overflow(panel.offset + panel.columns, span, &end));
    PRUNEX_FUZZ_CHECK(end <= mask.count);
    kept += panel.rows * row_kept;
  }
  PRUNEX_FUZZ_CHECK(kept == mask.kept && kept <= mask.count);
  PRUNEX_FUZZ_CHECK(kept_before(mask, mask.count) == kept);
}

// A piece near every panel's begin and end, up to a few.
void use_mask(const CompiledMask& mask, size_t element, uint64_t length) {
  size_t panels = 0;
  for (const Panel& panel : mask.panels) {
    const uint64_t last = panel.offset + (panel.rows - 1) * panel.row_stride;
    for (const uint64_t at : {panel.offset - panel.offset % 3, last}) {
      const uint64_t n = std::min(length, mask.count - at);
      const size_t packed = masked_size(mask, element, at * element, n * element);
      const Exact payload(packed, 0x3c), dst(n * element), out(packed);
      MaskedDecoder decoder;
      decoder.begin(mask, element, at * element, payload.span(), dst.data(), dst.size());
      PRUNEX_FUZZ_CHECK(finish(decoder, 500) == Decoding::done);
      for (size_t i = 0; i < dst.size(); ++i) {
        PRUNEX_FUZZ_CHECK(dst.data()[i] ==
                          std::byte{keeps(mask, at + i / element) ? uint8_t{0x3c} : uint8_t{0}});
      }
      MaskedEncoder encoder;
      encoder.begin(mask, element, at * element, dst.data(), dst.size(), out.span());
      PRUNEX_FUZZ_CHECK(finish(encoder, 900) == Encoding::done && out == payload);
    }
    if (++panels == 8) {
      break;
    }
  }
}

void any_definition(std::span<const std::byte> bytes, size_t budget, size_t element) {
  const Exact in(bytes);
  MaskDefinitionDecoder decoder;
  decoder.begin(in.span(), 0);
  const Decoding state = finish(decoder, budget);
  PRUNEX_FUZZ_CHECK(state == Decoding::corrupt && decoder.fault() != nullptr);
  // The digest is the last thing checked: with the right one the mask has to be good.
  const uint64_t digest = decoder.found_digest();
  if (digest == 0) {
    return;
  }
  decoder.begin(in.span(), digest);
  PRUNEX_FUZZ_CHECK(finish(decoder, budget ^ 4095) == Decoding::done);
  const CompiledMask mask = decoder.take();
  check_mask(mask);
  use_mask(mask, element, 300);
}

}  // namespace
}  // namespace prunex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex;
  using namespace prunex::fuzz;
  Decoder in(data, size);
  const auto mode = in.take<uint8_t>();
  choose_version(mode);
  const size_t budget = in.take<uint16_t>();
  if (mode < 192) {
    any_definition(std::as_bytes(std::span(data, size)).subspan(size < 3 ? size : 3), budget,
                   size_t{1} << (mode / 4 % 4));
    return 0;
  }
  MaskInput input;
  take_mask(in, input);
  const Result<CompiledMask> mask =
      affordable(input.spec) ? compile(input.spec) : Result<CompiledMask>();
  if (!mask || mask->count == 0) {
    return 0;
  }
  const auto bytes = nccl::codec::encode_mask(*mask);
  if (bytes) {
    nccl::codec::MaskDefinitionDecoder decoder;
    decoder.begin(*bytes, mask->digest);
    PRUNEX_FUZZ_CHECK(finish(decoder, budget) == nccl::codec::Decoding::done);
    const CompiledMask back = decoder.take();
    check_mask(back);
    PRUNEX_FUZZ_CHECK(back.count == mask->count && back.kept == mask->kept);
    PRUNEX_FUZZ_CHECK(nccl::codec::encode_mask(back) == bytes);
  }
  return 0;
}
