// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/codec/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace prunex::nccl::codec {
namespace {

using Bytes = std::vector<std::byte>;

FrameHeader zero_block() {
  return {.kind = FrameKind::zero_block, .logical = 8192, .payload = 300};
}
FrameHeader masked() {
  return {.kind = FrameKind::masked,
          .logical = 4096,
          .payload = 1000,
          .slot = 63,
          .element_size = 4,
          .mask_digest = 0x0123456789abcdef,
          .offset = 0x1122334455667788 & ~uint64_t{0xf000000000000003}};
}
FrameHeader definition() {
  return {.kind = FrameKind::mask_definition,
          .logical = 0,
          .payload = 77,
          .slot = 5,
          .element_size = 2,
          .mask_digest = ~uint64_t{0}};
}

Bytes framed(const FrameHeader& h) {
  Bytes out(kFrameBytes + h.payload, std::byte{0xcc});
  encode(h, std::span(out).first<kFrameBytes>());
  return out;
}

FrameStatus status(const Bytes& frame) {
  FrameHeader h;
  return decode(frame, &h);
}

TEST(Frame, round_trips_every_kind) {
  for (const FrameHeader& h : {zero_block(), masked(), definition()}) {
    FrameHeader got;
    ASSERT_EQ(decode(framed(h), &got), FrameStatus::ok);
    EXPECT_EQ(got, h);
  }
}

TEST(Frame, layout_is_fixed) {
  const FrameHeader h{.kind = FrameKind::masked,
                      .logical = 0x00010208,
                      .payload = 0x00000304,
                      .slot = 0x05,
                      .element_size = 8,
                      .mask_digest = 0x1112131415161718,
                      .offset = 0x0122232425262728};
  Bytes frame = framed(h);
  frame.resize(kFrameBytes);
  constexpr uint8_t kWant[kFrameBytes] = {
      'P',  'X',  'N',  'F',  1,    2,    8,    0,     // magic, version, kind, element, reserved
      0x08, 0x02, 0x01, 0,    0x04, 0x03, 0,    0,     // logical, payload
      5,    0,    0,    0,    0,    0,    0,    0,     // slot, reserved
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  // digest
      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x01};
  EXPECT_EQ(std::memcmp(frame.data(), kWant, kFrameBytes), 0);
}

TEST(Frame, limits_themselves_are_accepted) {
  FrameHeader h = zero_block();
  h.logical = kMaxPiece;
  h.payload = kMaxPiece;
  EXPECT_EQ(status(framed(h)), FrameStatus::ok);
  h = definition();
  h.payload = kMaxMaskDefinition;
  EXPECT_EQ(status(framed(h)), FrameStatus::ok);
  h = masked();
  h.payload = 0;  // everything is dropped
  h.offset = kMaxTensorBytes - h.logical;
  EXPECT_EQ(status(framed(h)), FrameStatus::ok);
}

TEST(Frame, every_truncation_is_refused) {
  const Bytes whole = framed(masked());
  for (size_t n = 0; n < whole.size(); ++n) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<long>(n));
    EXPECT_EQ(status(part), n < kFrameBytes ? FrameStatus::truncated : FrameStatus::wrong_length)
        << n;
  }
  Bytes more = whole;
  more.push_back({});
  EXPECT_EQ(status(more), FrameStatus::wrong_length);
}

TEST(Frame, faults_are_told_apart) {
  struct Fault {
    const char* what;
    FrameHeader header;
    std::function<void(FrameHeader&)> break_it;
    FrameStatus want;
  };
  const Fault faults[] = {
      {"piece too long", zero_block(), [](auto& h) { h.logical = kMaxPiece + 1; },
       FrameStatus::wrong_length},
      {"no piece", zero_block(), [](auto& h) { h.logical = 0; }, FrameStatus::wrong_length},
      {"empty payload", zero_block(), [](auto& h) { h.payload = 0; }, FrameStatus::wrong_length},
      {"payload grew", zero_block(), [](auto& h) { h.payload = h.logical + 1; },
       FrameStatus::wrong_length},
      {"masked payload grew", masked(), [](auto& h) { h.payload = h.logical + 4; },
       FrameStatus::wrong_length},
      {"mask too long", definition(), [](auto& h) { h.payload = kMaxMaskDefinition + 1; },
       FrameStatus::wrong_length},
      {"empty mask", definition(), [](auto& h) { h.payload = 0; }, FrameStatus::wrong_length},
      {"mask with a piece", definition(), [](auto& h) { h.logical = 128; },
       FrameStatus::wrong_length},
      {"slot", masked(), [](auto& h) { h.slot = kMaxMaskSlots; }, FrameStatus::wrong_mask},
      {"slot of a mask", definition(), [](auto& h) { h.slot = ~uint32_t{0}; },
       FrameStatus::wrong_mask},
      {"element of 0", masked(), [](auto& h) { h.element_size = 0; }, FrameStatus::wrong_mask},
      {"element of 3", masked(), [](auto& h) { h.element_size = 3; }, FrameStatus::wrong_mask},
      {"element of 16", definition(), [](auto& h) { h.element_size = 16; },
       FrameStatus::wrong_mask},
      {"offset between elements", masked(), [](auto& h) { h.offset += 2; },
       FrameStatus::wrong_mask},
      {"piece between elements", masked(), [](auto& h) { h.logical -= 1; },
       FrameStatus::wrong_mask},
      {"offset past all tensors", masked(),
       [](auto& h) { h.offset = kMaxTensorBytes - h.logical + 4; }, FrameStatus::wrong_mask},
      {"offset that overflows", masked(), [](auto& h) { h.offset = ~uint64_t{3}; },
       FrameStatus::wrong_mask},
      {"mask with an offset", definition(), [](auto& h) { h.offset = 2; }, FrameStatus::wrong_mask},
      {"zero blocks with a slot", zero_block(), [](auto& h) { h.slot = 1; },
       FrameStatus::wrong_mask},
      {"zero blocks with elements", zero_block(), [](auto& h) { h.element_size = 4; },
       FrameStatus::wrong_mask},
      {"zero blocks with a digest", zero_block(), [](auto& h) { h.mask_digest = 1; },
       FrameStatus::wrong_mask},
      {"zero blocks with an offset", zero_block(), [](auto& h) { h.offset = 128; },
       FrameStatus::wrong_mask},
  };
  for (const Fault& fault : faults) {
    FrameHeader h = fault.header;
    ASSERT_EQ(status(framed(h)), FrameStatus::ok);
    fault.break_it(h);
    FrameHeader untouched = masked();
    EXPECT_EQ(decode(framed(h), &untouched), fault.want) << fault.what;
    EXPECT_EQ(untouched, masked()) << fault.what;
  }
}

TEST(Frame, foreign_and_reserved_bits_are_refused) {
  for (const FrameHeader& h : {zero_block(), masked(), definition()}) {
    for (size_t bit = 0; bit < kFrameBytes * 8; ++bit) {
      Bytes frame = framed(h);
      frame[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const FrameStatus got = status(frame);
      const size_t at = bit / 8;
      if (at < 4) {
        EXPECT_EQ(got, FrameStatus::wrong_magic);
      } else if (at == 4) {
        EXPECT_EQ(got, FrameStatus::wrong_version);
      } else if (at == 7 || (at >= 20 && at < 24)) {
        EXPECT_EQ(got, FrameStatus::reserved_set);
      } else if (at >= 12 && at < 16) {
        EXPECT_EQ(got, FrameStatus::wrong_length) << "the payload is what arrived";
      }
    }
  }
  Bytes frame = framed(zero_block());
  for (int kind = 0; kind < 256; ++kind) {
    frame[5] = static_cast<std::byte>(kind);
    EXPECT_EQ(status(frame) == FrameStatus::unknown_kind, kind < 1 || kind > 4) << kind;
  }
}

TEST(Frame, a_stored_piece_is_as_long_as_it_says) {
  FrameHeader h;
  h.kind = FrameKind::stored;
  h.logical = h.payload = 300;
  EXPECT_EQ(status(framed(h)), FrameStatus::ok);
  h.payload = 299;
  EXPECT_EQ(status(framed(h)), FrameStatus::wrong_length);
  h.payload = 300;
  h.slot = 1;
  EXPECT_EQ(status(framed(h)), FrameStatus::wrong_mask);
}

TEST(Frame, the_first_of_several) {
  const Bytes one = framed(zero_block());
  Bytes two = one;
  two.insert(two.end(), one.begin(), one.end());
  FrameHeader header;
  size_t length = 0;
  ASSERT_EQ(decode_first(two, &header, &length), FrameStatus::ok);
  EXPECT_EQ(length, one.size());
  EXPECT_EQ(header, zero_block());
  ASSERT_EQ(decode_first(one, &header, &length), FrameStatus::ok);
  // Cut anywhere it is no frame, and nothing behind the end is read.
  for (size_t n = 0; n < one.size(); ++n) {
    const Bytes cut(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_NE(decode_first(cut, &header, &length), FrameStatus::ok) << n;
  }
}

TEST(Frame, every_fault_has_a_text) {
  for (int s = 0; s <= static_cast<int>(FrameStatus::reserved_set); ++s) {
    EXPECT_GT(std::string(text_of(static_cast<FrameStatus>(s))).size(), 5u);
  }
}

}  // namespace
}  // namespace prunex::nccl::codec
