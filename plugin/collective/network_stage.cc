// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/network_stage.h"

#include <algorithm>
#include <array>

#include "kernels/pack.h"
#include "plugin/collective/exchange.h"

namespace prunex::collective {

using transport::Io;

NetworkStage::NetworkStage(Context& context, const ExchangeInput& input, size_t rail)
    : c_(context),
      in_(input),
      plan_(*input.plan),
      links_(*context.links[rail]),
      rail_(rail),
      audits_(context.world.nodes.size(), Audit::pending),
      header_read_(context.world.nodes.size(), 0) {
  uint64_t own = 0;
  for (const Chunk& chunk : plan_.chunks) {
    own = std::max(own, chunk.own_count);
  }
  const size_t slots = c_.memory.shape().slots;
  partial_stride_ = (own * size_of(plan_.partial) + 63) / 64 * 64;
  std::vector<std::byte>& scratch = c_.scratch[rail];
  const size_t need = plan_.algorithm == Algorithm::inlined
                          ? 0
                          : partial_stride_ * (links_.nodes() - 1) * std::min(slots, plan_.chunks.size());
  if (scratch.size() < need) {
    scratch.resize(need);
  }
  flights_.resize(slots);
  while (next_ < plan_.chunks.size() && plan_.chunks[next_].rail != rail_) {
    ++next_;
  }
}

size_t NetworkStage::slot_of(size_t chunk) const {
  return (in_.base + chunk) % c_.memory.shape().slots;
}

std::byte* NetworkStage::partial_of(size_t slot, size_t node) const {
  const size_t others = links_.nodes() - 1;
  const size_t index = node < links_.self() ? node : node - 1;
  const size_t rows = std::min(c_.memory.shape().slots, plan_.chunks.size());
  return c_.scratch[rail_].data() + ((slot % rows) * others + index) * partial_stride_;
}

bool NetworkStage::reduced_by_all(uint64_t chunk) const {
  for (size_t i = 0; i < c_.local_size(); ++i) {
    if (c_.memory.rank(i).reduced.load(std::memory_order_acquire) <= in_.base + chunk) {
      return false;
    }
  }
  return true;
}

Audit NetworkStage::node_audit() const {
  if (!in_.audited) {
    return Audit::clean;
  }
  bool violated = false;
  for (const int local : plan_.contributors) {
    const uint64_t word =
        c_.memory.rank(static_cast<size_t>(local)).audit.load(std::memory_order_acquire);
    if (word >> 2 != in_.header.sequence) {
      return Audit::pending;
    }
    violated = violated || static_cast<Audit>(word & 3) == Audit::violated;
  }
  return violated ? Audit::violated : Audit::clean;
}

Result<bool> NetworkStage::progress(Go local_headers) {
  links_.progress();
  bool moved = false;
  if (rail_ == 0) {
    auto calls = progress_calls(local_headers);
    if (!calls) {
      return calls;
    }
    moved = *calls;
  } else if (verdict_ == Go::undecided) {
    const uint64_t word = c_.memory.leader(0).verdict.load(std::memory_order_acquire);
    if (word >> 2 == in_.header.sequence) {
      verdict_ = static_cast<Go>(word & 3);
      moved = true;
    }
  }
  if (verdict_ != Go::go || plan_.algorithm == Algorithm::inlined) {
    return moved;
  }
  auto chunks = progress_chunks();
  if (!chunks) {
    return chunks;
  }
  return moved || *chunks;
}

Result<bool> NetworkStage::progress_calls(Go local_headers) {
  bool moved = false;
  if (!header_sent_) {
    auto sent = send_header(local_headers);
    if (!sent) {
      return sent;
    }
    moved = *sent;
  }
  if (verdict_ == Go::undecided) {
    auto read = read_headers();
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
Result<bool> NetworkStage::send_header(Go local_headers) {
  if (local_headers == Go::undecided) {
    return false;
  }
  CallHeader header = in_.header;
  std::span<const std::byte> payload;
  if (local_headers == Go::differ) {
    header.local_mismatch = 1;
  } else if (plan_.algorithm == Algorithm::inlined) {
    if (!reduced_by_all(0)) {
      return false;
    }
    payload = std::span(c_.memory.sum(slot_of(0)), plan_.elements * size_of(plan_.partial));
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

Result<bool> NetworkStage::read_headers() {
  bool moved = false;
  bool all = header_sent_;
  bool same = true;
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
      return fail(Code::peer_lost, strf("rank %d gave up", links_.peer(n).rank), 0,
                  header->culprit);
    }
    moved = moved || header_read_[n] == 0;
    header_read_[n] = 1;
    audits_[n] = header->audit;
    same = same && header->kind == MessageKind::call && header->local_mismatch == 0 &&
           header->same_call(in_.header) &&
           (plan_.algorithm != Algorithm::inlined ||
            header->payload == plan_.elements * size_of(plan_.partial));
  }
  if (!all) {
    return moved;
  }
  // A node that disagrees with itself has said so in its header; its own leader sees it the same way.
  for (size_t i = 0; i < c_.local_size(); ++i) {
    const auto header = decode_call(std::span<const std::byte>(c_.memory.rank(i).header));
    same = same && header && header->same_call(in_.header);
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
  c_.memory.leader(0).verdict.store(in_.header.sequence << 2 | static_cast<uint64_t>(verdict_),
                                    std::memory_order_release);
  c_.memory.ring();
  return true;
}

void NetworkStage::combine_inlined() {
  const Timed timed(c_.times.inter);
  std::vector<const void*> sources(links_.nodes());
  for (size_t n = 0; n < links_.nodes(); ++n) {
    sources[n] = n == links_.self() ? static_cast<const void*>(c_.memory.sum(slot_of(0)))
                                    : static_cast<const void*>(links_.payload(n).data());
  }
  reduce(c_.memory.output(slot_of(0)), plan_.type, sources, plan_.partial, plan_.elements, plan_.op,
         plan_.divisor);
  finished_ = released_ = 1;
  c_.memory.leader(0).released.store(in_.base + 1, std::memory_order_release);
  c_.memory.leader(0).finished.store(in_.base + 1, std::memory_order_release);
}

Result<bool> NetworkStage::progress_commit() {
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
        return fail(Code::peer_lost, strf("rank %d gave up", links_.peer(n).rank), 0,
                    (*peeked)->culprit);
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
  c_.memory.leader(0).commit.store(in_.header.sequence << 2 | static_cast<uint64_t>(outcome),
                                   std::memory_order_release);
  c_.memory.ring();
  return true;
}

Result<bool> NetworkStage::progress_chunks() {
  const Timed timed(c_.times.inter);
  bool moved = false;
  while (next_ < plan_.chunks.size() && active_ < flights_.size()) {
    Flight& flight = flights_[(first_ + active_) % flights_.size()];
    flight.chunk = next_;
    flight.recvs_posted = flight.sends_posted = 0;
    flight.result_recvs_posted = flight.result_sends_posted = 0;
    flight.combined = flight.received = false;
    ++active_;
    next_ += c_.links.size();  // chunks go round the rails
    moved = true;
  }
  for (size_t i = 0; i < active_; ++i) {
    auto advanced = advance(flights_[(first_ + i) % flights_.size()]);
    if (!advanced) {
      return advanced;
    }
    moved = moved || *advanced;
  }
  retire();
  return moved;
}

// Flights are visited in chunk order, and every post of one kind happens in that order: so both ends of
// a connection agree on which message is which.
Result<bool> NetworkStage::advance(Flight& f) {
  const Chunk& chunk = plan_.chunks[f.chunk];
  bool moved = false;
  const auto run = [&](StepKind kind, bool ready, uint32_t& cursor) -> Result<> {
    const bool partial = kind == StepKind::send_partial || kind == StepKind::recv_partial;
    const uint32_t first = partial ? chunk.first_step : chunk.first_step + chunk.partial_steps;
    const uint32_t count = partial ? chunk.partial_steps : chunk.result_steps;
    if (!ready || cursor >= count) {
      return {};
    }
    auto posted = post(f, kind, first, count, cursor);
    if (!posted) {
      return tl::unexpected(posted.error());
    }
    moved = moved || *posted;
    return {};
  };
  const bool reduced = f.combined || reduced_by_all(f.chunk);
  if (auto r = run(StepKind::recv_partial, true, f.recvs_posted); !r) {
    return tl::unexpected(r.error());
  }
  if (auto r = run(StepKind::send_partial, reduced, f.sends_posted); !r) {
    return tl::unexpected(r.error());
  }
  auto got = reap(f.recvs, f.recv_nodes, f.recv_channels);
  if (!got) {
    return got;
  }
  moved = moved || *got;
  if (!f.combined && reduced && f.recvs.empty() && f.recvs_posted >= chunk.partial_steps) {
    combine(f);
    moved = true;
  }
  if (auto r = run(StepKind::recv_result, f.combined, f.result_recvs_posted); !r) {
    return tl::unexpected(r.error());
  }
  if (auto r = run(StepKind::send_result, f.combined, f.result_sends_posted); !r) {
    return tl::unexpected(r.error());
  }
  auto sent = reap(f.sends, f.send_nodes, f.send_channels);
  if (!sent) {
    return sent;
  }
  moved = moved || *sent;
  f.received = f.combined && f.recvs.empty() && f.result_recvs_posted >= chunk.result_steps;
  return moved;
}

Result<bool> NetworkStage::post(Flight& f, StepKind kind, uint32_t first, uint32_t count,
                                uint32_t& cursor) {
  const size_t slot = slot_of(f.chunk);
  bool moved = false;
  for (; cursor < count; ++cursor) {
    const Step& step = plan_.steps[first + cursor];
    if (step.kind != kind) {
      continue;
    }
    const bool partial = kind == StepKind::send_partial || kind == StepKind::recv_partial;
    const bool sends = kind == StepKind::send_partial || kind == StepKind::send_result;
    const Channel channel = partial ? Channel::partials : Channel::results;
    const size_t element = size_of(partial ? plan_.partial : plan_.type);
    const size_t bytes = step.count * element;
    transport::Connection& link = links_.link(step.node, channel);
    transport::Ticket ticket = 0;
    Io io = Io::again;
    if (sends) {
      const std::byte* from = partial ? c_.memory.sum(slot) : c_.memory.output(slot);
      io = link.isend(from + step.offset * element, bytes, nullptr, &ticket);
    } else {
      std::byte* to = partial ? partial_of(slot, step.node)
                              : c_.memory.output(slot) + step.offset * element;
      io = link.irecv(to, bytes, nullptr, &ticket);
    }
    if (io == Io::failed) {
      return tl::unexpected(peer_error(links_.peer(step.node), link));
    }
    if (io == Io::again) {
      break;  // the pool is full: the rest another time, still in order
    }
    (sends ? f.sends : f.recvs).push_back(ticket);
    (sends ? f.send_nodes : f.recv_nodes).push_back(step.node);
    (sends ? f.send_channels : f.recv_channels).push_back(channel);
    (sends ? links_.bytes_sent : links_.bytes_received) += bytes;
    moved = true;
  }
  return moved;
}

Result<bool> NetworkStage::reap(std::vector<transport::Ticket>& tickets,
                                std::vector<uint16_t>& nodes, std::vector<Channel>& channels) {
  bool moved = false;
  for (size_t i = 0; i < tickets.size();) {
    transport::Connection& link = links_.link(nodes[i], channels[i]);
    size_t bytes = 0;
    const Io io = link.test(tickets[i], &bytes);
    if (io == Io::failed) {
      return tl::unexpected(peer_error(links_.peer(nodes[i]), link));
    }
    if (io == Io::again) {
      ++i;
      continue;
    }
    tickets[i] = tickets.back();
    nodes[i] = nodes.back();
    channels[i] = channels.back();
    tickets.pop_back();
    nodes.pop_back();
    channels.pop_back();
    moved = true;
  }
  return moved;
}

// Contributions are added in ascending node order whatever the order of arrival (design rule 2).
void NetworkStage::combine(Flight& f) {
  const Chunk& chunk = plan_.chunks[f.chunk];
  const size_t slot = slot_of(f.chunk);
  constexpr size_t kStack = 64;
  std::array<const void*, kStack> few;
  std::vector<const void*> many;
  std::span<const void*> sources(few.data(), std::min(links_.nodes(), kStack));
  if (links_.nodes() > kStack) {
    many.resize(links_.nodes());
    sources = many;
  }
  for (size_t n = 0; n < links_.nodes(); ++n) {
    sources[n] = n == links_.self()
                     ? c_.memory.sum(slot) + chunk.own_offset * size_of(plan_.partial)
                     : partial_of(slot, n);
  }
  reduce(c_.memory.output(slot) + chunk.own_offset * size_of(plan_.type), plan_.type, sources,
         plan_.partial, chunk.own_count, plan_.op, plan_.divisor);
  f.combined = true;
}

void NetworkStage::retire() {
  LeaderBlock& block = c_.memory.leader(rail_);
  bool moved = false;
  // Results may be read before the last send has left; slots are free only after it has.
  for (size_t i = 0; i < active_; ++i) {
    const Flight& f = flights_[(first_ + i) % flights_.size()];
    if (!f.received) {
      break;
    }
    if (f.chunk + 1 > finished_) {
      finished_ = f.chunk + 1;
      block.finished.store(in_.base + finished_, std::memory_order_release);
      moved = true;
    }
  }
  while (active_ > 0) {
    const Flight& f = flights_[first_];
    const Chunk& chunk = plan_.chunks[f.chunk];
    if (!f.received || !f.sends.empty() || f.sends_posted < chunk.partial_steps ||
        f.result_sends_posted < chunk.result_steps) {
      break;
    }
    released_ = f.chunk + 1;
    block.released.store(in_.base + released_, std::memory_order_release);
    first_ = (first_ + 1) % flights_.size();
    --active_;
    moved = true;
  }
  if (moved) {
    c_.memory.ring();
  }
}

bool NetworkStage::complete() const {
  if (verdict_ == Go::differ) {
    return true;
  }
  const bool calls_done = rail_ != 0 || (header_sent_ && (!in_.audited || committed_));
  const bool chunks_done = plan_.algorithm == Algorithm::inlined
                               ? rail_ != 0 || finished_ > 0
                               : active_ == 0 && next_ >= plan_.chunks.size();
  return verdict_ == Go::go && calls_done && chunks_done;
}

int NetworkStage::awaited_rank() const {
  if (rail_ == 0 && verdict_ == Go::undecided) {
    for (size_t n = 0; n < links_.nodes(); ++n) {
      if (n != links_.self() && header_read_[n] == 0) {
        return links_.peer(n).rank;
      }
    }
  }
  for (size_t i = 0; i < active_; ++i) {
    const Flight& f = flights_[(first_ + i) % flights_.size()];
    if (!f.recv_nodes.empty()) {
      return links_.peer(f.recv_nodes[0]).rank;
    }
    if (!f.send_nodes.empty()) {
      return links_.peer(f.send_nodes[0]).rank;
    }
  }
  for (size_t n = 0; rail_ == 0 && in_.audited && n < links_.nodes(); ++n) {
    if (audits_[n] == Audit::pending && n != links_.self()) {
      return links_.peer(n).rank;
    }
  }
  return -1;
}

}  // namespace prunex::collective
