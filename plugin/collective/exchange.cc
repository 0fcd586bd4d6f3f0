// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/exchange.h"

#include <algorithm>
#include <array>

#include "kernels/pack.h"
#include "plugin/collective/plan_move.h"

namespace prunex::collective {
namespace {

// A rank that waits for one of its own node gives up at T, a leader that waits for another leader
// (who may himself be waiting) at T + 1 s, whoever waits for its leader at T + 2 s: so the one who
// knows speaks first.
constexpr double kLeaderExtraS = 1.0, kFollowerExtraS = 2.0;
}  // namespace

Exchange::Exchange(Context& context, const ExchangeInput& input)
    : c_(context), in_(input), plan_(*input.plan), self_(context.memory.rank(context.local)) {
  contributes_ = std::find(plan_.contributors.begin(), plan_.contributors.end(),
                           static_cast<int>(c_.local)) != plan_.contributors.end();
  networked_ = plan_.algorithm != Algorithm::local;
  if (networked_) {
    if (c_.links[0] != nullptr) {
      agreement_.emplace(c_, in_);
    }
    for (size_t rail = 0; plan_.algorithm != Algorithm::inlined && rail < c_.links.size(); ++rail) {
      if (c_.links[rail] != nullptr) {
        stages_.emplace_back(c_, in_, rail);
      }
    }
  }
}

uint64_t Exchange::least(Counter RankBlock::*counter) const {
  uint64_t least = UINT64_MAX;
  for (size_t i = 0; i < c_.local_size(); ++i) {
    least = std::min(least, (c_.memory.rank(i).*counter).load(std::memory_order_acquire));
  }
  return least;
}

uint64_t Exchange::min_packed() const {
  uint64_t least = UINT64_MAX;
  for (const int i : plan_.contributors) {
    least = std::min(least,
                     c_.memory.rank(static_cast<size_t>(i)).packed.load(std::memory_order_acquire));
  }
  return least;
}

Slice Exchange::slice_of(size_t chunk) const {
  return slice(*in_.layout, plan_.chunks[chunk].begin, plan_.chunks[chunk].end);
}

// Every rank compares the same headers, so every rank of the node comes to the same result.
Go Exchange::local_headers() {
  if (local_go_ != Go::undecided) {
    return local_go_;
  }
  const size_t n = c_.local_size();
  for (size_t i = 0; i < n; ++i) {
    if (c_.memory.rank(i).header_turn.load(std::memory_order_acquire) != in_.turn) {
      return Go::undecided;
    }
  }
  local_go_ = Go::go;
  for (size_t i = 0; i < n; ++i) {
    const auto header = decode_call(std::span<const std::byte>(c_.memory.rank(i).header));
    if (!header || !header->same_call(in_.header)) {
      local_go_ = Go::differ;
    }
    beyond_node_ = beyond_node_ || !header || header->scope != static_cast<uint8_t>(Scope::node);
  }
  // Other nodes may wait for a header from here, even if this rank's own call asks for nothing.
  if (local_go_ == Go::differ && beyond_node_ && c_.world.nodes.size() > 1) {
    networked_ = true;
    if (c_.links[0] != nullptr && !agreement_) {
      agreement_.emplace(c_, in_);
    }
  }
  return local_go_;
}

// Between nodes the leader of rail 0 has the word; inside one node the local headers are all there
// is.
Go Exchange::verdict() const {
  if (local_go_ != Go::go || !networked_) {
    return local_go_;
  }
  const uint64_t word = c_.memory.leader(0).verdict.load(std::memory_order_acquire);
  return word >> 2 == in_.turn ? static_cast<Go>(word & 3) : Go::undecided;
}

bool Exchange::try_pack() {
  const size_t c = packed_;
  if (!contributes_ || c >= plan_.chunks.size() ||
      min_reduced() + c_.memory.shape().slots <= global(c)) {
    return false;
  }
  const Timed timed(c_.times.pack);
  AuditCount* count = in_.counted && c >= audited_ ? &dropped : nullptr;
  std::byte* to = c_.memory.input(c_.local, slot(c));
  if (plan_.moves()) {
    move_in(plan_, plan_.chunks[c], c_.rank, in_.send, to);
  } else {
    pack(*in_.layout, plan_.type, in_.send, slice_of(c), to, count);
  }
  packed_ = c + 1;
  audited_ = std::max(audited_, packed_);
  publish_audit();
  self_.packed.store(global(c) + 1, std::memory_order_release);
  c_.memory.ring();
  return true;
}

// While the slots are full the audit runs ahead, so that the commit comes early and results can be
// written while later chunks still travel. Chunks seen here are packed without a second look.
bool Exchange::try_audit() {
  if (!contributes_ || !in_.audited || audited_ >= plan_.chunks.size()) {
    return false;
  }
  const Timed timed(c_.times.pack);
  const AuditCount count = audit(*in_.layout, plan_.type, in_.send, slice_of(audited_));
  dropped.lossless += count.lossless;
  dropped.projected += count.projected;
  ++audited_;
  publish_audit();
  return true;
}

void Exchange::publish_audit() {
  const bool known = audited_ >= plan_.chunks.size() || dropped.lossless > 0;
  if (!in_.audited || audit_published_ || !known) {
    return;
  }
  audit_published_ = true;
  const Audit outcome = dropped.lossless > 0 ? Audit::violated : Audit::clean;
  self_.audit.store(in_.turn << 2 | static_cast<uint64_t>(outcome), std::memory_order_release);
  c_.memory.ring();
}

bool Exchange::output_free(size_t chunk) const {
  const size_t slots = c_.memory.shape().slots;
  if (min_unpacked() + slots <= global(chunk)) {
    return false;
  }
  if (!networked_) {
    return true;
  }
  if (chunk >= slots) {
    const uint16_t rail = plan_.chunks[chunk - slots].rail;
    return c_.memory.leader(rail).released.load(std::memory_order_acquire) > global(chunk - slots);
  }
  for (size_t rail = 0; rail < c_.memory.shape().rails; ++rail) {
    if (c_.memory.leader(rail).released.load(std::memory_order_acquire) < in_.base) {
      return false;
    }
  }
  return true;
}

bool Exchange::try_reduce() {
  const size_t c = reduced_;
  if (c >= plan_.chunks.size() || local_headers() != Go::go || min_packed() <= global(c) ||
      !output_free(c)) {
    return false;
  }
  if (plan_.copies) {
    const Timed timed(c_.times.pack);
    move_in(plan_, plan_.chunks[c], c_.rank, in_.send, c_.memory.output(slot(c)));
  } else {
    reduce_shard(c);
  }
  reduced_ = c + 1;
  self_.reduced.store(global(c) + 1, std::memory_order_release);
  c_.memory.ring();
  return true;
}

void Exchange::reduce_shard(size_t c) {
  const Timed timed(c_.times.reduce);
  const Chunk& chunk = plan_.chunks[c];
  const size_t bytes = size_of(plan_.type);
  const Part shard = shard_of(chunk.end - chunk.begin, c_.local_size(), c_.local,
                              c_.leader_locals[chunk.rail], bytes, c_.tuning);
  if (shard.count > 0) {
    std::array<const void*, 256> few;
    std::vector<const void*> many;
    std::span<const void*> sources(few.data(), std::min(plan_.contributors.size(), few.size()));
    if (plan_.contributors.size() > few.size()) {
      many.resize(plan_.contributors.size());
      sources = many;
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      sources[i] = c_.memory.input(static_cast<size_t>(plan_.contributors[i]), slot(c)) +
                   shard.offset * bytes;
    }
    if (networked_) {
      reduce(c_.memory.sum(slot(c)) + shard.offset * size_of(plan_.partial), plan_.partial, sources,
             plan_.type, shard.count, plan_.op == Op::avg ? Op::sum : plan_.op);
    } else {
      reduce(c_.memory.output(slot(c)) + shard.offset * bytes, plan_.type, sources, plan_.type,
             shard.count, plan_.op, plan_.divisor);
    }
  }
}

// A result may be in its slot and still wait for the commit; after a violation it is passed over.
Exchange::Ready Exchange::result_ready(size_t chunk) const {
  const uint64_t ready =
      networked_
          ? c_.memory.leader(plan_.chunks[chunk].rail).finished.load(std::memory_order_acquire)
          : min_reduced();
  if (ready <= global(chunk)) {
    return Ready::no;
  }
  if (!in_.audited) {
    return Ready::yes;
  }
  const uint64_t word = c_.memory.leader(0).commit.load(std::memory_order_acquire);
  if (word >> 2 != in_.turn) {
    return Ready::no;
  }
  return static_cast<Audit>(word & 3) == Audit::clean ? Ready::yes : Ready::discard;
}

bool Exchange::try_unpack() {
  const size_t c = unpacked_;
  if (c >= plan_.chunks.size()) {
    return false;
  }
  const Ready ready = result_ready(c);
  if (ready == Ready::no) {
    return false;
  }
  if (ready == Ready::yes) {
    const Timed timed(c_.times.unpack);
    const std::byte* from = c_.memory.output(slot(c));
    if (plan_.moves()) {
      move_out(plan_, plan_.chunks[c], c_.rank, from, in_.send, in_.recv);
    } else {
      unpack(*in_.layout, plan_.type, from, slice_of(c), in_.recv);
    }
  }
  unpacked_ = c + 1;
  self_.unpacked.store(global(c) + 1, std::memory_order_release);
  c_.memory.ring();
  return true;
}

// Inside one node the leader only collects the audit words.
bool Exchange::try_local_commit() {
  if (networked_ || !in_.audited || !c_.leads(0) || local_committed_ || local_headers() != Go::go) {
    return false;
  }
  bool violated = false;
  for (const int i : plan_.contributors) {
    const uint64_t word =
        c_.memory.rank(static_cast<size_t>(i)).audit.load(std::memory_order_acquire);
    if (word >> 2 != in_.turn) {
      return false;
    }
    violated = violated || static_cast<Audit>(word & 3) == Audit::violated;
  }
  const Audit outcome = violated ? Audit::violated : Audit::clean;
  local_committed_ = true;
  c_.memory.leader(0).commit.store(in_.turn << 2 | static_cast<uint64_t>(outcome),
                                   std::memory_order_release);
  c_.memory.ring();
  return true;
}

Result<bool> Exchange::step_network() {
  bool moved = false;
  for (const auto& links : c_.links) {
    if (links != nullptr) {
      links->progress();
    }
  }
  if (agreement_ && !agreement_->complete()) {
    auto agreed = agreement_->progress(local_go_);
    if (!agreed) {
      return agreed;
    }
    moved = *agreed;
  }
  if (verdict() == Go::go) {
    for (NetworkStage& stage : stages_) {
      auto progressed = stage.progress();
      if (!progressed) {
        return progressed;
      }
      moved = moved || *progressed;
    }
  }
  return moved;
}

Result<bool> Exchange::step() {
  bool moved = false;
  (void)local_headers();
  if (networked_ && c_.leads_any()) {
    auto network = step_network();
    if (!network) {
      return network;
    }
    moved = *network;
    time_network();
  }
  moved = try_local_commit() || moved;
  moved = try_unpack() || moved;
  moved = try_reduce() || moved;
  moved = try_pack() || moved;
  return moved || try_audit();
}

// The inter-node stage lasts from the agreement (in small calls: from the header that carries the
// sum) until nothing is outstanding, waiting included.
void Exchange::time_network() {
  const bool begun = verdict() == Go::go || (plan_.algorithm == Algorithm::inlined && agreement_ &&
                                             agreement_->header_sent());
  if (network_begin_ == 0 && begun) {
    network_begin_ = now_ns();
  }
  const bool over =
      verdict() == Go::go && std::all_of(stages_.begin(), stages_.end(),
                                         [](const NetworkStage& s) { return s.complete(); });
  if (network_end_ == 0 && over) {
    network_end_ = now_ns();
    c_.times.inter += static_cast<uint64_t>(network_end_ - network_begin_);
  }
}

bool Exchange::complete() const {
  const size_t n = plan_.chunks.size();
  return unpacked_ == n && reduced_ == n && (packed_ == n || !contributes_) &&
         (!in_.audited || networked_ || !c_.leads(0) || local_committed_) &&
         (!agreement_ || agreement_->complete()) &&
         std::all_of(stages_.begin(), stages_.end(),
                     [](const NetworkStage& s) { return s.complete(); });
}

// Headers differ. The leader stays until it has every peer's header, or the next call would find
// them.
bool Exchange::abandoned() const {
  return agreement_ ? agreement_->verdict() == Go::differ : verdict() == Go::differ;
}

Result<Outcome> Exchange::run() {
  const Timed timed(c_.times.total);
  direct_ = Deadline::after(in_.timeout_s);
  indirect_ = Deadline::after(in_.timeout_s +
                              (agreement_ || !stages_.empty() ? kLeaderExtraS : kFollowerExtraS));
  encode(in_.header, std::span<std::byte, CallHeader::kWireBytes>(self_.header));
  self_.header_turn.store(in_.turn, std::memory_order_release);
  c_.memory.ring();
  while (true) {
    const uint32_t seen = c_.memory.bell();
    auto moved = step();
    if (!moved) {
      return tl::unexpected(moved.error());
    }
    if (complete()) {
      break;
    }
    if (abandoned()) {
      return Outcome::differ;
    }
    if (!*moved) {
      if (auto waited = wait(seen); !waited) {
        return tl::unexpected(waited.error());
      }
    }
  }
  for (size_t rail = 0; rail < c_.links.size(); ++rail) {
    if (c_.leads(rail)) {
      c_.memory.leader(rail).released.store(in_.end(), std::memory_order_release);
    }
  }
  self_.packed.store(in_.end(), std::memory_order_release);
  c_.memory.ring();
  if (in_.audited) {
    const uint64_t word = c_.memory.leader(0).commit.load(std::memory_order_acquire);
    if (static_cast<Audit>(word & 3) == Audit::violated) {
      return Outcome::violated;
    }
  }
  return Outcome::done;
}

}  // namespace prunex::collective
