// SPDX-License-Identifier: Apache-2.0
// Masks and layouts of one density.
#include "tools/bench_measure.h"

namespace prunex::tools {
namespace {

Result<prunex_mask_t> register_piece(const Piece& piece, DType type, const KeepFlags& flags,
                                     prunex_contract_t contract) {
  prunex_tensor_t tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = static_cast<prunex_dtype_t>(type);
  tensor.ndim = static_cast<int>(piece.shape.size());
  tensor.sizes = piece.shape.data();
  prunex_mask_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.contract = contract;
  desc.name = piece.name.c_str();
  desc.declared_kept = -1;
  if (piece.block > 0) {
    const std::vector<uint8_t>& cells = flags[static_cast<size_t>(piece.filters)];
    desc.kind = PRUNEX_MASK_BLOCKS;
    desc.block[0] = static_cast<int64_t>(piece.block);
    desc.cells = cells.data();
    desc.cells_len = cells.size();
  } else {
    desc.kind = PRUNEX_MASK_DIMS;
    const GroupSet sets[] = {piece.filters, piece.channels};
    for (size_t dim = 0; dim < 2; ++dim) {
      if (sets[dim] >= 0) {
        const std::vector<uint8_t>& keep = flags[static_cast<size_t>(sets[dim])];
        desc.keep[dim] = keep.data();
        desc.keep_len[dim] = keep.size();
      }
    }
  }
  prunex_mask_t mask = 0;
  if (auto made = checked(prunex_register_mask(nullptr, &tensor, &desc, &mask), piece.name.c_str());
      !made) {
    return tl::unexpected(made.error());
  }
  return mask;
}

}  // namespace

Mode::~Mode() {
  for (const prunex_layout_t layout : layouts) {
    if (layout != 0) {
      prunex_layout_destroy(layout);
    }
  }
  for (const prunex_mask_t mask : masks_) {
    prunex_unregister_mask(mask);
  }
}

Result<Mode> Mode::dense(const Workload& workload) {
  Mode mode;
  mode.layouts.assign(workload.buffers.size(), 0);
  return mode;
}

Result<Mode> Mode::compact(const Workload& workload, double keep, uint64_t seed,
                           prunex_contract_t contract) {
  Mode mode;
  mode.keep = keep;
  mode.flags = choose_keep(workload, keep, seed);
  uint64_t kept = 0;
  for (const BenchBuffer& buffer : workload.buffers) {
    std::vector<prunex_segment_t> segments;
    for (const Piece& piece : buffer.pieces) {
      prunex_segment_t segment{piece.offset, piece.count, 0};
      if (piece.prunable()) {
        const auto mask = register_piece(piece, workload.type, mode.flags, contract);
        if (!mask) {
          return tl::unexpected(mask.error());
        }
        mode.masks_.push_back(*mask);
        segment.mask = *mask;
      }
      segments.push_back(segment);
    }
    prunex_layout_t layout = 0;
    if (auto made =
            checked(prunex_layout_create(segments.data(), segments.size(), buffer.count, &layout),
                    "layout");
        !made) {
      return tl::unexpected(made.error());
    }
    mode.layouts.push_back(layout);
    prunex_layout_info_t info{};
    info.struct_size = sizeof info;
    if (auto told = checked(prunex_layout_info(layout, &info), "layout"); !told) {
      return tl::unexpected(told.error());
    }
    kept += info.kept;
  }
  // The library's masks against this program's own reading of the rule.
  if (const uint64_t expected = kept_elements(workload, mode.flags); kept != expected) {
    return fail(Code::internal, strf("the masks keep %llu elements, the pruning rule keeps %llu",
                                     static_cast<unsigned long long>(kept),
                                     static_cast<unsigned long long>(expected)));
  }
  const uint64_t all = workload.count();
  mode.density = all == 0 ? 1 : static_cast<double>(kept) / static_cast<double>(all);
  return mode;
}

}  // namespace prunex::tools
