// SPDX-License-Identifier: Apache-2.0
// Host kernels: pack, audit, unpack, reduce. AVX-512, AVX2 and scalar versions give the same bits and
// are chosen once per process (PRUNEX_ISA). No allocation, no I/O, any alignment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/layout.h"
#include "plugin/base/config.h"
#include "plugin/base/dtype.h"

namespace prunex {

// Chooses the instruction set for the process; Isa::automatic takes the best there is. An Isa that the
// CPU lacks is an error. Not thread-safe against running kernels: call before the first use.
[[nodiscard]] Result<> select_isa(Isa isa);
[[nodiscard]] Isa active_isa();
[[nodiscard]] bool isa_available(Isa isa);

// Dropped elements that are not ±0 (NaN counts), by what their segment's contract makes of them.
struct AuditCount {
  uint64_t lossless = 0;   // in segments that promise zeros
  uint64_t projected = 0;  // in segments with Segment::projected
};

// buffer: element 0 of the layout. Writes slice.kept_end - slice.kept_begin elements to `packed`.
// `dropped`, when given, is increased by what the same pass finds in the slice.
void pack(const Layout& layout, DType type, const void* buffer, const Slice& slice, void* packed,
          AuditCount* dropped = nullptr);

// The audit alone.
[[nodiscard]] AuditCount audit(const Layout& layout, DType type, const void* buffer,
                               const Slice& slice);

// Writes kept elements from `packed` and +0 into every dropped element of the slice.
void unpack(const Layout& layout, DType type, const void* packed, const Slice& slice, void* buffer);

// A violation in detail, for the one warning: per segment, in elements of the buffer.
struct AuditReport {
  uint64_t nonzero = 0, nonfinite = 0;
  uint64_t first_element = 0;  // of the buffer; valid when nonzero > 0
  double dropped_energy = 0, kept_energy = 0;  // sums of squares, of finite elements
};
[[nodiscard]] AuditReport audit_segment(const Layout& layout, size_t segment, DType type,
                                        const void* buffer);

// dst[i] = finish(src[0][i] ⊕ src[1][i] ⊕ …), added strictly in that order. 16-bit floats add in fp32 and
// round once; `in` and `out` are equal or the (wide, narrow) pairs of partial_type in either direction.
// divisor 1: none; otherwise the result is divided once before rounding (integers truncate toward
// zero). NaN results are canonical; max/min propagate NaN and order -0 < +0. dst may be one of the
// sources when in == out.
void reduce(void* dst, DType out, std::span<const void* const> src, DType in, size_t count, Op op,
            uint64_t divisor = 1);

// reduce() where source `own` is not a packed buffer but the slice of a strided one: packed a tile at a
// time in cache, so that dropped elements are read once (by the audit) and kept ones twice.
void reduce_pack(void* dst, DType out, std::span<const void* const> src, size_t own,
                 const Layout& layout, DType in, const void* buffer, const Slice& slice, Op op,
                 uint64_t divisor = 1, AuditCount* dropped = nullptr);

}  // namespace prunex
