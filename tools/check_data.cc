// SPDX-License-Identifier: Apache-2.0
#include "tools/check_data.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/half.h"

namespace prunex::tools {
namespace {

// Up to here every integer, and so every partial sum, is exact.
constexpr int64_t exact_limit(DType type) {
  switch (type) {
    case DType::f32:
      return int64_t{1} << 24;
    case DType::f16:
      return 2048;
    case DType::bf16:
      return 256;
    case DType::f8e4m3:
      return 16;
    case DType::f8e5m2:
      return 8;
    case DType::i8:
      return 127;
    case DType::u8:
      return 255;
    case DType::i32:
    case DType::f64:
    case DType::i64:
    case DType::u32:
    case DType::u64:
      return int64_t{1} << 31;
  }
  return 1;
}

// The value that the `position`-th of `contributors` ranks gives to elements of class `cls`.
int64_t value_of(DType type, Op op, int64_t cls, int64_t position, int64_t contributors) {
  const bool has_sign = type != DType::u8 && type != DType::u32 && type != DType::u64;
  if (op == Op::prod) {  // the product of all is ±1 or ±2
    const int64_t magnitude = (cls + position) % (2 * contributors) == 0 ? 2 : 1;
    return has_sign && (cls + 3 * position) % 5 == 0 ? -magnitude : magnitude;
  }
  const int64_t limit = exact_limit(type);
  const int64_t largest = std::min<int64_t>(limit / contributors, 1000);
  if (largest == 0) {
    return position < limit ? (cls + position) % 2 : 0;
  }
  const int64_t mixed = cls * 7 + position * 5 + 3;
  return has_sign ? mixed % (2 * largest + 1) - largest : mixed % (largest + 1);
}

int64_t combine(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::max:
      return std::max(a, b);
    case Op::min:
      return std::min(a, b);
    case Op::prod:
      return a * b;
    case Op::sum:
    case Op::avg:
      return a + b;
  }
  return 0;
}

// value / divisor, rounded once as the type rounds.
uint64_t encode(DType type, int64_t value, int64_t divisor) {
  const float narrow = static_cast<float>(value) / static_cast<float>(divisor);
  switch (type) {
    case DType::f32:
      return std::bit_cast<uint32_t>(narrow);
    case DType::f64:
      return std::bit_cast<uint64_t>(static_cast<double>(value) / static_cast<double>(divisor));
    case DType::f16:
      return float_to_half(narrow);
    case DType::bf16:
      return float_to_bfloat(narrow);
    case DType::f8e4m3:
      return float_to_e4m3(narrow);
    case DType::f8e5m2:
      return float_to_e5m2(narrow);
    case DType::i8:
    case DType::u8:
    case DType::i32:
    case DType::i64:
    case DType::u32:
    case DType::u64:
      return static_cast<uint64_t>(value / divisor);
  }
  return 0;
}

double decode(DType type, uint64_t bits) {
  switch (type) {
    case DType::f32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case DType::f64:
      return std::bit_cast<double>(bits);
    case DType::f16:
      return half_to_float(static_cast<uint16_t>(bits));
    case DType::bf16:
      return bfloat_to_float(static_cast<uint16_t>(bits));
    case DType::f8e4m3:
      return e4m3_to_float(static_cast<uint8_t>(bits));
    case DType::f8e5m2:
      return e5m2_to_float(static_cast<uint8_t>(bits));
    case DType::i8:
      return static_cast<double>(static_cast<int8_t>(bits));
    case DType::u8:
      return static_cast<double>(static_cast<uint8_t>(bits));
    case DType::i32:
      return static_cast<double>(static_cast<int32_t>(bits));
    case DType::i64:
      return static_cast<double>(static_cast<int64_t>(bits));
    case DType::u32:
      return static_cast<uint32_t>(bits);
    case DType::u64:
      return static_cast<double>(bits);
  }
  return 0;
}

template <class Word>
uint64_t count_wrong(const void* data, uint64_t first, size_t count, const auto& table,
                     const auto& class_of, uint64_t* bad) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    Word got;
    std::memcpy(&got, bytes + i * sizeof(Word), sizeof got);
    if (got != static_cast<Word>(table[class_of(first + i)]) && wrong++ == 0 && bad != nullptr) {
      *bad = first + i;
    }
  }
  return wrong;
}

}  // namespace

template <class F>
decltype(auto) CheckData::with_word(F f) const {
  switch (size_of(type_)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

CheckData::CheckData(DType type, Op op, std::span<const int> contributors, int my_rank)
    : type_(type) {
  const auto ranks = static_cast<int64_t>(contributors.size());
  for (size_t cls = 0; cls < kClasses; ++cls) {
    int64_t result = 0;
    int64_t own = 99;  // of a rank that does not contribute: must not be seen
    for (int64_t position = 0; position < ranks; ++position) {
      const int64_t value = value_of(type, op, static_cast<int64_t>(cls), position, ranks);
      result = position == 0 ? value : combine(op, result, value);
      if (contributors[static_cast<size_t>(position)] == my_rank) {
        own = value;
      }
    }
    mine_[cls] = encode(type, own, 1);
    results_[cls] = encode(type, result, op == Op::avg ? ranks : 1);
  }
}

void CheckData::fill(void* data, uint64_t first, size_t count) const {
  with_word([&](auto zero) {
    using Word = decltype(zero);
    auto* const bytes = static_cast<std::byte*>(data);
    for (size_t i = 0; i < count; ++i) {
      const auto word = static_cast<Word>(mine_[class_of(first + i)]);
      std::memcpy(bytes + i * sizeof word, &word, sizeof word);
    }
  });
}

void CheckData::fill_garbage(void* data, size_t count) const {
  with_word([&](auto zero) {
    const auto word = static_cast<decltype(zero)>(encode(type_, 99, 1));
    auto* const bytes = static_cast<std::byte*>(data);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(bytes + i * sizeof word, &word, sizeof word);
    }
  });
}

uint64_t CheckData::wrong_results(const void* data, uint64_t first, size_t count,
                                  uint64_t* bad) const {
  return with_word([&](auto zero) {
    return count_wrong<decltype(zero)>(data, first, count, results_, class_of, bad);
  });
}

uint64_t CheckData::wrong_inputs(const void* data, uint64_t first, size_t count) const {
  return with_word([&](auto zero) {
    return count_wrong<decltype(zero)>(data, first, count, mine_, class_of, nullptr);
  });
}

uint64_t wrong_zeros(const void* data, size_t element_bytes, uint64_t first, size_t count,
                     uint64_t* bad) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::byte* const at = bytes + i * element_bytes;
    if (std::any_of(at, at + element_bytes, [](std::byte b) { return b != std::byte{0}; }) &&
        wrong++ == 0) {
      *bad = first + i;
    }
  }
  return wrong;
}

double CheckData::expected(uint64_t element) const {
  return decode(type_, results_[class_of(element)]);
}

double CheckData::value_at(const void* data, size_t index) const {
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(data) + index * size_of(type_), size_of(type_));
  return decode(type_, bits);
}

}  // namespace prunex::tools
