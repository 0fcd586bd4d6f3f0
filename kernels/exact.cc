// SPDX-License-Identifier: Apache-2.0
#include "kernels/exact.h"

#include <algorithm>
#include <cstring>

#include "kernels/host/table.h"
#include "kernels/host/walk.h"

namespace prunex {
namespace {

using host::Rows;
using host::Table;

constexpr uint64_t kAllBits = ~uint64_t{0};

struct Packer {
  const Table& table;
  unsigned shift;
  uint64_t first;  // the element at `src`
  const std::byte* src;
  std::byte* packed;
  const std::byte* packed_end;
  uint64_t nonzero = 0;

  [[nodiscard]] const std::byte* at(uint64_t element) const {
    return src + ((element - first) << shift);
  }
  void gap(uint64_t begin, uint64_t end) {
    nonzero += table.count_nonzero[shift](at(begin), end - begin, kAllBits);
  }
  void run(uint64_t begin, uint64_t end) {
    const size_t bytes = (end - begin) << shift;
    std::memcpy(packed, at(begin), bytes);
    packed += bytes;
  }
  void rows(const Rows& r) {
    nonzero += table.pack_rows[shift](block_of(r, shift, table.audit_run_bytes), at(r.first),
                                      packed, packed_end, kAllBits);
    packed += (kept_per_row(r) * r.rows) << shift;
  }
};

struct Unpacker {
  const Table& table;
  unsigned shift;
  uint64_t first;  // the element at `dst`
  std::byte* dst;
  const std::byte* packed;
  const std::byte* packed_end;

  [[nodiscard]] std::byte* at(uint64_t element) const { return dst + ((element - first) << shift); }
  void gap(uint64_t begin, uint64_t end) { std::memset(at(begin), 0, (end - begin) << shift); }
  void run(uint64_t begin, uint64_t end) {
    const size_t bytes = (end - begin) << shift;
    std::memcpy(at(begin), packed, bytes);
    packed += bytes;
  }
  void rows(const Rows& r) {
    table.unpack_rows[shift](block_of(r, shift, table.copy_run_bytes), packed, packed_end,
                             at(r.first));
    packed += (kept_per_row(r) * r.rows) << shift;
  }
};

}  // namespace

uint64_t kept_before(const CompiledMask& mask, uint64_t element) {
  const auto above =
      std::upper_bound(mask.panels.begin(), mask.panels.end(), element,
                       [](uint64_t v, const Panel& panel) { return v < panel.offset; });
  if (above == mask.panels.begin()) {
    return 0;
  }
  const Panel& panel = *(above - 1);
  const Pattern* pattern =
      panel.pattern < 0 ? nullptr : &mask.patterns[static_cast<size_t>(panel.pattern)];
  const uint64_t row_kept = pattern != nullptr ? pattern->kept : panel.columns;
  const uint64_t into = element - panel.offset;
  const uint64_t row = into / std::max(panel.row_stride, panel.columns);
  if (row >= panel.rows) {
    return panel.kept_before + panel.rows * row_kept;
  }
  const uint64_t column = std::min(into % std::max(panel.row_stride, panel.columns), panel.columns);
  return panel.kept_before + row * row_kept +
         (pattern != nullptr ? host::rank_at(*pattern, column) : column);
}

ExactPack pack_exact(const CompiledMask& mask, unsigned log2_size, uint64_t begin, uint64_t end,
                     const void* src, void* packed, const void* packed_end) {
  auto* const to = static_cast<std::byte*>(packed);
  Packer packer{host::active_table(),
                log2_size,
                begin,
                static_cast<const std::byte*>(src),
                to,
                static_cast<const std::byte*>(packed_end)};
  host::MaskWalk<Packer>(packer).elements(mask, 0, begin, end);
  return {static_cast<size_t>(packer.packed - to), packer.nonzero};
}

size_t unpack_exact(const CompiledMask& mask, unsigned log2_size, uint64_t begin, uint64_t end,
                    const void* packed, const void* packed_end, void* dst) {
  const auto* const from = static_cast<const std::byte*>(packed);
  Unpacker unpacker{
      host::active_table(),         log2_size, begin,
      static_cast<std::byte*>(dst), from,      static_cast<const std::byte*>(packed_end)};
  host::MaskWalk<Unpacker>(unpacker).elements(mask, 0, begin, end);
  return static_cast<size_t>(unpacker.packed - from);
}

uint64_t pack_blocks(const void* src, size_t blocks, void* packed) {
  return host::active_table().pack_blocks(src, blocks, packed);
}

void unpack_blocks(uint64_t bits, size_t blocks, const void* packed, void* dst) {
  host::active_table().unpack_blocks(bits, blocks, packed, dst);
}

bool all_zero(const void* src, size_t bytes) {
  return host::active_table().count_nonzero[0](src, bytes, kAllBits) == 0;
}

}  // namespace prunex
