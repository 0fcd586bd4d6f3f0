// SPDX-License-Identifier: Apache-2.0
// Any payload is refused without a byte written, or fills its destination with what encodes to it;
// any message is given up or comes back as it was.
#include <vector>

#include "plugin/nccl/codec/zero_block.h"
#include "tests/fuzz/nccl_bytes.h"

namespace prunex::fuzz {
namespace {

using namespace nccl::codec;  // NOLINT: a program, not a library

void round_trip(const Exact& src, size_t room, size_t budget) {
  const Exact out(room);
  ZeroBlockEncoder encoder;
  encoder.begin(src.data(), src.size(), out.span());
  (void)worth_scanning(src.data(), src.size());
  if (finish(encoder, budget) != Encoding::done) {
    return;
  }
  PRUNEX_FUZZ_CHECK(encoder.size() <= room && encoder.size() <= paying_size(src.size()));
  const Exact payload(out.span().first(encoder.size()));
  const Exact dst(src.size());
  ZeroBlockDecoder decoder;
  decoder.begin(payload.span(), src.size(), dst.data(), dst.size());
  PRUNEX_FUZZ_CHECK(finish(decoder, budget ^ 255) == Decoding::done);
  PRUNEX_FUZZ_CHECK(dst == src);
}

void any_payload(const Exact& payload, size_t logical, size_t capacity, size_t budget) {
  const Exact dst(capacity), other(capacity, 0x5a);
  ZeroBlockDecoder decoder;
  decoder.begin(payload.span(), logical, dst.data(), capacity);
  const Decoding state = finish(decoder, budget);
  if (state == Decoding::corrupt) {
    PRUNEX_FUZZ_CHECK(dst.untouched());
    return;
  }
  decoder.begin(payload.span(), logical, other.data(), capacity);
  PRUNEX_FUZZ_CHECK(finish(decoder, budget / 2) == Decoding::done);
  const Exact first(dst.span().first(logical));
  PRUNEX_FUZZ_CHECK(first == Exact(other.span().first(logical)));
  PRUNEX_FUZZ_CHECK(Exact(dst.span().subspan(logical)).untouched());
  round_trip(first, logical, budget);
}

}  // namespace
}  // namespace prunex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex::fuzz;
  Decoder in(data, size);
  const auto mode = in.take<uint8_t>();
  choose_version(mode);
  const size_t budget = in.take<uint16_t>();
  const size_t logical = in.take<uint16_t>() % 40000;
  const size_t extra = in.take<uint8_t>();
  const auto rest = std::as_bytes(std::span(data, size)).subspan(size < 6 ? size : 6);
  if ((mode & 128) != 0) {
    round_trip(Exact(rest), rest.size() > extra ? rest.size() - extra : 0, budget);
    return 0;
  }
  // Blocks and tail are there in the right number when the fuzzer gives only a bitmap.
  const size_t blocks = logical / 128, bitmap = (blocks + 63) / 64 * 8;
  std::vector<std::byte> payload(rest.begin(), rest.end());
  if ((mode & 64) != 0) {
    payload.resize(bitmap);
    size_t ones = 0;
    for (const std::byte b : payload) {
      ones += static_cast<size_t>(__builtin_popcount(static_cast<unsigned>(b)));
    }
    payload.resize(bitmap + ones * 128 + logical % 128 + (extra > 250 ? extra - 250 : 0),
                   static_cast<std::byte>(extra));
  }
  any_payload(Exact(payload), logical, (mode & 32) != 0 ? extra : logical + extra, budget);
  return 0;
}
