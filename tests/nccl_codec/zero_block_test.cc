// SPDX-License-Identifier: Apache-2.0
// Zero blocks against a block-by-block reference, for every instruction set.
#include "plugin/nccl/codec/zero_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/exact.h"
#include "tests/kernels/pack_support.h"

namespace prunex::nccl::codec {
namespace {

using test::below;
using test::Fenced;
using test::Rng;
using Bytes = std::vector<std::byte>;

constexpr size_t kBlock = 128;
constexpr std::byte kStale{0xa5};

// The payload as zero_block.h describes it.
Bytes reference_payload(const std::byte* src, size_t bytes) {
  const size_t blocks = bytes / kBlock;
  Bytes out((blocks + 63) / 64 * 8);
  for (size_t b = 0; b < blocks; ++b) {
    const std::byte* block = src + b * kBlock;
    if (std::any_of(block, block + kBlock, [](std::byte v) { return v != std::byte{0}; })) {
      out[b / 8] |= static_cast<std::byte>(1u << (b % 8));
      out.insert(out.end(), block, block + kBlock);
    }
  }
  out.insert(out.end(), src + blocks * kBlock, src + bytes);
  return out;
}

// About `zeros` of the blocks are zero; in some others a single bit is set.
void fill(Rng& rng, double zeros, std::byte* p, size_t bytes) {
  std::bernoulli_distribution zero(zeros);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t n = std::min(kBlock, bytes - at);
    std::memset(p + at, 0, n);
    if (zero(rng)) {
      continue;
    }
    if (below(rng, 4) == 0) {
      p[at + below(rng, n)] = static_cast<std::byte>(1u << below(rng, 8));
    } else {
      std::generate_n(p + at, n, [&] { return static_cast<std::byte>(rng()); });
    }
  }
}

struct Encoded {
  Encoding state = Encoding::more;
  Bytes payload;
};

// `out` has `room` bytes and ends at memory that faults.
Encoded encode(const std::byte* src, size_t bytes, size_t room, size_t budget) {
  Fenced out(room, Fenced::At::end);
  std::memset(out.data(), 0xa5, room);
  ZeroBlockEncoder encoder;
  encoder.begin(src, bytes, {out.data(), room});
  Encoded e;
  size_t steps = 0;
  do {
    e.state = encoder.step(budget);
    EXPECT_LE(++steps, bytes / std::max(kBlock, budget / kBlock * kBlock) + 2) << "too many steps";
  } while (e.state == Encoding::more);
  EXPECT_EQ(encoder.step(budget), e.state) << "the answer stays";
  if (e.state == Encoding::done) {
    EXPECT_LE(encoder.size(), std::min(room, paying_size(bytes)));
    e.payload.assign(out.data(), out.data() + encoder.size());
    for (size_t i = paying_size(bytes); i < room; ++i) {
      EXPECT_EQ(out.data()[i], kStale) << "wrote past what pays";
    }
  }
  return e;
}

Decoding decode(std::span<const std::byte> payload, size_t logical, std::byte* dst, size_t capacity,
                size_t budget) {
  ZeroBlockDecoder decoder;
  decoder.begin(payload, logical, dst, capacity);
  Decoding state = Decoding::more;
  while (state == Decoding::more) {
    state = decoder.step(budget);
  }
  EXPECT_EQ(decoder.step(budget), state);
  return state;
}

class ZeroBlock : public testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  test::RestoreIsa restore_;
};

INSTANTIATE_TEST_SUITE_P(Isa, ZeroBlock, testing::ValuesIn(test::versions()),
                         [](const auto& p) { return std::string(test::name_of(p.param)); });

constexpr size_t kBudgets[] = {
    0, 1, 127, 128, 129, 1000, 8191, 8192, 12345, 262144, std::numeric_limits<size_t>::max()};

TEST_P(ZeroBlock, round_trips_and_equals_the_reference) {
  Rng rng(11);
  for (const size_t bytes :
       {1ul, 127ul, 128ul, 129ul, 255ul, 256ul, 257ul, 1024ul, 8064ul, 8191ul, 8192ul, 8193ul,
        8320ul, 65536ul, 100003ul, 131072ul + 64, 1048575ul, 1048576ul}) {
    for (const double zeros : {0.0, 0.06, 0.0625, 0.07, 0.3, 0.6, 0.97, 1.0}) {
      const auto at = below(rng, 2) == 0 ? Fenced::At::end : Fenced::At::begin;
      Fenced src(bytes, at);
      fill(rng, zeros, src.data(), bytes);
      const Bytes want = reference_payload(src.data(), bytes);
      const size_t budget = kBudgets[below(rng, std::size(kBudgets))];
      SCOPED_TRACE(testing::Message()
                   << bytes << " bytes, " << zeros << " zeros, budget " << budget);
      const Encoded e = encode(src.data(), bytes, bytes, budget);
      ASSERT_EQ(e.state,
                want.size() <= paying_size(bytes) ? Encoding::done : Encoding::does_not_pay);
      if (e.state == Encoding::done) {
        ASSERT_TRUE(e.payload == want);
      }
      Fenced payload(want.size(), Fenced::At::end);
      std::memcpy(payload.data(), want.data(), want.size());
      Fenced dst(bytes, at);
      std::memset(dst.data(), 0xa5, bytes);
      const size_t other = kBudgets[below(rng, std::size(kBudgets))];
      ASSERT_EQ(decode({payload.data(), payload.size()}, bytes, dst.data(), bytes, other),
                Decoding::done);
      ASSERT_EQ(std::memcmp(dst.data(), src.data(), bytes), 0);
    }
  }
}

TEST_P(ZeroBlock, any_alignment_and_nothing_outside) {
  Rng rng(12);
  for (size_t skew = 0; skew < 67; ++skew) {
    const size_t bytes = 3000 + below(rng, 9000);
    Bytes src(bytes + 128), out(bytes + 128, kStale), dst(bytes + 256, kStale);
    fill(rng, 0.6, src.data() + skew, bytes);
    ZeroBlockEncoder encoder;
    encoder.begin(src.data() + skew, bytes, std::span(out).subspan(66 - skew, bytes));
    Encoding state = Encoding::more;
    while (state == Encoding::more) {
      state = encoder.step(777);
    }
    ASSERT_EQ(state, Encoding::done);
    for (size_t i = 0; i < 66 - skew; ++i) {
      ASSERT_EQ(out[i], kStale);
    }
    const auto payload = std::span(out).subspan(66 - skew, encoder.size());
    ASSERT_EQ(decode(payload, bytes, dst.data() + 3 + skew, bytes, 999), Decoding::done);
    ASSERT_EQ(std::memcmp(dst.data() + 3 + skew, src.data() + skew, bytes), 0);
    for (size_t i = 0; i < dst.size(); ++i) {
      if (i < 3 + skew || i >= 3 + skew + bytes) {
        ASSERT_EQ(dst[i], kStale) << i;
      }
    }
  }
}

// A bit anywhere in a block keeps the block: -0.0 in every floating type, denormals, one flag.
TEST_P(ZeroBlock, every_single_bit_is_kept) {
  constexpr size_t kBytes = 16 * kBlock + 5;
  Bytes src(kBytes), dst(kBytes);
  for (size_t bit = 0; bit < kBlock * 8; ++bit) {
    const size_t at = 7 * kBlock + bit / 8;
    src[at] = static_cast<std::byte>(1u << (bit % 8));
    const Encoded e = encode(src.data(), kBytes, kBytes, 4096);
    ASSERT_EQ(e.state, Encoding::done);
    ASSERT_EQ(e.payload.size(), 8 + kBlock + 5);
    std::fill(dst.begin(), dst.end(), kStale);
    ASSERT_EQ(decode(e.payload, kBytes, dst.data(), kBytes, 4096), Decoding::done);
    ASSERT_TRUE(dst == src) << bit;
    src[at] = {};
  }
}

TEST_P(ZeroBlock, values_that_compare_equal_to_zero_survive) {
  constexpr size_t kFloats = 32 * 64;
  std::vector<float> src(kFloats, 0.0f), dst(kFloats, 1.0f);
  for (size_t i = 0; i < kFloats; i += 160) {
    src[i] = -0.0f;
    src[i + 1] = std::numeric_limits<float>::quiet_NaN();
    src[i + 2] = std::numeric_limits<float>::denorm_min();
  }
  const size_t bytes = kFloats * sizeof(float);
  const Encoded e =
      encode(reinterpret_cast<const std::byte*>(src.data()), bytes, bytes, size_t{1} << 18);
  ASSERT_EQ(e.state, Encoding::done);
  ASSERT_EQ(
      decode(e.payload, bytes, reinterpret_cast<std::byte*>(dst.data()), bytes, size_t{1} << 18),
      Decoding::done);
  EXPECT_EQ(std::memcmp(src.data(), dst.data(), bytes), 0);
}

TEST_P(ZeroBlock, gives_up_when_it_cannot_pay) {
  Rng rng(13);
  constexpr size_t kBytes = 1 << 20;
  Bytes src(kBytes);
  fill(rng, 0, src.data(), kBytes);
  // Zeros only at the very end: just too few, then just enough.
  for (const size_t zero_blocks : {size_t{519}, size_t{520}}) {
    std::fill(src.end() - static_cast<long>(zero_blocks * kBlock), src.end(), std::byte{});
    const Encoded e = encode(src.data(), kBytes, kBytes, 262144);
    EXPECT_EQ(e.state, zero_blocks == 520 ? Encoding::done : Encoding::does_not_pay)
        << "1024 bytes of bitmap and 1/16 of the source";
  }
  // Neither without room, whatever the data.
  Bytes zeros(kBytes);
  EXPECT_EQ(encode(zeros.data(), kBytes, 1024, 8192).state, Encoding::done);
  EXPECT_EQ(encode(zeros.data(), kBytes, 1023, 8192).state, Encoding::does_not_pay);
  EXPECT_EQ(encode(zeros.data(), kBytes, 0, 8192).state, Encoding::does_not_pay);
  EXPECT_EQ(encode(zeros.data(), 0, 100, 8192).state, Encoding::does_not_pay);
  EXPECT_EQ(encode(zeros.data(), 127, 127, 8192).state, Encoding::does_not_pay);
  zeros[kBytes - 1] = std::byte{1};
  EXPECT_EQ(encode(zeros.data(), kBytes, 1024 + 128, 8192).state, Encoding::done);
  EXPECT_EQ(encode(zeros.data(), kBytes, 1024 + 127, 8192).state, Encoding::does_not_pay);
}

TEST_P(ZeroBlock, a_step_keeps_its_budget) {
  constexpr size_t kBytes = 1 << 20;
  Bytes src(kBytes), out(kBytes), dst(kBytes, kStale);
  ZeroBlockEncoder encoder;
  encoder.begin(src.data(), kBytes, out);
  size_t steps = 0;
  while (encoder.step(65536) == Encoding::more) {
    ++steps;
  }
  EXPECT_EQ(steps, kBytes / 65536 - 1);
  ZeroBlockDecoder decoder;
  decoder.begin(std::span(out).first(encoder.size()), kBytes, dst.data(), kBytes);
  for (size_t at = 65536; at < kBytes; at += 65536) {
    ASSERT_EQ(decoder.step(65536), Decoding::more);
    ASSERT_EQ(dst[at - 1], std::byte{}) << "ascending";
    ASSERT_EQ(dst[at], kStale) << "no further than the budget";
  }
  ASSERT_EQ(decoder.step(65536), Decoding::done);
  EXPECT_TRUE(dst == src);
}

TEST_P(ZeroBlock, corrupt_payloads_write_nothing) {
  Rng rng(14);
  for (const size_t bytes : {1000ul, 8192ul, 8192ul + 640, 20000ul}) {
    Bytes src(bytes), dst(bytes + 4096, kStale);
    fill(rng, 0.5, src.data(), bytes);
    const Bytes good = reference_payload(src.data(), bytes);
    const auto expect_refused = [&](std::span<const std::byte> payload, size_t logical,
                                    size_t capacity) {
      EXPECT_EQ(decode(payload, logical, dst.data(), capacity, 8192), Decoding::corrupt);
      ASSERT_TRUE(dst == Bytes(dst.size(), kStale));
    };
    expect_refused(good, bytes, bytes - 1);
    expect_refused({}, bytes, bytes);
    for (size_t n = 0; n < good.size(); n += 1 + n / 7) {
      Fenced part(n, Fenced::At::end);
      std::memcpy(part.data(), good.data(), n);
      expect_refused({part.data(), n}, bytes, bytes);
    }
    Bytes longer = good;
    longer.push_back({});
    expect_refused(longer, bytes, bytes);
    expect_refused(good, bytes + 1, dst.size());
    const size_t blocks = bytes / kBlock;
    for (size_t bit = 0; bit < (blocks + 63) / 64 * 64; ++bit) {
      Bytes flipped = good;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      expect_refused(flipped, bytes, bytes);
      if (bit >= blocks) {  // a bit past the end, with a block to match
        flipped.resize(flipped.size() + kBlock);
        expect_refused(flipped, bytes, bytes);
      }
    }
  }
  std::byte none{};
  EXPECT_EQ(decode({}, 0, &none, 0, 1), Decoding::done);
  EXPECT_EQ(decode({&none, 1}, 0, &none, 0, 1), Decoding::corrupt);
  EXPECT_EQ(decode({&none, 1}, std::numeric_limits<size_t>::max(), &none,
                   std::numeric_limits<size_t>::max(), 1),
            Decoding::corrupt);
}

TEST(ZeroBlockUnused, steps_without_begin_do_nothing) {
  EXPECT_EQ(ZeroBlockEncoder().step(1), Encoding::does_not_pay);
  EXPECT_EQ(ZeroBlockDecoder().step(1), Decoding::corrupt);
}

TEST(ZeroBlockUnused, begin_starts_afresh) {
  Bytes zeros(8192), dense(8192, std::byte{1}), out(8192);
  ZeroBlockEncoder encoder;
  encoder.begin(dense.data(), dense.size(), out);
  while (encoder.step(999) == Encoding::more) {
  }
  encoder.begin(zeros.data(), zeros.size(), out);
  ASSERT_EQ(encoder.step(8192), Encoding::done);
  EXPECT_EQ(encoder.size(), 8u);
  ZeroBlockDecoder decoder;
  decoder.begin({}, 4, dense.data(), dense.size());
  decoder.begin(std::span(out).first(8), dense.size(), dense.data(), dense.size());
  ASSERT_EQ(decoder.step(8192), Decoding::done);
  EXPECT_TRUE(dense == zeros);
}

TEST_P(ZeroBlock, probe_tells_sparse_from_dense) {
  Rng rng(15);
  for (const size_t bytes : {4096ul, 5000ul, 65536ul, 524288ul, 1048576ul, 4194304ul}) {
    Fenced src(bytes, Fenced::At::end);
    size_t sparse = 0;
    for (int i = 0; i < 8; ++i) {
      fill(rng, 0.6, src.data(), bytes);
      sparse += worth_scanning(src.data(), bytes) ? 1 : 0;
    }
    EXPECT_EQ(sparse, 8u) << bytes;
    std::generate_n(src.data(), bytes, [&] { return static_cast<std::byte>(rng()); });
    EXPECT_FALSE(worth_scanning(src.data(), bytes)) << bytes;
    std::memset(src.data(), 0, bytes);
    EXPECT_TRUE(worth_scanning(src.data(), bytes)) << bytes;
    // Zero words at the begin of dense blocks do not deceive it.
    for (size_t at = kBlock - 1; at < bytes; at += kBlock) {
      src.data()[at] = std::byte{0x80};
    }
    EXPECT_FALSE(worth_scanning(src.data(), bytes)) << bytes;
  }
  std::byte few[4095]{};
  EXPECT_FALSE(worth_scanning(few, sizeof few));
  EXPECT_FALSE(worth_scanning(nullptr, 0));
}

// Rows of a power of two, half of each zero: a plain stride would see one half only.
TEST_P(ZeroBlock, probe_is_not_fooled_by_rows) {
  constexpr size_t kBytes = 1 << 20;
  Bytes src(kBytes);
  for (size_t row = 2 * kBlock; row <= kBytes; row *= 2) {
    for (const size_t dense : {size_t{0}, row / 2}) {
      std::fill(src.begin(), src.end(), std::byte{});
      for (size_t at = dense; at < kBytes; at += row) {
        std::fill_n(src.begin() + static_cast<long>(at), row / 2, std::byte{1});
      }
      EXPECT_TRUE(worth_scanning(src.data(), kBytes)) << row << " " << dense;
    }
  }
}

}  // namespace
}  // namespace prunex::nccl::codec
