// SPDX-License-Identifier: Apache-2.0
// What happens when ranks disagree about a call, or a dropped element was not zero. Slow on
// purpose: every rank tells every other everything, so that the message can name ranks and
// parameter, and all decide from the same records.
#include <algorithm>
#include <cstring>

#include "kernels/pack.h"
#include "plugin/base/digest.h"
#include "plugin/base/log.h"
#include "plugin/collective/comm.h"
#include "plugin/collective/recovery_records.h"

namespace prunex::collective {
Result<std::map<int, std::string>> Comm::gather(Scope scope, const std::string& record) {
  const Timed timed(context_.times.agree);
  if (scope == Scope::node) {
    return gather_in_node(record);
  }
  auto all = control_->all_gather(record, options_.config.timeout_s);
  if (!all) {
    return tl::unexpected(die(all.error()));
  }
  std::map<int, std::string> by_rank;
  for (size_t i = 0; i < all->size(); ++i) {
    by_rank.emplace(static_cast<int>(i), std::move((*all)[i]));
  }
  return by_rank;
}

// Waits until every rank of the node has counted to `turn`.
Result<> Comm::await_node(Counter RankBlock::*counter, uint64_t turn) {
  NodeMemory& memory = context_.memory;
  const Deadline deadline = Deadline::after(options_.config.timeout_s);
  while (true) {
    const uint32_t seen = memory.bell();
    int missing = -1;
    for (size_t i = 0; i < context_.local_size() && missing < 0; ++i) {
      const Counter& c = memory.rank(i).*counter;
      missing = c.load(std::memory_order_acquire) < turn ? context_.rank_at(i) : -1;
    }
    if (missing < 0) {
      return {};
    }
    if (auto verdict = control_->aborted()) {
      return tl::unexpected(die(to_error(*verdict)));
    }
    if (deadline.passed()) {
      return tl::unexpected(die(late_error(missing, "answer", options_.config.timeout_s)));
    }
    memory.sleep(seen, 50'000'000);
    control_->poll();
  }
}

// Inside one node the input slots carry the records: no exchange uses them now, since every rank of
// the node comes here before it packs anything else. Long records take several rounds.
Result<std::map<int, std::string>> Comm::gather_in_node(const std::string& record) {
  NodeMemory& memory = context_.memory;
  const size_t room = memory.shape().slots * memory.shape().slot_bytes - sizeof(uint64_t);
  std::map<int, std::string> by_rank;
  bool more = true;
  for (size_t sent = 0; more; sent += std::min(room, record.size() - sent)) {
    const uint64_t turn = ++mails_;
    const uint64_t left = record.size() - sent;
    std::byte* own = memory.input(context_.local, 0);
    std::memcpy(own, &left, sizeof left);
    std::memcpy(own + sizeof left, record.data() + sent, std::min<size_t>(left, room));
    memory.rank(context_.local).mailed.store(turn, std::memory_order_release);
    memory.ring();
    if (auto ok = await_node(&RankBlock::mailed, turn); !ok) {
      return tl::unexpected(ok.error());
    }
    more = false;
    for (size_t i = 0; i < context_.local_size(); ++i) {
      const std::byte* from = memory.input(i, 0);
      uint64_t bytes = 0;
      std::memcpy(&bytes, from, sizeof bytes);
      more = more || bytes > room;
      by_rank[context_.rank_at(i)].append(reinterpret_cast<const char*>(from + sizeof bytes),
                                          std::min<size_t>(bytes, room));
    }
    memory.rank(context_.local).mail_taken.store(turn, std::memory_order_release);
    memory.ring();
    if (auto ok = await_node(&RankBlock::mail_taken, turn); !ok) {
      return tl::unexpected(ok.error());
    }
  }
  return by_rank;
}

// An abandoned exchange leaves ranks at different chunks: all go on from the same number.
void Comm::move_base(uint64_t base) {
  base_ = base;
  RankBlock& self = context_.memory.rank(context_.local);
  self.packed.store(base, std::memory_order_release);
  self.reduced.store(base, std::memory_order_release);
  self.unpacked.store(base, std::memory_order_release);
  for (size_t rail = 0; rail < context_.leader_locals.size(); ++rail) {
    if (context_.leads(rail)) {
      context_.memory.leader(rail).finished.store(base, std::memory_order_release);
      context_.memory.leader(rail).released.store(base, std::memory_order_release);
    }
  }
  context_.memory.ring();
}

Result<> Comm::resolve_difference(const CallSpec& spec, const MaskedLayout& masked) {
  CallRecord mine;
  mine.end = attempted_end_;
  mine.sequence = sequence_;
  const bool parts =
      spec.collective == Collective::all_gather || spec.collective == Collective::reduce_scatter;
  mine.count = parts ? spec.count / static_cast<uint64_t>(context_.world.size) : spec.count;
  mine.collective = static_cast<uint8_t>(spec.collective);
  mine.root = static_cast<uint32_t>(spec.root);
  mine.extra = spec.extra_digest;
  mine.op = static_cast<uint8_t>(spec.op);
  mine.dtype = static_cast<uint8_t>(spec.type);
  mine.scope = static_cast<uint8_t>(spec.scope);
  mine.on_device = spec.announced != nullptr ? 1 : 0;
  mine.on_mismatch = options_.config.on_mismatch == OnMismatch::error ? 1 : 0;
  for (size_t i = 0; i < masked.layout.segments.size(); ++i) {
    const Segment& s = masked.layout.segments[i];
    mine.segments.push_back({s.offset, s.count, s.mask ? s.mask->digest : 0,
                             static_cast<uint8_t>(s.mask ? masked.contracts[i] : Contract{}),
                             s.name});
  }
  auto gathered = gather(settling_, write(mine));
  if (!gathered) {
    return tl::unexpected(gathered.error());
  }
  std::map<int, CallRecord> calls;
  uint64_t end = 0;
  bool must_fail = false;
  for (const auto& [rank, bytes] : *gathered) {
    auto call = read_call(bytes);
    if (!call) {
      return tl::unexpected(die(call.error()));
    }
    end = std::max(end, call->end);
    sequence_ = std::max(sequence_, call->sequence);
    must_fail = must_fail || call->on_mismatch != 0;
    for (const SegmentRecord& s : call->segments) {
      must_fail =
          must_fail || (s.mask != 0 && static_cast<Contract>(s.contract) == Contract::project);
    }
    calls.emplace(rank, std::move(*call));
  }
  move_base(end);
  // Ranks with different masks have learned different things: nobody relies on any of it.
  lessons(Scope::node) = {{}, {}, lessons(Scope::node).version + 1};
  if (settling_ != Scope::node) {
    lessons(Scope::world) = {{}, {}, lessons(Scope::world).version + 1};
  }
  const auto& [first, reference] = *calls.begin();
  Difference worst;
  std::string ranks;
  for (const auto& [rank, call] : calls) {
    Difference d = compare(first, reference, rank, call);
    if (!d.text.empty()) {
      ranks += strf("%s%d", ranks.empty() ? "" : ", ", rank);
      // What admits no result at all is the better thing to say.
      if (worst.text.empty() || (worst.masks_only && !d.masks_only)) {
        worst = std::move(d);
      }
    }
  }
  if (worst.text.empty()) {
    worst.text = "they keep different accounts of earlier calls";
  }
  const std::string text = strf("ranks disagree about a call: %s; different from rank %d: %s",
                                worst.text.c_str(), first, ranks.c_str());
  {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.mismatches;
  }
  if (!worst.masks_only || must_fail) {
    return fail(Code::mismatch, text);
  }
  if (spec.announced != nullptr) {
    spec.announced->differ = true;
  }
  if (context_.rank == first && warned_.insert(digest_bytes(text.data(), text.size())).second) {
    PRUNEX_LOG(
        warn,
        "%s; such calls go dense until the masks are the same (prunex_agree_mask makes them so; "
        "PRUNEX_ON_MISMATCH=error makes this an error); said once",
        text.c_str());
  }
  if (spec.announced != nullptr) {
    return {};
  }
  const MaskedLayout dense = make_masked_layout(dense_layout(spec.count), {Contract::lossless});
  auto outcome = exchange(spec, dense, false, false);
  if (!outcome) {
    return tl::unexpected(outcome.error());
  }
  if (*outcome != Outcome::done) {
    return fail(Code::internal, "ranks disagree about a dense call: " + text);
  }
  return {};
}

Result<> Comm::resolve_violation(const CallSpec& spec, const MaskedLayout& masked) {
  const Layout& layout = masked.layout;
  const bool contributes = spec.scope != Scope::leaders ||
                           context_.world.nodes[context_.node].leaders[0].rank == context_.rank;
  std::vector<Offence> mine;
  for (size_t i = 0; contributes && i < layout.segments.size(); ++i) {
    if (layout.segments[i].mask == nullptr || layout.segments[i].projected) {
      continue;
    }
    const AuditReport report = audit_segment(layout, i, spec.type, spec.send);
    if (report.nonzero > 0) {
      const double all = report.dropped_energy + report.kept_energy;
      mine.push_back({static_cast<uint32_t>(i), report.first_element, report.nonzero,
                      report.nonfinite, all > 0 ? report.dropped_energy / all : 0});
    }
  }
  auto dense = learn(spec, masked, mine);
  if (!dense) {
    return tl::unexpected(dense.error());
  }
  // Everything else was seen to be zero everywhere, so leaving only the offenders dense gives the
  // dense sum.
  const MaskedLayout rest = make_masked_layout(without_masks(layout, *dense), masked.contracts);
  auto outcome = exchange(spec, rest, false, rest.layout.kept < rest.layout.count);
  if (!outcome) {
    return tl::unexpected(outcome.error());
  }
  if (*outcome != Outcome::done) {
    return fail(Code::internal, "ranks disagree about a call after an audit");
  }
  return {};
}

// Which segments broke their promise on any rank, from everybody's records; remembered until their
// masks change.
Result<std::vector<uint8_t>> Comm::learn(const CallSpec& spec, const MaskedLayout& masked,
                                         const std::vector<Offence>& mine) {
  const Layout& layout = masked.layout;
  auto gathered = gather(spec.scope, write(mine));
  if (!gathered) {
    return tl::unexpected(gathered.error());
  }
  std::vector<uint8_t> dense(layout.segments.size(), 0);
  auto& broken = lessons(spec.scope).broken;
  ++lessons(spec.scope).version;
  const int first = gathered->begin()->first;
  for (const auto& [rank, bytes] : *gathered) {
    auto offences = read_offences(bytes);
    if (!offences) {
      return tl::unexpected(die(offences.error()));
    }
    for (const Offence& o : *offences) {
      if (o.segment >= dense.size() || layout.segments[o.segment].mask == nullptr) {
        return tl::unexpected(
            die(Error{Code::internal, "an audit record names a segment without mask", 0, rank}));
      }
      if (dense[o.segment] == 0 && context_.rank == first) {
        const Segment& s = layout.segments[o.segment];
        PRUNEX_LOG(
            warn,
            "parameter %s promised zeros, but rank %d has %s; it stays dense until its mask "
            "changes. Masked training that may have gradients there wants the 'project' contract",
            name_of_segment(s.name, o.segment).c_str(), rank, describe(o).c_str());
      }
      dense[o.segment] = 1;
      broken[parameter_key(layout, o.segment)] = layout.segments[o.segment].mask->digest;
    }
  }
  for (size_t i = 0; i < dense.size() && i < spec.masked->violations.size(); ++i) {
    if (dense[i] != 0 && spec.masked->violations[i] != nullptr) {
      spec.masked->violations[i]->fetch_add(1);
    }
  }
  {
    const std::lock_guard lock(stats_mutex_);
    ++stats_.violations;
  }
  return dense;
}

}  // namespace prunex::collective
