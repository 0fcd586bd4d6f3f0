// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/host/table.h"
#include "kernels/host/walk.h"
#include "kernels/pack.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace prunex {
namespace {

using host::Rows;
using host::Table;

// Ranks must get the same bits whatever their host process has set: a -ffast-math program flushes
// subnormals to zero, a debugging one may unmask exceptions.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // round to nearest, subnormals kept, all masked
  unsigned saved_;
#else
  FloatEnvironment() {}
#endif
};

host::Acc acc_of(DType in) {
  switch (in) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return host::Acc::f32;
    case DType::f64:
      return host::Acc::f64;
    case DType::i8:
    case DType::u8:
      return host::Acc::i32;
    case DType::i32:
    case DType::i64:
    case DType::u32:
      return host::Acc::i64;
    case DType::u64:
      return host::Acc::u64;
  }
  return host::Acc::f32;
}

host::Take take_of(Op op) {
  switch (op) {
    case Op::sum:
    case Op::avg:
      return host::Take::sum;
    case Op::max:
      return host::Take::max;
    case Op::min:
      return host::Take::min;
    case Op::prod:
      return host::Take::prod;
  }
  return host::Take::sum;
}

// One call's reduction, block by block: each source is read once, in order, into an accumulator
// that stays in the first-level cache, and the result is rounded once.
class Reduction {
 public:
  Reduction(const Table& table, void* dst, DType out, std::span<const void* const> src, DType in,
            Op op, uint64_t divisor)
      : dst_(static_cast<std::byte*>(dst)),
        src_(src),
        in_size_(size_of(in)),
        out_size_(size_of(out)),
        divisor_(divisor) {
    const auto acc = static_cast<size_t>(acc_of(in));
    const auto& takes = table.take[static_cast<size_t>(in)];
    first_ = takes[static_cast<size_t>(host::Take::first)];
    take_ = takes[static_cast<size_t>(take_of(op))];
    divide_ = table.divide[acc];
    put_ = table.put[acc][static_cast<size_t>(out)];
    assert(put_ != nullptr && "reduce: no such pair of types");
  }

  // Elements [first, first + count) of dst and of all sources but `own`, which starts at own_data.
  void run(uint64_t first, uint64_t count, size_t own = SIZE_MAX,
           const std::byte* own_data = nullptr) const {
    alignas(64) std::byte acc[host::kBlock * 8];
    for (uint64_t at = 0; at < count; at += host::kBlock) {
      const size_t n = std::min<uint64_t>(host::kBlock, count - at);
      for (size_t s = 0; s < src_.size(); ++s) {
        const std::byte* from =
            s == own ? own_data + at * in_size_
                     : static_cast<const std::byte*>(src_[s]) + (first + at) * in_size_;
        (s == 0 ? first_ : take_)(acc, from, n);
      }
      if (divisor_ > 1) {
        divide_(acc, n, divisor_);
      }
      put_(dst_ + (first + at) * out_size_, acc, n);
    }
  }

 private:
  std::byte* dst_;
  std::span<const void* const> src_;
  size_t in_size_, out_size_;
  uint64_t divisor_;
  host::TakeBlock first_, take_;
  host::DivideBlock divide_;
  host::PutBlock put_;
};

// Packs the own source tile by tile and reduces each tile while it is in the first-level cache.
class TileReducer : public host::Tally {
 public:
  TileReducer(const Table& table, unsigned shift, const std::byte* buffer, uint64_t value_bits,
              const Reduction& reduction, size_t own)
      : table_(table),
        shift_(shift),
        buffer_(buffer),
        value_bits_(value_bits),
        reduction_(reduction),
        own_(own),
        capacity_(kTileBytes >> shift) {}

  void gap(uint64_t begin, uint64_t end) {
    if (value_bits_ != 0) {
      Tally::add(table_.count_nonzero[shift_](at(begin), end - begin, value_bits_));
    }
  }

  void run(uint64_t begin, uint64_t end) {
    if (end - begin >= kDirect) {  // needs no packing
      flush();
      reduce_from(at(begin), end - begin);
      return;
    }
    if (end - begin > capacity_ - used_) {
      flush();
    }
    std::memcpy(tile_ + (used_ << shift_), at(begin), (end - begin) << shift_);
    used_ += end - begin;
  }

  void rows(Rows r) {
    const uint64_t kept = kept_per_row(r);
    if (r.pattern == nullptr && kept >= kDirect) {
      for (; r.rows > 0; next_row(r, 1)) {
        run(r.first, r.first + kept);
      }
      return;
    }
    while (r.rows > 0) {
      const uint64_t fit = kept == 0 ? r.rows : std::min(r.rows, (capacity_ - used_) / kept);
      if (fit > 0) {
        take(r, fit, kept);
        next_row(r, fit);
      } else if (kept > capacity_) {
        long_row(r);
        next_row(r, 1);
      } else {
        flush();
      }
    }
  }

  void flush() {
    if (used_ > 0) {
      reduce_from(tile_, used_);
      used_ = 0;
    }
  }

 private:
  static constexpr size_t kTileBytes = 4096;
  static constexpr size_t kSlackBytes = 64 * 8;  // whole vectors may be stored at the tile's end
  static constexpr uint64_t kDirect = 256;       // elements of a run that is reduced where it lies

  [[nodiscard]] const std::byte* at(uint64_t element) const {
    return buffer_ + (element << shift_);
  }

  void take(const Rows& r, uint64_t num_rows, uint64_t kept) {
    Rows some = r;
    some.rows = num_rows;
    const uint64_t least_run = value_bits_ != 0 ? table_.audit_run_bytes : table_.copy_run_bytes;
    Tally::add(table_.pack_rows[shift_](block_of(some, shift_, least_run), at(r.first),
                                        tile_ + (used_ << shift_), tile_ + sizeof tile_,
                                        value_bits_));
    used_ += num_rows * kept;
  }

  // The gap after `num_rows` rows is dropped, too, unless they were the last.
  void next_row(Rows& r, uint64_t num_rows) {
    const uint64_t end = r.first + (num_rows - 1) * r.stride + (r.end - r.begin);
    r.first += num_rows * r.stride;
    r.rows -= num_rows;
    if (r.rows > 0 && r.first > end) {
      gap(end, r.first);
    }
  }

  // One row whose kept elements do not fit into a tile: cut at word boundaries.
  void long_row(const Rows& r) {
    const Pattern& p = *r.pattern;
    Rows part = r;
    part.rows = 1;
    while (part.begin < r.end) {
      if (capacity_ - used_ < capacity_ / 2) {
        flush();
      }
      // The last word that starts with no more set bits before it than there is room for.
      const uint64_t limit = host::rank_at(p, part.begin) + (capacity_ - used_);
      const auto word = std::upper_bound(p.rank.begin(), p.rank.end(), limit) - p.rank.begin() - 1;
      const uint64_t cut =
          host::rank_at(p, r.end) <= limit ? r.end : static_cast<uint64_t>(word) * 64;
      part.end = std::min(cut, r.end);
      take(part, 1, kept_per_row(part));
      part.first += part.end - part.begin;
      part.begin = part.end;
    }
  }

  void reduce_from(const std::byte* own, uint64_t count) {
    reduction_.run(done_, count, own_, own);
    done_ += count;
  }

  const Table& table_;
  const unsigned shift_;
  const std::byte* buffer_;
  const uint64_t value_bits_;
  const Reduction& reduction_;
  const size_t own_;
  const uint64_t capacity_;  // elements
  uint64_t used_ = 0;        // elements in the tile
  uint64_t done_ = 0;        // elements reduced
  alignas(64) std::byte tile_[kTileBytes + kSlackBytes];
};

}  // namespace

void reduce(void* dst, DType out, std::span<const void* const> src, DType in, size_t count, Op op,
            uint64_t divisor) {
  assert(!src.empty());
  const FloatEnvironment environment;
  Reduction(host::active_table(), dst, out, src, in, op, divisor).run(0, count);
}

void reduce_pack(void* dst, DType out, std::span<const void* const> src, size_t own,
                 const Layout& layout, DType in, const void* buffer, const Slice& slice, Op op,
                 uint64_t divisor, AuditCount* dropped) {
  assert(own < src.size());
  const FloatEnvironment environment;
  const Table& table = host::active_table();
  const Reduction reduction(table, dst, out, src, in, op, divisor);
  TileReducer reducer(table, host::log2_size(in), static_cast<const std::byte*>(buffer),
                      dropped != nullptr ? host::value_bits_of(in) : 0, reduction, own);
  host::Walk<TileReducer>(layout, reducer).elements(slice.elem_begin, slice.elem_end);
  reducer.flush();
  host::add_to(dropped, reducer.counted());
}

}  // namespace prunex
