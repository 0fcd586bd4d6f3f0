// SPDX-License-Identifier: Apache-2.0
// The reference, and the way for CPUs without the vector versions.
#include "kernels/host/blocks.h"
#include "kernels/host/reduce_blocks.h"
#include "kernels/host/unpack_rows.h"

namespace prunex::host {
namespace {

template <class T>
struct ScalarWords {
  static constexpr size_t kWidth = sizeof(T);

  static T load(const std::byte* p) {
    T v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static bool is_nonzero(const std::byte* p, uint64_t value_bits) {
    return (load(p) & static_cast<T>(value_bits)) != 0;
  }

  template <bool kAudit>
  static std::byte* compress(const std::byte* src, const uint64_t* word, std::byte* packed,
                             const std::byte* packed_end, uint64_t value_bits, uint64_t& nonzero) {
    return compress_part<kAudit>(src, *word, 64, packed, packed_end, value_bits, nonzero);
  }
  template <bool kAudit>
  static std::byte* compress_part(const std::byte* src, uint64_t word, size_t n, std::byte* packed,
                                  const std::byte*, uint64_t value_bits, uint64_t& nonzero) {
    if constexpr (kAudit) {
      nonzero += count_dropped(src, word, n, value_bits);
    }
    for (; word != 0; word &= word - 1) {
      __builtin_memcpy(packed, src + static_cast<size_t>(__builtin_ctzll(word)) * kWidth, kWidth);
      packed += kWidth;
    }
    return packed;
  }

  static uint64_t count_dropped(const std::byte* src, uint64_t word, size_t n,
                                uint64_t value_bits) {
    uint64_t nonzero = 0;
    for (uint64_t dropped = ~word & low_bits(n); dropped != 0; dropped &= dropped - 1) {
      const auto at = static_cast<size_t>(__builtin_ctzll(dropped));
      nonzero += is_nonzero(src + at * kWidth, value_bits) ? 1 : 0;
    }
    return nonzero;
  }

  static const std::byte* expand(const std::byte* packed, const std::byte* packed_end,
                                 const uint64_t* word, std::byte* dst) {
    return expand_part(packed, packed_end, *word, 64, dst);
  }
  static const std::byte* expand_part(const std::byte* packed, const std::byte*, uint64_t word,
                                      size_t n, std::byte* dst) {
    __builtin_memset(dst, 0, n * kWidth);
    for (; word != 0; word &= word - 1) {
      __builtin_memcpy(dst + static_cast<size_t>(__builtin_ctzll(word)) * kWidth, packed, kWidth);
      packed += kWidth;
    }
    return packed;
  }

  static uint64_t count(const std::byte* src, size_t n, uint64_t value_bits) {
    uint64_t nonzero = 0;
    for (size_t i = 0; i < n; ++i) {
      nonzero += is_nonzero(src + i * kWidth, value_bits) ? 1 : 0;
    }
    return nonzero;
  }
  static void copy(std::byte* dst, const std::byte* src, size_t bytes) {
    __builtin_memcpy(dst, src, bytes);
  }
  static void zero(std::byte* dst, size_t bytes) { __builtin_memset(dst, 0, bytes); }
};

struct ScalarBlock {
  struct Vec {
    uint64_t words[kZeroBlock / sizeof(uint64_t)];
  };
  static Vec load(const std::byte* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(std::byte* p, const Vec& v) { __builtin_memcpy(p, &v, sizeof v); }
  static uint64_t nonzero(const Vec& v) {
    uint64_t any = 0;
    for (const uint64_t word : v.words) {
      any |= word;
    }
    return any != 0 ? 1 : 0;
  }
};

constexpr Table make_table() {
  Table t{};
  fill_rows<ScalarWords<uint8_t>, ScalarWords<uint16_t>, ScalarWords<uint32_t>,
            ScalarWords<uint64_t>>(t);
  t.copy_run_bytes = 64;
  t.audit_run_bytes = 64;
  fill_blocks<ScalarBlock>(t);
  fill_reductions(t);
  return t;
}

}  // namespace

constinit const Table kScalarTable = make_table();

}  // namespace prunex::host
