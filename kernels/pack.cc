// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack.h"

#include <cstring>

#include "kernels/host/table.h"
#include "kernels/host/walk.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace prunex {
namespace {

using host::Rows;
using host::Table;

struct Packer : host::Tally {
  const Table& table;
  unsigned shift;
  const std::byte* buffer;
  std::byte* packed;
  const std::byte* packed_end;
  uint64_t value_bits;  // 0: no audit

  void gap(uint64_t begin, uint64_t end) {
    if (value_bits != 0) {
      add(table.count_nonzero[shift](buffer + (begin << shift), end - begin, value_bits));
    }
  }
  void run(uint64_t begin, uint64_t end) {
    const size_t bytes = (end - begin) << shift;
    std::memcpy(packed, buffer + (begin << shift), bytes);
    packed += bytes;
  }
  void rows(const Rows& r) {
    const uint64_t least_run = value_bits != 0 ? table.audit_run_bytes : table.copy_run_bytes;
    add(table.pack_rows[shift](block_of(r, shift, least_run), buffer + (r.first << shift), packed,
                               packed_end, value_bits));
    packed += (kept_per_row(r) * r.rows) << shift;
  }
};

struct Auditor : host::Tally {
  const Table& table;
  unsigned shift;
  const std::byte* buffer;
  uint64_t value_bits;

  void gap(uint64_t begin, uint64_t end) {
    add(table.count_nonzero[shift](buffer + (begin << shift), end - begin, value_bits));
  }
  void run(uint64_t, uint64_t) {}
  void rows(const Rows& r) {
    add(table.audit_rows[shift](block_of(r, shift, table.audit_run_bytes),
                                buffer + (r.first << shift), value_bits));
  }
};

struct Unpacker {
  const Table& table;
  unsigned shift;
  std::byte* buffer;
  const std::byte* packed;
  const std::byte* packed_end;
  bool stream;

  void gap(uint64_t begin, uint64_t end) {
    std::byte* dst = buffer + (begin << shift);
    const size_t bytes = (end - begin) << shift;
    stream ? table.stream_zero(dst, bytes) : static_cast<void>(std::memset(dst, 0, bytes));
  }
  void run(uint64_t begin, uint64_t end) {
    std::byte* dst = buffer + (begin << shift);
    const size_t bytes = (end - begin) << shift;
    stream ? table.stream_copy(dst, packed, bytes)
           : static_cast<void>(std::memcpy(dst, packed, bytes));
    packed += bytes;
  }
  void rows(const Rows& r) {
    const host::UnpackRows unpack_rows =
        stream ? table.stream_rows[shift] : table.unpack_rows[shift];
    const uint64_t least_run = stream ? host::kStreamRunBytes : table.copy_run_bytes;
    unpack_rows(block_of(r, shift, least_run), packed, packed_end, buffer + (r.first << shift));
    packed += (kept_per_row(r) * r.rows) << shift;
  }
};

// Stores past the caches are not ordered with the flag that will tell another thread about them.
void fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class Visitor>
void walk(const Layout& layout, const Slice& slice, Visitor& visitor) {
  host::Walk<Visitor>(layout, visitor).elements(slice.elem_begin, slice.elem_end);
}

}  // namespace

void pack(const Layout& layout, DType type, const void* buffer, const Slice& slice, void* packed,
          AuditCount* dropped) {
  const unsigned shift = host::log2_size(type);
  auto* to = static_cast<std::byte*>(packed);
  Packer packer{{},
                host::active_table(),
                shift,
                static_cast<const std::byte*>(buffer),
                to,
                to + ((slice.kept_end - slice.kept_begin) << shift),
                dropped != nullptr ? host::value_bits_of(type) : 0};
  walk(layout, slice, packer);
  host::add_to(dropped, packer.counted());
}

AuditCount audit(const Layout& layout, DType type, const void* buffer, const Slice& slice) {
  Auditor auditor{{},
                  host::active_table(),
                  host::log2_size(type),
                  static_cast<const std::byte*>(buffer),
                  host::value_bits_of(type)};
  walk(layout, slice, auditor);
  return auditor.counted();
}

void unpack(const Layout& layout, DType type, const void* packed, const Slice& slice,
            void* buffer) {
  const unsigned shift = host::log2_size(type);
  const auto* from = static_cast<const std::byte*>(packed);
  const Table& table = host::active_table();
  Unpacker unpacker{
      table,
      shift,
      static_cast<std::byte*>(buffer),
      from,
      from + ((slice.kept_end - slice.kept_begin) << shift),
      table.stream_copy != nullptr && (layout.count << shift) >= host::stream_bytes()};
  walk(layout, slice, unpacker);
  if (unpacker.stream) {
    fence();
  }
}

}  // namespace prunex
