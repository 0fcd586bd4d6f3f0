// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/agreement.h"

#include <cstring>
#include <vector>

#include "kernels/pack.h"
#include "plugin/collective/exchange.h"
#include "plugin/collective/plan_move.h"

namespace prunex::collective {
namespace {

Error given_up(int by, const CallHeader& abort, double timeout_s) {
  if (abort.late != 0) {
    return late_error(abort.culprit, "answer", timeout_s);
  }
  return Error{Code::peer_lost, strf("rank %d was lost (says rank %d)", abort.culprit, by), 0,
               abort.culprit};
}

}  // namespace

Agreement::Agreement(Context& context, const ExchangeInput& input)
    : c_(context),
      in_(input),
      plan_(*input.plan),
      links_(*context.links[0]),
      slot_(input.base % context.memory.shape().slots),
      audits_(context.world.nodes.size(), Audit::pending),
      header_read_(context.world.nodes.size(), 0) {}

bool Agreement::reduced_by_all() const {
  for (size_t i = 0; i < c_.local_size(); ++i) {
    if (c_.memory.rank(i).reduced.load(std::memory_order_acquire) <= in_.base) {
      return false;
    }
  }
  return true;
}

Audit Agreement::node_audit() const {
  if (!in_.audited) {
    return Audit::clean;
  }
  bool violated = false;
  for (const int local : plan_.contributors) {
    const uint64_t word =
        c_.memory.rank(static_cast<size_t>(local)).audit.load(std::memory_order_acquire);
    if (word >> 2 != in_.turn) {
      return Audit::pending;
    }
    violated = violated || static_cast<Audit>(word & 3) == Audit::violated;
  }
  return violated ? Audit::violated : Audit::clean;
}

Result<bool> Agreement::progress(Go local_headers) {
  const Timed timed(c_.times.agree);
  bool moved = false;
  if (!header_sent_) {
    auto sent = send_header(local_headers);
    if (!sent) {
      return sent;
    }
    moved = *sent;
  }
  if (verdict_ == Go::undecided) {
    auto read = read_headers(local_headers);
    if (!read) {
      return read;
    }
    moved = moved || *read;
  }
  if (verdict_ == Go::go && in_.audited && !committed_) {
    auto committed = progress_commit();
    if (!committed) {
      return committed;
    }
    moved = moved || *committed;
  }
  return moved;
}

// Small calls wait for the node's sum, which follows the header in the same message.
Result<bool> Agreement::send_header(Go local_headers) {
  if (local_headers == Go::undecided) {
    return false;
  }
  CallHeader header = in_.header;
  std::span<const std::byte> payload;
  if (local_headers == Go::differ) {
    header.local_mismatch = 1;
  } else if (plan_.algorithm == Algorithm::inlined) {
    if (!reduced_by_all()) {
      return false;
    }
    payload = inlined_part();
  }
  header.audit = node_audit();
  audits_[links_.self()] = header.audit;
  commit_sent_ = header.audit != Audit::pending;
  if (auto sent = links_.send_calls(header, payload); !sent) {
    return tl::unexpected(sent.error());
  }
  header_sent_ = true;
  return true;
}

Result<bool> Agreement::read_headers(Go local_headers) {
  bool moved = false;
  bool all = header_sent_;
  bool same = local_headers == Go::go;
  for (size_t n = 0; n < links_.nodes(); ++n) {
    if (n == links_.self()) {
      continue;
    }
    auto peeked = links_.peek_call(n);
    if (!peeked) {
      return tl::unexpected(peeked.error());
    }
    const CallHeader* header = *peeked;
    if (header == nullptr) {
      all = false;
      continue;
    }
    if (header->kind == MessageKind::abort) {
      return tl::unexpected(given_up(links_.peer(n).rank, *header, in_.timeout_s));
    }
    moved = moved || header_read_[n] == 0;
    header_read_[n] = 1;
    audits_[n] = header->audit;
    same = same && header->kind == MessageKind::call && header->local_mismatch == 0 &&
           header->same_call(in_.header) &&
           (plan_.algorithm != Algorithm::inlined || header->payload == inlined_bytes(n));
  }
  if (!all) {
    return moved;
  }
  verdict_ = same ? Go::go : Go::differ;
  if (verdict_ == Go::go && plan_.algorithm == Algorithm::inlined) {
    combine_inlined();
  }
  for (size_t n = 0; n < links_.nodes(); ++n) {
    if (n != links_.self()) {
      links_.take_call(n);
    }
  }
  c_.memory.leader(0).verdict.store(in_.turn << 2 | static_cast<uint64_t>(verdict_),
                                    std::memory_order_release);
  c_.memory.ring();
  return true;
}

// Where nothing is added up, a node's message carries its own part of the result.
size_t Agreement::inlined_bytes(size_t node) const {
  return plan_.copies ? node_part(plan_, plan_.elements, node).count * size_of(plan_.type)
                      : plan_.elements * size_of(plan_.partial);
}

std::span<const std::byte> Agreement::inlined_part() const {
  const size_t self = links_.self();
  return {plan_.copies ? output_of(self) : c_.memory.sum(slot_), inlined_bytes(self)};
}

std::byte* Agreement::output_of(size_t node) const {
  return c_.memory.output(slot_) +
         node_part(plan_, plan_.elements, node).offset * size_of(plan_.type);
}

void Agreement::combine_inlined() {
  if (plan_.copies) {
    for (size_t n = 0; n < links_.nodes(); ++n) {
      if (n != links_.self() && inlined_bytes(n) > 0) {
        std::memcpy(output_of(n), links_.payload(n).data(), inlined_bytes(n));
      }
    }
  } else {
    reduce_inlined();
  }
  c_.memory.leader(0).released.store(in_.base + 1, std::memory_order_release);
  c_.memory.leader(0).finished.store(in_.base + 1, std::memory_order_release);
}

void Agreement::reduce_inlined() {
  std::vector<const void*> sources(links_.nodes());
  for (size_t n = 0; n < links_.nodes(); ++n) {
    sources[n] = n == links_.self() ? static_cast<const void*>(c_.memory.sum(slot_))
                                    : static_cast<const void*>(links_.payload(n).data());
  }
  reduce(c_.memory.output(slot_), plan_.type, sources, plan_.partial, plan_.elements, plan_.op,
         plan_.divisor);
}

Result<bool> Agreement::progress_commit() {
  bool moved = false;
  Audit& own = audits_[links_.self()];
  if (own == Audit::pending) {
    own = node_audit();
  }
  if (own != Audit::pending && !commit_sent_) {
    CallHeader header = in_.header;
    header.kind = MessageKind::commit;
    header.audit = own;
    if (auto sent = links_.send_calls(header, {}); !sent) {
      return tl::unexpected(sent.error());
    }
    commit_sent_ = true;
    moved = true;
  }
  bool all = own != Audit::pending;
  bool clean = own == Audit::clean;
  for (size_t n = 0; n < links_.nodes(); ++n) {
    if (audits_[n] == Audit::pending && n != links_.self()) {
      auto peeked = links_.peek_call(n);
      if (!peeked) {
        return tl::unexpected(peeked.error());
      }
      if (*peeked != nullptr && (*peeked)->kind == MessageKind::abort) {
        return tl::unexpected(given_up(links_.peer(n).rank, **peeked, in_.timeout_s));
      }
      if (*peeked != nullptr && (*peeked)->kind == MessageKind::commit) {
        audits_[n] = (*peeked)->audit;
        links_.take_call(n);
        moved = true;
      }
    }
    all = all && audits_[n] != Audit::pending;
    clean = clean && audits_[n] == Audit::clean;
  }
  if (!all) {
    return moved;
  }
  committed_ = true;
  const Audit outcome = clean ? Audit::clean : Audit::violated;
  c_.memory.leader(0).commit.store(in_.turn << 2 | static_cast<uint64_t>(outcome),
                                   std::memory_order_release);
  c_.memory.ring();
  return true;
}

bool Agreement::complete() const {
  return verdict_ == Go::differ || (verdict_ == Go::go && (!in_.audited || committed_));
}

int Agreement::awaited_rank() const {
  for (size_t n = 0; n < links_.nodes(); ++n) {
    const bool header = verdict_ == Go::undecided && header_read_[n] == 0;
    const bool commit = verdict_ == Go::go && in_.audited && audits_[n] == Audit::pending;
    if (n != links_.self() && (header || commit)) {
      return links_.peer(n).rank;
    }
  }
  return -1;
}

}  // namespace prunex::collective
