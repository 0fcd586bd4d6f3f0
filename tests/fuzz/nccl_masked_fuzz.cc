// SPDX-License-Identifier: Apache-2.0
// Any piece under any mask: refused, violated or back as it was, and nothing outside is touched.
#include <vector>

#include "plugin/nccl/codec/masked.h"
#include "tests/fuzz/mask_input.h"
#include "tests/fuzz/nccl_bytes.h"

namespace prunex::fuzz {
namespace {

using namespace nccl::codec;  // NOLINT: a program, not a library

constexpr size_t kLongest = 1 << 16;  // bytes of a piece

struct Piece {
  size_t size, bytes;
  uint64_t offset;
};

// Any payload, mostly of the right length.
void any_payload(Decoder& in, const CompiledMask& mask, const Piece& p, size_t budget) {
  const bool applies = masked_applies(mask, p.size, p.offset, p.bytes);
  size_t n = applies ? masked_size(mask, p.size, p.offset, p.bytes) : in.take<uint8_t>();
  PRUNEX_FUZZ_CHECK(n <= p.bytes || !applies);
  const auto wrong = in.take<uint8_t>();
  n += wrong > 240 ? wrong : 0;
  const Exact payload(n, in.take<uint8_t>()), dst(p.bytes);
  MaskedDecoder decoder;
  decoder.begin(mask, p.size, p.offset, payload.span(), dst.data(), p.bytes);
  if (finish(decoder, budget) == Decoding::corrupt) {
    PRUNEX_FUZZ_CHECK((!applies || wrong > 240) && dst.untouched());
    return;
  }
  PRUNEX_FUZZ_CHECK(applies && wrong <= 240);
  // What it wrote obeys the mask, so it encodes to the payload.
  const Exact out(n);
  MaskedEncoder encoder;
  encoder.begin(mask, p.size, p.offset, dst.data(), p.bytes, out.span());
  PRUNEX_FUZZ_CHECK(finish(encoder, budget / 3) == Encoding::done);
  PRUNEX_FUZZ_CHECK(encoder.size() == n && out == payload);
}

void any_piece(const CompiledMask& mask, const Piece& p, const Exact& src, size_t budget) {
  const size_t n = masked_size(mask, p.size, p.offset, p.bytes);
  const Exact out(n), dst(p.bytes);
  MaskedEncoder encoder;
  encoder.begin(mask, p.size, p.offset, src.data(), p.bytes, out.span());
  const Encoding state = finish(encoder, budget);
  bool clean = true;
  for (size_t i = 0; i < p.bytes; ++i) {
    clean = clean && (src.data()[i] == std::byte{0} || keeps(mask, (p.offset + i) / p.size));
  }
  PRUNEX_FUZZ_CHECK(state == (clean ? Encoding::done : Encoding::violated));
  if (!clean) {
    return;
  }
  MaskedDecoder decoder;
  decoder.begin(mask, p.size, p.offset, out.span(), dst.data(), p.bytes);
  PRUNEX_FUZZ_CHECK(finish(decoder, budget ^ 1023) == Decoding::done);
  PRUNEX_FUZZ_CHECK(dst == src);
}

}  // namespace
}  // namespace prunex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex;
  using namespace prunex::fuzz;
  Decoder in(data, size);
  choose_version(in.take<uint8_t>());
  const size_t budget = in.take<uint16_t>();
  const size_t element = size_t{1} << (in.take<uint8_t>() % 4);
  const auto where = in.take<uint16_t>(), length = in.take<uint16_t>();
  const auto odd = in.take<uint8_t>();
  const auto dirt = in.take<uint16_t>();
  MaskInput input;
  take_mask(in, input);
  if (!affordable(input.spec)) {
    return 0;
  }
  const Result<CompiledMask> mask = compile(input.spec);
  if (!mask || mask->count > uint64_t{1} << 60) {
    return 0;
  }
  Piece p{element, 0, 0};
  const uint64_t begin = mask->count == 0 ? 0 : where % mask->count;
  const uint64_t n = std::min<uint64_t>(mask->count - begin, length % (kLongest / element));
  p.offset = begin * element + (odd > 250 ? 1 : 0);
  p.bytes = n * element + (odd > 245 ? element : 0);
  any_payload(in, *mask, p, budget);
  if (masked_applies(*mask, p.size, p.offset, p.bytes)) {
    const Exact src(p.bytes, 0);
    for (size_t i = 0; i < p.bytes; ++i) {
      const bool kept = keeps(*mask, (p.offset + i) / p.size);
      src.data()[i] = static_cast<std::byte>(kept ? i * 31 + dirt : 0);
    }
    if (p.bytes > 0 && dirt % 2 == 0) {
      src.data()[dirt % p.bytes] = std::byte{0x80};
    }
    any_piece(*mask, p, src, budget);
  }
  return 0;
}
