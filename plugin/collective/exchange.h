// SPDX-License-Identifier: Apache-2.0
// One exchange of one rank: pack -> reduce (or copy) inside the node -> between leaders -> unpack,
// in chunks, // all stages at once. Runs on the calling thread and gives up at the deadline.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/layout.h"
#include "kernels/pack.h"
#include "plugin/collective/agreement.h"
#include "plugin/collective/context.h"
#include "plugin/collective/network_stage.h"
#include "plugin/collective/plan.h"

namespace prunex::collective {

struct ExchangeInput {
  const Plan* plan = nullptr;
  const Layout* layout = nullptr;  // what is packed; plan->elements == layout->kept
  const void* send = nullptr;      // read only by contributors
  void* recv = nullptr;
  CallHeader header;
  uint64_t turn = 0;     // counts this rank's exchanges; the ranks of a node are always at the same
  bool audited = false;  // results are written only once everybody's dropped elements were zero
  bool counted = false;  // dropped non-zeros are counted, at least
  double timeout_s = 0;
  uint64_t base = 0;  // chunks of all earlier exchanges
  [[nodiscard]] uint64_t end() const { return base + plan->chunks.size(); }
};

enum class Outcome : uint8_t {
  done,
  differ,    // headers differ: nothing was written; all ranks of the scope saw it
  violated,  // audited and not all zero: nothing was written
};

class Exchange {
 public:
  Exchange(Context& context, const ExchangeInput& input);
  // The deadline counts from now. An error has the culprit in `rank` and is this rank's finding,
  // not yet the common verdict.
  [[nodiscard]] Result<Outcome> run();

  // Whether a rank of this node means more than the node: then a difference is everybody's.
  [[nodiscard]] bool beyond_node() const { return beyond_node_; }

  AuditCount dropped;  // non-zero dropped elements seen by this rank

 private:
  [[nodiscard]] Go local_headers();
  [[nodiscard]] Go verdict() const;
  enum class Ready : uint8_t { no, yes, discard };
  [[nodiscard]] Ready result_ready(size_t chunk) const;
  bool try_unpack();
  bool try_reduce();
  void reduce_shard(size_t chunk);
  bool try_pack();
  bool try_audit();
  bool try_local_commit();
  void publish_audit();
  [[nodiscard]] bool complete() const;
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] Result<bool> step_network();
  void time_network();
  [[nodiscard]] bool abandoned() const;
  [[nodiscard]] Result<> wait(uint32_t seen);
  [[nodiscard]] Result<> check_health();
  [[nodiscard]] Error late(bool direct_only) const;

  [[nodiscard]] uint64_t global(size_t chunk) const { return in_.base + chunk; }
  [[nodiscard]] size_t slot(size_t chunk) const { return global(chunk) % c_.memory.shape().slots; }
  [[nodiscard]] uint64_t least(Counter RankBlock::*counter) const;  // of all ranks of the node
  [[nodiscard]] uint64_t min_reduced() const { return least(&RankBlock::reduced); }
  [[nodiscard]] uint64_t min_unpacked() const { return least(&RankBlock::unpacked); }
  [[nodiscard]] uint64_t min_packed() const;
  [[nodiscard]] bool output_free(size_t chunk) const;
  [[nodiscard]] Slice slice_of(size_t chunk) const;

  Context& c_;
  const ExchangeInput& in_;
  const Plan& plan_;
  RankBlock& self_;
  bool contributes_ = false, networked_ = false, beyond_node_ = false;
  size_t packed_ = 0, reduced_ = 0, unpacked_ = 0, audited_ = 0;  // chunks of this exchange
  bool audit_published_ = false, local_committed_ = false;
  Go local_go_ = Go::undecided;
  Deadline direct_, indirect_;
  std::optional<Agreement> agreement_;  // of the leader of rail 0
  std::vector<NetworkStage> stages_;    // rails that this rank leads
  int64_t network_begin_ = 0, network_end_ = 0;
};

}  // namespace prunex::collective
