// SPDX-License-Identifier: Apache-2.0
// Hand-built masks and layouts with an element-by-element reference, and memory that faults one
// byte outside. Nothing here uses the walk or the compiler that the kernels use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/host/table.h"
#include "kernels/layout.h"
#include "plugin/base/dtype.h"

namespace prunex::test {

using Rng = std::mt19937_64;
using Bits = std::vector<uint8_t>;  // one byte per column or element, 0 or 1

[[nodiscard]] uint64_t below(Rng& rng, uint64_t n);  // uniform in [0, n)
[[nodiscard]] Bits random_bits(Rng& rng, size_t n, double density, size_t run = 1);

// Builds a CompiledMask panel by panel. Panels must ascend.
class MaskBuilder {
 public:
  explicit MaskBuilder(uint64_t count) { mask_.count = count; }
  int32_t pattern(const Bits& bits, bool wide = false);
  MaskBuilder& panel(uint64_t offset, uint64_t rows, uint64_t stride, uint64_t columns,
                     int32_t pattern);
  [[nodiscard]] std::shared_ptr<const CompiledMask> build();

 private:
  CompiledMask mask_;
};

// Kept or not, for every element, straight from the panels.
[[nodiscard]] Bits expand_mask(const CompiledMask& mask);

struct Case {
  std::string name;
  Layout layout;
  Bits keep;                   // per element of the buffer
  std::vector<uint64_t> kept;  // the kept elements, ascending
};

// masks[i] null: a dense segment of counts[i] elements.
[[nodiscard]] Case make_case(std::string name,
                             const std::vector<std::shared_ptr<const CompiledMask>>& masks,
                             const std::vector<uint64_t>& counts);

// One case for every structure: filters, channels, both, short rows, strided rows, wide runs, N:M,
// blocks, nothing kept, everything kept, and several of them in one buffer.
[[nodiscard]] std::vector<Case> all_cases(uint64_t seed);

// The slice of kept elements [begin, end). `where` in [0, 1] says where in a dropped gap it is cut.
[[nodiscard]] Slice cut(const Case& c, uint64_t begin, uint64_t end, double where = 0);

inline constexpr DType kAllTypes[] = {DType::f32, DType::f64, DType::f16,    DType::bf16,
                                      DType::i8,  DType::u8,  DType::i32,    DType::i64,
                                      DType::u32, DType::u64, DType::f8e4m3, DType::f8e5m2};

// Is this element something else than ±0? From its value, not from its bits.
[[nodiscard]] bool differs_from_zero(DType type, const std::byte* p);
void put_negative_zero(DType type, std::byte* p);
void put_nan(DType type, std::byte* p, bool negative);
// Kept elements: any bits. Dropped ones: +0, -0, and one in `one_in` something else (0: none).
void fill(const Case& c, DType type, Rng& rng, uint64_t one_in, std::byte* buffer);

// `bytes` bytes that end at an unreadable page, or begin behind one.
class Fenced {
 public:
  enum class At { end, begin };
  Fenced(size_t bytes, At at);
  ~Fenced();
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t mapped_ = 0, bytes_ = 0;
};

// The versions that this CPU has; the first is scalar.
[[nodiscard]] std::vector<host::Version> versions();
[[nodiscard]] const char* name_of(host::Version v);

// Puts automatic selection back when a test ends.
struct RestoreIsa {
  ~RestoreIsa();
};

}  // namespace prunex::test
