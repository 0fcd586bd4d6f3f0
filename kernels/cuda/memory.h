// SPDX-License-Identifier: Apache-2.0
// Loads, stores and copies of one thread. Addresses are multiples of the element's size, unless the
// name says `bytes`.
#pragma once
#include "kernels/cuda/device.h"

namespace prunex::cuda {

template <int kSize>
struct Raw;
template <>
struct Raw<1> {
  using Type = uint8_t;
};
template <>
struct Raw<2> {
  using Type = uint16_t;
};
template <>
struct Raw<4> {
  using Type = uint32_t;
};
template <>
struct Raw<8> {
  using Type = uint64_t;
};
template <int kSize>
using RawOf = typename Raw<kSize>::Type;

template <class T>
[[nodiscard]] PRUNEX_HD T load(const void* p) {
  return *static_cast<const T*>(p);
}
template <class T>
PRUNEX_HD void store(void* p, T v) {
  *static_cast<T*>(p) = v;
}

// Low `bits` bits come from the top of `a`, the rest from b: 64 bits at byte `bits / 8` of a:b.
[[nodiscard]] PRUNEX_HD uint64_t funnel(uint64_t a, uint64_t b, uint32_t bits) {
  return bits == 0 ? a : a >> bits | b << (64 - bits);
}

// 16 bytes at any address that is a multiple of the element's size, from aligned loads when the
// 16-byte units that hold them lie in [begin, end); else element by element.
template <int kSize>
[[nodiscard]] PRUNEX_HD Vector16 load16(const std::byte* p, const std::byte* begin,
                                        const std::byte* end) {
  const uint32_t off = address_mod(p, 16);
  if (off == 0) {
    return load<Vector16>(p);
  }
  const std::byte* unit = p - off;
  if (unit >= begin && end - unit >= 32) {
    const auto a = load<Vector16>(unit);
    const auto b = load<Vector16>(unit + 16);
    const uint32_t bits = off % 8 * 8;
    const bool second = off >= 8;
    const uint64_t w0 = second ? a.high : a.low;
    const uint64_t w1 = second ? b.low : a.high;
    const uint64_t w2 = second ? b.high : b.low;
    return {funnel(w0, w1, bits), funnel(w1, w2, bits)};
  }
  uint64_t half[2] = {0, 0};
  PRUNEX_UNROLL
  for (int j = 0; j < 16 / kSize; ++j) {
    const uint64_t v = load<RawOf<kSize>>(p + j * kSize);
    half[j * kSize / 8] |= v << (j * kSize % 8 * 8);
  }
  return {half[0], half[1]};
}

// n elements; thread `thread` of `threads` that share the work. Stores are aligned vectors but at
// the ends. dst and src do not overlap.
template <int kSize>
PRUNEX_HD void copy_elements(std::byte* dst, const std::byte* src, uint32_t n, uint32_t thread,
                             uint32_t threads) {
  constexpr int kUnroll = 4;
  const uint32_t bytes = n * kSize;
  const uint32_t to_line = (16 - address_mod(dst, 16)) % 16;
  const uint32_t head = to_line < bytes ? to_line : bytes;
  const uint32_t vectors = (bytes - head) / 16;
  const uint32_t tail = head + vectors * 16;
  const auto fetch = [&](uint32_t v) {
    return load16<kSize>(src + head + v * 16, src, src + bytes);
  };
  uint32_t v = thread;
  for (; v + (kUnroll - 1) * threads < vectors; v += kUnroll * threads) {
    Vector16 data[kUnroll];
    PRUNEX_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      data[u] = fetch(v + u * threads);
    }
    PRUNEX_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      store(dst + head + (v + u * threads) * 16, data[u]);
    }
  }
  for (; v < vectors; v += threads) {
    store(dst + head + v * 16, fetch(v));
  }
  using Element = RawOf<kSize>;
  for (uint32_t at = thread * kSize; at < head; at += threads * kSize) {
    store(dst + at, load<Element>(src + at));
  }
  for (uint32_t at = tail + thread * kSize; at < bytes; at += threads * kSize) {
    store(dst + at, load<Element>(src + at));
  }
}

template <int kSize>
PRUNEX_HD void zero_elements(std::byte* dst, uint32_t n, uint32_t thread, uint32_t threads) {
  const uint32_t bytes = n * kSize;
  const uint32_t to_line = (16 - address_mod(dst, 16)) % 16;
  const uint32_t head = to_line < bytes ? to_line : bytes;
  const uint32_t vectors = (bytes - head) / 16;
  const uint32_t tail = head + vectors * 16;
  for (uint32_t v = thread; v < vectors; v += threads) {
    store(dst + head + v * 16, Vector16{0, 0});
  }
  for (uint32_t at = thread * kSize; at < head; at += threads * kSize) {
    store(dst + at, RawOf<kSize>{0});
  }
  for (uint32_t at = tail + thread * kSize; at < bytes; at += threads * kSize) {
    store(dst + at, RawOf<kSize>{0});
  }
}

// One element of `size` bytes at any address.
PRUNEX_HD void copy_bytes(std::byte* dst, const std::byte* src, uint32_t size) {
  for (uint32_t b = 0; b < size; ++b) {
    dst[b] = src[b];
  }
}
[[nodiscard]] PRUNEX_HD uint64_t load_bytes(const std::byte* src, uint32_t size) {
  uint64_t v = 0;
  for (uint32_t b = 0; b < size; ++b) {
    v |= static_cast<uint64_t>(src[b]) << (8 * b);
  }
  return v;
}

}  // namespace prunex::cuda
