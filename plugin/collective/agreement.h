// SPDX-License-Identifier: Apache-2.0
// Agreement between node leaders about one exchange (design rule 4): call headers before any size
// is trusted, and the commit that says whether everybody's dropped elements were zero. Small calls
// carry the node's sum behind the header and are complete with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/collective/context.h"
#include "plugin/collective/plan.h"

namespace prunex::collective {

struct ExchangeInput;

// Of the leader of rail 0.
class Agreement {
 public:
  Agreement(Context& context, const ExchangeInput& input);

  // true: something moved. local_headers: what the ranks of this node think of each other's
  // headers.
  [[nodiscard]] Result<bool> progress(Go local_headers);
  [[nodiscard]] bool complete() const;
  [[nodiscard]] Go verdict() const { return verdict_; }
  [[nodiscard]] bool header_sent() const { return header_sent_; }
  // The peer whose message is due, for naming at a deadline; -1: none.
  [[nodiscard]] int awaited_rank() const;

 private:
  [[nodiscard]] Result<bool> send_header(Go local_headers);
  [[nodiscard]] Result<bool> read_headers(Go local_headers);
  [[nodiscard]] Result<bool> progress_commit();
  [[nodiscard]] Audit node_audit() const;
  [[nodiscard]] bool reduced_by_all() const;
  void combine_inlined();
  void reduce_inlined();
  [[nodiscard]] size_t inlined_bytes(size_t node) const;
  [[nodiscard]] std::span<const std::byte> inlined_part() const;
  [[nodiscard]] std::byte* output_of(size_t node) const;

  Context& c_;
  const ExchangeInput& in_;
  const Plan& plan_;
  LeaderLinks& links_;
  size_t slot_;  // of the first chunk
  Go verdict_ = Go::undecided;
  bool header_sent_ = false, commit_sent_ = false, committed_ = false;
  std::vector<Audit> audits_;  // by node, as told
  std::vector<uint8_t> header_read_;
};

}  // namespace prunex::collective
