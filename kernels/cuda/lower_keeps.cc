// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lower_keeps.h"

#include <algorithm>

namespace prunex::cuda {
namespace {

constexpr uint64_t kMostIndexed = uint64_t{1} << 31;
constexpr uint64_t kMostColumns = uint64_t{1} << 36;
constexpr uint64_t kMostMasked = uint64_t{1} << 32;  // columns that words have ranks of 32 bits for
constexpr uint64_t kMostElements = uint64_t{1} << 42;

class Lowering {
 public:
  Lowering(uint32_t tile, LoweredKeeps& out) : tile_(tile), out_(out) {}

  Result<> add(const KeepTensor& tensor) {
    const size_t index = out_.tensors.size();
    const uint64_t columns = tensor.columns();
    if (tensor.offset != out_.tiles.count) {
      return fail(Code::invalid_argument,
                  strf("parameter %zu begins at element %llu, the one before ends at %llu", index,
                       static_cast<unsigned long long>(tensor.offset),
                       static_cast<unsigned long long>(out_.tiles.count)));
    }
    const uint64_t outer = uint64_t{tensor.repeat} * tensor.groups;
    if (outer > kMostColumns || outer * tensor.inner > kMostColumns ||
        tensor.rows > kMostElements / std::max<uint64_t>(columns, 1) ||
        out_.tensor_of_row.size() + tensor.rows > kMostIndexed) {
      return too_large(index, tensor);
    }
    const bool words = tensor.group_keep != kNoKeep && columns > 0;
    if (words && columns >= kMostMasked) {
      return too_large(index, tensor);
    }
    const uint64_t need = words ? (columns + 31) / 32 + 1 : 0;
    if (out_.tensor_of_word.size() + need > kMostIndexed) {
      return too_large(index, tensor);
    }
    KeepTensor one = tensor;
    one.word = words ? static_cast<uint32_t>(out_.tensor_of_word.size()) : kNoWords;
    one.first_row = out_.tensor_of_row.size();
    out_.tensors.push_back(one);
    out_.tensor_of_word.insert(out_.tensor_of_word.end(), need, static_cast<uint32_t>(index));
    out_.tensor_of_row.insert(out_.tensor_of_row.end(), one.rows, static_cast<uint32_t>(index));
    columns > tile_ ? part_rows(one) : whole_rows(one);
    return {};
  }

 private:
  static tl::unexpected<Error> too_large(size_t index, const KeepTensor& tensor) {
    return fail(
        Code::invalid_argument,
        strf("parameter %zu of %u rows of %u x %u x %u columns: at most 2^36 columns (fewer "
             "than 2^32 under a keep vector), 2^42 elements, and 2^31 rows of all parameters",
             index, tensor.rows, tensor.repeat, tensor.groups, tensor.inner));
  }

  void whole_rows(const KeepTensor& tensor) {
    const uint64_t columns = tensor.columns();
    if (columns == 0) {
      return;
    }
    uint64_t most = tile_ / columns;
    if (tensor.row_keep != kNoKeep) {
      most = std::min<uint64_t>(most, kMaskedRows);
    }
    for (uint32_t row = 0; row < tensor.rows;) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(most, tensor.rows - row));
      emit({tensor_index(), row, n, static_cast<uint32_t>(n * columns), 0});
      row += n;
    }
  }

  void part_rows(const KeepTensor& tensor) {
    const uint64_t columns = tensor.columns();
    for (uint32_t row = 0; row < tensor.rows; ++row) {
      for (uint64_t column = 0; column < columns; column += tile_) {
        const uint64_t n = std::min<uint64_t>(tile_, columns - column);
        emit({tensor_index(), row, 0, static_cast<uint32_t>(n), column});
      }
    }
  }

  [[nodiscard]] uint32_t tensor_index() const {
    return static_cast<uint32_t>(out_.tensors.size() - 1);
  }

  void emit(const KeepPlace& place) {
    Tile tile;
    tile.elem = out_.tiles.count;
    tile.count = place.count;
    out_.tiles.count += place.count;
    out_.tiles.tiles.push_back(tile);
    out_.places.push_back(place);
  }

  const uint32_t tile_;
  LoweredKeeps& out_;
};

}  // namespace

Result<LoweredKeeps> lower_keeps(std::span<const KeepTensor> tensors, uint32_t tile_elements) {
  if (tile_elements == 0 || tile_elements % 32 != 0 || tile_elements > kMaxTile) {
    return fail(Code::invalid_argument,
                strf("tiles of %u elements: a multiple of 32 up to %u", tile_elements, kMaxTile));
  }
  LoweredKeeps out;
  Lowering lowering(tile_elements, out);
  for (const KeepTensor& tensor : tensors) {
    if (auto added = lowering.add(tensor); !added) {
      return tl::unexpected(added.error());
    }
  }
  return out;
}

}  // namespace prunex::cuda
