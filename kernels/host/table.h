// SPDX-License-Identifier: Apache-2.0
// The seam between the walk over layouts and the instruction sets: one table of row and block
// functions per instruction set. The files that fill a table are compiled with flags that not every
// CPU understands, so they define nothing but their table and internal functions: an inline
// function emitted there could be the copy that the linker keeps for everybody.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/mask.h"
#include "plugin/base/dtype.h"

namespace prunex::host {

// Columns [begin, end) of `rows` rows, `stride` elements apart, that share one pattern. Pointers of
// the functions below belong to column `begin` of the first row.
struct RowBlock {
  const uint64_t* bits = nullptr;  // null and no runs: every column is kept
  const KeptRange* runs =
      nullptr;  // used instead of bits when not null: those that meet [begin, end)
  size_t num_runs = 0;
  size_t begin = 0, end = 0;
  size_t rows = 0;
  size_t stride = 0;
};

// Kept elements of the block to `packed`; nothing at or past `packed_end` is touched. Returns how
// many dropped elements between the first and the last column are not zero under `value_bits` (an
// element's bits that make it non-zero, repeated to 64 bits); 0: no audit.
using PackRows = uint64_t (*)(const RowBlock& block, const void* src, void* packed,
                              const void* packed_end, uint64_t value_bits);
// The audit alone.
using AuditRows = uint64_t (*)(const RowBlock& block, const void* src, uint64_t value_bits);
// The inverse: kept elements from `packed`, +0 into all others up to the last column of the last
// row.
using UnpackRows = void (*)(const RowBlock& block, const void* packed, const void* packed_end,
                            void* dst);
// Copies and zeros for unpack's long stretches.
using CopyBytes = void (*)(void* dst, const void* src, size_t bytes);
using ZeroBytes = void (*)(void* dst, size_t bytes);
// Elements that are not zero under value_bits.
using CountNonzero = uint64_t (*)(const void* src, size_t count, uint64_t value_bits);
// See kernels/exact.h.
using PackBlocks = uint64_t (*)(const void* src, size_t blocks, void* packed);
using UnpackBlocks = void (*)(uint64_t bits, size_t blocks, const void* packed, void* dst);

// A reduction works on blocks of at most kBlock elements in an accumulator (64-byte aligned) of the
// type that acc_of names, wide enough for sums of many elements.
enum class Acc : uint8_t { f32 = 0, f64, i32, i64, u64 };
inline constexpr int kNumAccs = 5;
inline constexpr size_t kBlock = 256;

enum class Take : uint8_t { first = 0, sum, max, min, prod };  // acc = src; acc = acc ⊕ src
inline constexpr int kNumTakes = 5;

using TakeBlock = void (*)(void* acc, const void* src, size_t n);
using DivideBlock = void (*)(void* acc, size_t n, uint64_t divisor);
using PutBlock = void (*)(void* dst, const void* acc, size_t n);

struct Table {
  // Indexed by log2 of the element size.
  PackRows pack_rows[4];
  AuditRows audit_rows[4];
  UnpackRows unpack_rows[4];
  CountNonzero count_nonzero[4];
  // The same as unpack_rows, past the caches: for buffers that no cache would hold until they are
  // read. The caller fences. Null where there is no such way.
  UnpackRows stream_rows[4];
  CopyBytes stream_copy;
  ZeroBytes stream_zero;
  // Patterns whose kept runs are on average at least this long, in bytes, are copied run by run
  // instead of compressed: without an audit, and with one (which has to read the gaps as well).
  uint32_t copy_run_bytes, audit_run_bytes;
  PackBlocks pack_blocks;
  UnpackBlocks unpack_blocks;
  // Indexed by DType, Acc and Take.
  TakeBlock take[kNumAllDTypes][kNumTakes];
  DivideBlock divide[kNumAccs];
  PutBlock put[kNumAccs][kNumAllDTypes];  // null where no reduction needs it
};

enum class Version : uint8_t { scalar = 0, avx2, avx512, avx512_vbmi2 };
inline constexpr int kNumVersions = 4;

extern const Table kScalarTable;
#if defined(__x86_64__)
extern const Table kAvx2Table;
extern const Table kAvx512Table;       // 1- and 2-byte elements by widening
extern const Table kAvx512Vbmi2Table;  // 1- and 2-byte elements by their own compress and expand
#endif

// The version's table; null when this CPU cannot run it.
[[nodiscard]] const Table* table_of(Version version);
// The table in force. Chosen at the first use when select_isa was not called.
[[nodiscard]] const Table& active_table();

// Buffers of this many bytes are unpacked past the caches: more than one core's share of any of
// today's last-level caches.
inline constexpr size_t kStreamBytes = size_t{32} << 20;
// Then runs are copied one by one from this mean length on: shorter ones seldom fill whole lines.
inline constexpr uint64_t kStreamRunBytes = 1024;
[[nodiscard]] size_t stream_bytes();
// For tests: a version that select_isa would pass over, another limit than kStreamBytes.
void use_version(Version version, size_t stream_bytes = kStreamBytes);

}  // namespace prunex::host
