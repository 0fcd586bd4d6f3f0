// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "tests/nccl/host/chain.h"
#include "tests/nccl/host/failure.h"

namespace prunex::nccl::host {
namespace {

template <class T>
void put(void* at, int value) {
  const auto typed = static_cast<T>(value);
  std::memcpy(at, &typed, sizeof typed);
}
template <class T>
int get(const void* at) {
  T typed;
  std::memcpy(&typed, at, sizeof typed);
  return static_cast<int>(typed);
}

// A small float: sign, exponent bits with this bias, mantissa bits. Exact for the integers it
// holds.
template <class Bits, int Mantissa, int Bias>
void put_float(void* at, int value) {
  const unsigned size = static_cast<unsigned>(value < 0 ? -value : value);
  unsigned bits = 0;
  if (size != 0) {
    int exponent = 0;
    while (size >> (exponent + 1) != 0) {
      ++exponent;
    }
    const int up = Mantissa - exponent;
    const unsigned mantissa = up >= 0 ? size << up : size >> -up;
    bits = static_cast<unsigned>(exponent + Bias) << Mantissa | (mantissa & ((1u << Mantissa) - 1));
  }
  bits |= value < 0 ? 1u << (sizeof(Bits) * 8 - 1) : 0;
  const auto stored = static_cast<Bits>(bits);
  std::memcpy(at, &stored, sizeof stored);
}
template <class Bits, int Mantissa, int Bias>
int get_float(const void* at) {
  Bits stored;
  std::memcpy(&stored, at, sizeof stored);
  const unsigned bits = stored;
  const unsigned sign = bits >> (sizeof(Bits) * 8 - 1);
  const unsigned rest = bits & ~(1u << (sizeof(Bits) * 8 - 1));
  if (rest == 0) {
    return 0;
  }
  const int exponent = static_cast<int>(rest >> Mantissa) - Bias;
  if (exponent < 0 || exponent > 20) {
    return INT32_MIN;  // no integer of these tests
  }
  const unsigned mantissa = (rest & ((1u << Mantissa) - 1)) | 1u << Mantissa;
  const int value = static_cast<int>(exponent >= Mantissa ? mantissa << (exponent - Mantissa)
                                                          : mantissa >> (Mantissa - exponent));
  return sign != 0 ? -value : value;
}

template <class T>
Type plain(abi::DataType id) {
  return {id, sizeof(T), put<T>, get<T>, std::is_signed_v<T>};
}
template <class Bits, int Mantissa, int Bias>
Type small(abi::DataType id) {
  return {id, sizeof(Bits), put_float<Bits, Mantissa, Bias>, get_float<Bits, Mantissa, Bias>, true};
}

}  // namespace

const std::vector<Type>& all_types() {
  static const std::vector<Type> kTypes{
      plain<int8_t>(abi::kInt8),
      plain<uint8_t>(abi::kUint8),
      plain<int32_t>(abi::kInt32),
      plain<uint32_t>(abi::kUint32),
      plain<int64_t>(abi::kInt64),
      plain<uint64_t>(abi::kUint64),
      small<uint16_t, 10, 15>(abi::kFloat16),
      plain<float>(abi::kFloat32),
      plain<double>(abi::kFloat64),
      small<uint16_t, 7, 127>(abi::kBfloat16),
      small<uint8_t, 3, 7>(abi::kFloat8e4m3),
      small<uint8_t, 2, 15>(abi::kFloat8e5m2),
  };
  return kTypes;
}

const Type& type_of(abi::DataType id) { return all_types()[id]; }

int reduce(abi::RedOp op, int a, int b) {
  switch (op) {
    case abi::kSum:
      return a + b;
    case abi::kProd:
      return a * b;
    case abi::kMax:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

}  // namespace prunex::nccl::host
