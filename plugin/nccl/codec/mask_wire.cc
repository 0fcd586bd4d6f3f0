// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/codec/mask_wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/pattern.h"
#include "plugin/nccl/codec/frame.h"

namespace prunex::nccl::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "bitmaps are little-endian words");

constexpr uint64_t kOneFullRow = 0, kFullRows = 1, kFirstPattern = 2;  // forms of a panel
// The least that one takes.
constexpr uint64_t kPatternBytes = 1 + sizeof(uint64_t), kPanelBytes = 3;

// Asked after each pattern and panel whether it is too long: never more than kMaskRoom by then.
class Output {
 public:
  explicit Output(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }
  void number(uint64_t v) {
    for (; v >= 0x80; v >>= 7) {
      bytes_.push_back(static_cast<std::byte>(v | 0x80));
    }
    bytes_.push_back(static_cast<std::byte>(v));
  }
  void words(const std::vector<uint64_t>& words) {
    if (too_long() || words.size() > (kMaxMaskDefinition - bytes_.size()) / sizeof(uint64_t)) {
      too_long_ = true;
      return;
    }
    const auto* from = reinterpret_cast<const std::byte*>(words.data());
    bytes_.insert(bytes_.end(), from, from + words.size() * sizeof(uint64_t));
  }
  [[nodiscard]] bool too_long() const { return too_long_ || bytes_.size() > kMaxMaskDefinition; }

 private:
  std::vector<std::byte>& bytes_;
  bool too_long_ = false;
};

void put_panel(Output& out, const Panel& panel, uint64_t gap) {
  const uint64_t stride = std::max(panel.row_stride, panel.columns);
  if (panel.pattern >= 0) {
    out.number(kFirstPattern + static_cast<uint64_t>(panel.pattern));
    out.number(gap);
  } else {
    const bool one = panel.rows == 1;
    out.number(one ? kOneFullRow : kFullRows);
    out.number(gap);
    out.number(panel.columns);
    if (one) {
      return;
    }
  }
  out.number(panel.rows);
  out.number(stride - panel.columns);
}

}  // namespace

std::optional<std::vector<std::byte>> encode_mask(const CompiledMask& mask) {
  std::vector<std::byte> out;
  return encode_mask(mask, &out) ? std::optional(std::move(out)) : std::nullopt;
}

bool encode_mask(const CompiledMask& mask, std::vector<std::byte>* bytes) {
  Output out(*bytes);
  if (mask.count > kMaxMaskElements) {
    return false;
  }
  out.number(mask.count);
  out.number(mask.patterns.size());
  out.number(mask.panels.size());
  for (size_t p = 0; p < mask.patterns.size() && !out.too_long(); ++p) {
    out.number(mask.patterns[p].columns);
    out.words(mask.patterns[p].bits);
  }
  uint64_t end = 0;
  for (size_t i = 0; i < mask.panels.size() && !out.too_long(); ++i) {
    const Panel& panel = mask.panels[i];
    put_panel(out, panel, panel.offset - end);
    end = panel.offset + (panel.rows - 1) * panel.row_stride + panel.columns;
  }
  return !out.too_long();
}

void MaskDefinitionDecoder::begin(std::span<const std::byte> in, uint64_t digest) {
  *this = MaskDefinitionDecoder();
  in_ = in;
  digest_ = digest;
  state_ = Decoding::more;
  if (in.size() > kMaxMaskDefinition) {
    state_ = refuse("more bytes than a mask may take");
  }
}

Decoding MaskDefinitionDecoder::step(size_t budget) {
  if (state_ == Decoding::more) {
    state_ = run(budget);
  }
  return state_;
}

Decoding MaskDefinitionDecoder::run(size_t budget) {
  if (!counted_) {
    if (const char* fault = read_counts()) {
      return refuse(fault);
    }
    counted_ = true;
  }
  for (size_t spent = 0; patterns_ + panels_ > 0;) {
    const size_t before = in_.size();
    const bool panel = patterns_ == 0;
    if (const char* fault = panel ? read_panel() : read_pattern()) {
      return refuse(fault);
    }
    --(panel ? panels_ : patterns_);
    spent += before - in_.size() + (panel ? kPanelCost : 0);
    if (spent >= budget && patterns_ + panels_ > 0) {
      return Decoding::more;
    }
  }
  if (!in_.empty()) {
    return refuse("bytes behind the last panel");
  }
  sums_.finish(mask_);
  found_digest_ = mask_.digest;
  if (found_digest_ != digest_) {
    return refuse("another digest than announced");
  }
  return Decoding::done;
}

Decoding MaskDefinitionDecoder::refuse(const char* fault) {
  mask_ = CompiledMask();
  sums_ = MaskSums();
  fault_ = fault;
  return Decoding::corrupt;
}

bool MaskDefinitionDecoder::get(uint64_t* value) {
  *value = 0;
  for (unsigned shift = 0; !in_.empty() && shift < 64; shift += 7) {
    const auto byte = static_cast<uint64_t>(in_.front());
    in_ = in_.subspan(1);
    const uint64_t bits = byte & 0x7f;
    if (bits << shift >> shift != bits) {
      return false;
    }
    *value |= bits << shift;
    if (byte < 0x80) {
      return true;
    }
  }
  return false;
}

const char* MaskDefinitionDecoder::read_counts() {
  if (!get(&mask_.count) || !get(&patterns_) || !get(&panels_)) {
    return "no counts";
  }
  if (mask_.count > kMaxMaskElements) {
    return "more elements than a tensor can have";
  }
  // Checked before anything is allocated: what is claimed has to be there.
  const size_t left = in_.size();
  if (patterns_ > left / kPatternBytes ||
      panels_ > (left - patterns_ * kPatternBytes) / kPanelBytes) {
    return "more patterns and panels than bytes for them";
  }
  mask_.patterns.reserve(patterns_);
  mask_.panels.reserve(panels_);
  return nullptr;
}

const char* MaskDefinitionDecoder::read_pattern() {
  uint64_t columns = 0;
  if (!get(&columns) || columns == 0 || columns > mask_.count) {
    return "a pattern's number of columns";
  }
  const uint64_t num_words = words_for(columns);
  if (num_words > in_.size() / sizeof(uint64_t)) {
    return "a bitmap that is cut off";
  }
  std::vector<uint64_t> words(num_words);
  std::memcpy(words.data(), in_.data(), num_words * sizeof(uint64_t));
  in_ = in_.subspan(num_words * sizeof(uint64_t));
  if (columns % 64 != 0 && words.back() >> (columns % 64) != 0) {
    return "a pattern with bits past its last column";
  }
  Pattern pattern = make_pattern(std::move(words), columns);
  if (pattern.kept == 0) {
    return "a pattern that keeps nothing";
  }
  sums_.add(pattern);
  mask_.patterns.push_back(std::move(pattern));
  return nullptr;
}

const char* MaskDefinitionDecoder::read_panel() {
  uint64_t form = 0, gap = 0;
  if (!get(&form) || !get(&gap)) {
    return "a panel that is cut off";
  }
  if (gap > mask_.count - end_) {
    return "a panel that begins past the end of the tensor";
  }
  Panel panel;
  panel.offset = end_ + gap;
  if (const char* fault = read_rows(form, panel)) {
    return fault;
  }
  const uint64_t room = mask_.count - panel.offset;
  if (panel.rows == 0 || panel.columns == 0 || panel.columns > room ||
      panel.rows - 1 > (room - panel.columns) / panel.row_stride) {
    return "a panel without rows or past the end of the tensor";
  }
  end_ = panel.offset + (panel.rows - 1) * panel.row_stride + panel.columns;
  sums_.add(panel);
  mask_.panels.push_back(panel);
  return nullptr;
}

// The fields behind form and gap. The stride is not 0 unless the columns are.
const char* MaskDefinitionDecoder::read_rows(uint64_t form, Panel& panel) {
  if (form >= kFirstPattern) {
    if (form - kFirstPattern >= mask_.patterns.size()) {
      return "a panel of a pattern that is not there";
    }
    panel.pattern = static_cast<int32_t>(form - kFirstPattern);
    panel.columns = mask_.patterns[form - kFirstPattern].columns;
  } else if (!get(&panel.columns)) {
    return "a panel that is cut off";
  }
  uint64_t between = 0;
  if (form == kOneFullRow) {
    panel.rows = 1;
  } else if (!get(&panel.rows) || !get(&between)) {
    return "a panel that is cut off";
  }
  if (panel.columns > mask_.count || between > mask_.count) {
    return "rows longer than the tensor";
  }
  panel.row_stride = panel.columns + between;
  return nullptr;
}

}  // namespace prunex::nccl::codec
