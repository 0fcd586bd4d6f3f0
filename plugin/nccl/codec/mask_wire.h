// SPDX-License-Identifier: Apache-2.0
// A compiled mask in bytes, for its one trip over a connection. Nothing that arrives is trusted:
// what is decoded has every property that kernels/mask.h promises, or is refused.
//
// Numbers are LEB128 (7 bits a byte, lowest first), bitmaps little-endian 64-bit words:
//   count, number of patterns, number of panels
//   each pattern: columns, its bitmap (bits past the last column are 0)
//   each panel: form, elements between the end of the one before and its own begin, then
//     form 0, one full row: columns
//     form 1, full rows: columns, rows, row stride - columns
//     form p + 2, rows of pattern p: rows, row stride - columns
// Kept counts, ranks, runs and the digest are computed again. The size of an element is not part of
// the mask: it stands in the frame.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/mask.h"
#include "kernels/mask_rows.h"
#include "plugin/nccl/codec/frame.h"
#include "plugin/nccl/codec/step.h"

namespace prunex::nccl::codec {

inline constexpr uint64_t kMaxMaskElements = uint64_t{1} << 60;

// Nothing when the mask takes more than kMaxMaskDefinition bytes (found out without writing more
// than that): such tensors travel as zero blocks.
[[nodiscard]] std::optional<std::vector<std::byte>> encode_mask(const CompiledMask& mask);
// The same into *out, which allocates nothing when it has kMaskRoom reserved. false: too long.
inline constexpr size_t kMaskRoom = kMaxMaskDefinition + 64;
[[nodiscard]] bool encode_mask(const CompiledMask& mask, std::vector<std::byte>* out);

// Incremental like the other codecs, but it allocates: at most kDecodedPerByte bytes for each byte
// of `in`. A step's budget counts bytes read and, for each panel, kPanelCost (its digest takes
// about as long as copying so much).
class MaskDefinitionDecoder {
 public:
  static constexpr size_t kDecodedPerByte = 32;
  static constexpr size_t kPanelCost = 1024;

  // `digest`: what the frame says; another one of the decoded mask is corrupt.
  void begin(std::span<const std::byte> in, uint64_t digest);
  [[nodiscard]] Decoding step(size_t budget);
  [[nodiscard]] const char* fault() const { return fault_; }  // after corrupt: what is wrong
  // Of what was decoded, also when it is the fault; 0 while nothing was.
  [[nodiscard]] uint64_t found_digest() const { return found_digest_; }
  [[nodiscard]] CompiledMask take() { return std::move(mask_); }  // after done

 private:
  Decoding run(size_t budget);
  Decoding refuse(const char* fault);
  bool get(uint64_t* value);
  const char* read_counts();
  const char* read_pattern();
  const char* read_panel();
  const char* read_rows(uint64_t form, Panel& panel);

  std::span<const std::byte> in_;  // what is left
  uint64_t digest_ = 0, found_digest_ = 0;
  uint64_t patterns_ = 0, panels_ = 0;  // still to come
  uint64_t end_ = 0;                    // of the last panel, in elements
  CompiledMask mask_;
  MaskSums sums_;
  const char* fault_ = nullptr;
  bool counted_ = false;
  Decoding state_ = Decoding::corrupt;
};

}  // namespace prunex::nccl::codec
