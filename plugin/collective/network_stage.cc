// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/network_stage.h"

#include <algorithm>
#include <array>

#include "kernels/pack.h"
#include "plugin/collective/exchange.h"

namespace prunex::collective {

using transport::Io;

NetworkStage::NetworkStage(Context& context, const ExchangeInput& input, size_t rail)
    : c_(context), in_(input), plan_(*input.plan), links_(*context.links[rail]), rail_(rail) {
  uint64_t own = 0;
  for (const Chunk& chunk : plan_.chunks) {
    own = std::max(own, chunk.own_count);
  }
  const size_t slots = c_.memory.shape().slots;
  partial_stride_ = (own * size_of(plan_.partial) + 63) / 64 * 64;
  while (next_ < plan_.chunks.size() && plan_.chunks[next_].rail != rail_) {
    ++next_;
  }
  const size_t rails = c_.links.size();
  const size_t own_chunks = (plan_.chunks.size() - next_ + rails - 1) / rails;
  flights_.resize(std::min(slots, own_chunks));
  c_.scratch[rail].reserve(partial_stride_ * (links_.nodes() - 1) * flights_.size());
}

size_t NetworkStage::slot_of(size_t chunk) const {
  return (in_.base + chunk) % c_.memory.shape().slots;
}

std::byte* NetworkStage::partial_of(const Flight& flight, size_t node) const {
  const size_t others = links_.nodes() - 1;
  const size_t index = node < links_.self() ? node : node - 1;
  const auto row = static_cast<size_t>(&flight - flights_.data());
  return c_.scratch[rail_].data() + (row * others + index) * partial_stride_;
}

bool NetworkStage::reduced_by_all(uint64_t chunk) const {
  for (size_t i = 0; i < c_.local_size(); ++i) {
    if (c_.memory.rank(i).reduced.load(std::memory_order_acquire) <= in_.base + chunk) {
      return false;
    }
  }
  return true;
}

Result<bool> NetworkStage::progress() {
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
    const Flight* before = i == 0 ? nullptr : &flights_[(first_ + i - 1) % flights_.size()];
    auto advanced = advance(flights_[(first_ + i) % flights_.size()], before);
    if (!advanced) {
      return advanced;
    }
    moved = moved || *advanced;
  }
  retire();
  return moved;
}

// Every post of one kind happens in chunk order, so that both ends of a connection agree on which
// message is which: a flight posts a kind only after the one before it has posted all of that kind.
Result<bool> NetworkStage::advance(Flight& f, const Flight* before) {
  const Chunk& chunk = plan_.chunks[f.chunk];
  bool moved = false;
  const auto run = [&](StepKind kind, bool ready, uint32_t Flight::*cursor) -> Result<> {
    const bool partial = kind == StepKind::send_partial || kind == StepKind::recv_partial;
    const auto count_of = [partial](const Chunk& c) {
      return partial ? c.partial_steps : c.result_steps;
    };
    const uint32_t first = partial ? chunk.first_step : chunk.first_step + chunk.partial_steps;
    const uint32_t count = count_of(chunk);
    const bool turn = before == nullptr || before->*cursor >= count_of(plan_.chunks[before->chunk]);
    if (!ready || !turn || f.*cursor >= count) {
      return {};
    }
    auto posted = post(f, kind, first, count, f.*cursor);
    if (!posted) {
      return tl::unexpected(posted.error());
    }
    moved = moved || *posted;
    return {};
  };
  const bool reduced = f.combined || reduced_by_all(f.chunk);
  if (auto r = run(StepKind::recv_partial, true, &Flight::recvs_posted); !r) {
    return tl::unexpected(r.error());
  }
  if (auto r = run(StepKind::send_partial, reduced, &Flight::sends_posted); !r) {
    return tl::unexpected(r.error());
  }
  auto got = reap(f.recvs, f.recv_nodes, f.recv_channels);
  if (!got) {
    return got;
  }
  moved = moved || *got;
  if (!f.combined && (before == nullptr || before->combined) && reduced && f.recvs.empty() &&
      f.recvs_posted >= chunk.partial_steps) {
    combine(f);
    moved = true;
  }
  if (auto r = run(StepKind::recv_result, f.combined, &Flight::result_recvs_posted); !r) {
    return tl::unexpected(r.error());
  }
  // What is handed on must have come first.
  const bool here = plan_.algorithm != Algorithm::chain ||
                    (f.recvs.empty() && f.result_recvs_posted >= chunk.result_steps);
  if (auto r = run(StepKind::send_result, f.combined && here, &Flight::result_sends_posted); !r) {
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
      io = link.isend(from + step.offset * element, bytes, links_.slots(), &ticket);
    } else {
      std::byte* to =
          partial ? partial_of(f, step.node) : c_.memory.output(slot) + step.offset * element;
      io = link.irecv(to, bytes, partial ? c_.scratch[rail_].region() : links_.slots(), &ticket);
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
  f.combined = true;
  if (plan_.copies) {
    return;
  }
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
                     : partial_of(f, n);
  }
  reduce(c_.memory.output(slot) + chunk.own_offset * size_of(plan_.type), plan_.type, sources,
         plan_.partial, chunk.own_count, plan_.op, plan_.divisor);
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

bool NetworkStage::complete() const { return active_ == 0 && next_ >= plan_.chunks.size(); }

int NetworkStage::awaited_rank() const {
  for (size_t i = 0; i < active_; ++i) {
    const Flight& f = flights_[(first_ + i) % flights_.size()];
    if (!f.recv_nodes.empty()) {
      return links_.peer(f.recv_nodes[0]).rank;
    }
    if (!f.send_nodes.empty()) {
      return links_.peer(f.send_nodes[0]).rank;
    }
  }
  return -1;
}

}  // namespace prunex::collective
