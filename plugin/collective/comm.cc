// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/comm.h"

#include <algorithm>

#include "kernels/pack.h"
#include "plugin/base/digest.h"
#include "plugin/base/log.h"
#include "plugin/base/text.h"
#include "plugin/collective/plan_move.h"

namespace prunex::collective {
namespace {

constexpr size_t kCacheLimit = 256;  // plans; then the cache starts afresh

// Payload bytes that one leader would send for a dense call of `elements`.
uint64_t dense_wire_bytes(const topo::World& world, const CallSpec& spec, const Tuning& tuning) {
  const Traffic traffic{spec.scope == Scope::node ? 1 : world.nodes.size(),
                        size_of(partial_type(spec.type, spec.op)), size_of(spec.type)};
  return wire_bytes(choose_algorithm(tuning, traffic, spec.count), traffic, spec.count);
}

uint64_t extra_digest_of(const CallSpec& spec) {
  return spec.collective == Collective::all_reduce
             ? spec.extra_digest
             : Digest(2).add(spec.collective).add(spec.root).value();
}

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::differ:
      return "ranks disagree: nothing written";
    case Outcome::violated:
      return "dropped elements are not zero: nothing written, once more";
    case Outcome::done:
      break;
  }
  return "done";
}

std::string what_it_moves(const Plan& plan, const CallSpec& spec, const Layout& layout) {
  constexpr const char* kScopes[] = {"world", "node", "leaders"};
  const std::string mode =
      layout.dense() ? "dense"
                     : strf("compact, %llu kept", static_cast<unsigned long long>(layout.kept));
  const bool adds = plan.collective == Collective::all_reduce;
  return strf("%s of %s %s over %s, %s, %s in %s of up to %zu bytes",
              adds ? prunex::name_of(plan.op) : name_of(plan.collective),
              counted(spec.count, "element").c_str(), prunex::name_of(plan.type),
              kScopes[static_cast<size_t>(plan.scope)], mode.c_str(), name_of(plan.algorithm),
              counted(plan.chunks.size(), "chunk").c_str(),
              plan.chunk_elements * size_of(plan.type));
}

std::string time_of_stages(const StageTimes& before, const StageTimes& after) {
  const auto us = [](uint64_t a, uint64_t b) { return static_cast<double>(b - a) / 1e3; };
  return strf("%.1f us (busy: pack %.1f, reduce %.1f, agree %.1f, between nodes %.1f, unpack %.1f)",
              us(before.total, after.total), us(before.pack, after.pack),
              us(before.reduce, after.reduce), us(before.agree, after.agree),
              us(before.inter, after.inter), us(before.unpack, after.unpack));
}

}  // namespace

Comm::Comm(const CommOptions& options) : options_(options) {}

Comm::~Comm() {
  {
    const std::lock_guard lock(queue_mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) {
    thread_.join();  // serves what is queued first
  }
  if (context_.memory) {
    context_.memory.rank(context_.local).closed.store(1, std::memory_order_release);
    context_.memory.ring();
  }
}

Result<> Comm::call(const CallSpec& spec) {
  {
    std::unique_lock lock(queue_mutex_);
    if (busy_ || !queue_.empty()) {
      auto request = std::make_shared<Request>();
      request->spec = spec;
      queue_.push_back(request);
      lock.unlock();
      wake();
      return request->wait();
    }
    busy_ = true;
  }
  Result<> result = run(spec);
  bool more = false;
  {
    const std::lock_guard lock(queue_mutex_);
    busy_ = false;
    more = !queue_.empty() || stop_;
  }
  idle_.notify_all();
  if (more) {
    wake();
  }
  return result;
}

// Without memory a rank cannot do its part of the call: the others must not wait for it.
Result<> Comm::run(const CallSpec& spec) {
  try {
    return run_if_alive(spec);
  } catch (const std::exception& e) {
    return tl::unexpected(
        die(Error{Code::memory,
                  strf("rank %d has no memory for a call of %llu "
                       "elements (%s)",
                       context_.rank, static_cast<unsigned long long>(spec.count), e.what()),
                  0, context_.rank}));
  }
}

Result<> Comm::run_if_alive(const CallSpec& spec) {
  if (!dead_) {
    if (auto verdict = control_->aborted()) {
      dead_ = to_error(*verdict);
    }
  }
  if (dead_) {
    return tl::unexpected(*dead_);
  }
  return spec.announced != nullptr ? run_announced(spec) : run_alive(spec);
}

std::shared_ptr<const Plan> Comm::plan_for(const PlanRequest& request) {
  const uint64_t key = Digest()
                           .add(request.elements)
                           .add(request.type)
                           .add(request.op)
                           .add(request.scope)
                           .add(request.dense_elements)
                           .add(request.collective)
                           .add(request.root)
                           .value();
  if (const auto found = plans_.find(key); found != plans_.end()) {
    return found->second;
  }
  if (plans_.size() >= kCacheLimit) {
    plans_.clear();
  }
  auto plan = std::make_shared<const Plan>(
      make_plan(context_.world, context_.rank, request, context_.tuning));
  plans_.emplace(key, plan);
  return plan;
}

Result<Outcome> Comm::exchange(const CallSpec& spec, const MaskedLayout& masked, bool audited,
                               bool counted) {
  static const Layout nothing = dense_layout(0);
  const Layout& moved = spec.announced != nullptr ? nothing : masked.layout;
  const uint64_t dense = spec.announced != nullptr ? 0 : spec.count;
  const auto plan =
      plan_for({moved.kept, spec.type, spec.op, spec.scope, dense, spec.collective, spec.root});
  ExchangeInput in;
  in.plan = plan.get();
  in.layout = &moved;
  in.send = spec.send;
  in.recv = spec.recv;
  in.audited = audited;
  in.counted = counted;
  in.timeout_s = options_.config.timeout_s;
  in.base = base_;
  CallHeader& h = in.header;
  in.turn = ++turn_;
  sequence_ += spec.scope == Scope::node ? 0 : 1;
  h.sequence = sequence_;
  h.count = spec.count;
  h.shape_digest = masked.layout.shape_digest;
  h.mask_digest = masked.digest;
  h.extra_digest = extra_digest_of(spec);
  h.op = static_cast<uint8_t>(spec.op);
  h.dtype = static_cast<uint8_t>(spec.type);
  h.scope = static_cast<uint8_t>(spec.scope);
  h.audited = audited ? 1 : 0;
  h.wire_kept = masked.layout.kept;
  attempted_end_ = in.end();

  const StageTimes before = context_.times;
  const uint64_t sent = bytes_between_nodes(&LeaderLinks::bytes_sent);
  const uint64_t received = bytes_between_nodes(&LeaderLinks::bytes_received);
  Exchange one(context_, in);
  auto outcome = one.run();
  PRUNEX_LOG(
      trace, "exchange %llu: %s; sent %llu and received %llu bytes; %s; %s",
      static_cast<unsigned long long>(in.turn), what_it_moves(*plan, spec, moved).c_str(),
      static_cast<unsigned long long>(bytes_between_nodes(&LeaderLinks::bytes_sent) - sent),
      static_cast<unsigned long long>(bytes_between_nodes(&LeaderLinks::bytes_received) - received),
      time_of_stages(before, context_.times).c_str(),
      !outcome ? outcome.error().text.c_str() : name_of(*outcome));
  if (!outcome) {
    return tl::unexpected(die(outcome.error()));
  }
  if (*outcome != Outcome::differ) {
    base_ = in.end();
  }
  settling_ = one.beyond_node() ? Scope::world : Scope::node;
  if (*outcome == Outcome::done) {  // otherwise the call is made again, and counted then
    const std::lock_guard lock(stats_mutex_);
    stats_.dropped_nonzero += one.dropped.projected;
  }
  return outcome;
}

Result<> Comm::run_alive(const CallSpec& spec) {
  const Effective e = effective(spec);  // a copy: recovery may clear the cache
  const bool audited = e.lossless || sample_due(spec, e);
  auto outcome = exchange(spec, *e.masked, audited, audited || e.projected);
  if (!outcome) {
    return tl::unexpected(outcome.error());
  }
  Result<> result;
  if (*outcome == Outcome::differ) {
    result = resolve_difference(spec, *e.masked);
  } else if (*outcome == Outcome::violated) {
    result = resolve_violation(spec, *e.masked);
  }
  if (result) {
    count(spec, e.compact && *outcome == Outcome::done);
  }
  refresh_stats();
  return result;
}

void Comm::count(const CallSpec& spec, bool compact) {
  const bool adds = spec.collective == Collective::all_reduce;
  const uint64_t dense = adds ? dense_wire_bytes(context_.world, spec, context_.tuning) : 0;
  uint64_t moved = 0;
  if (!adds) {
    const auto plan = plan_for(
        {spec.count, spec.type, spec.op, spec.scope, spec.count, spec.collective, spec.root});
    moved = plan->moves() ? sent_bytes(*plan, context_.world, context_.rank) : 0;
  }
  const std::lock_guard lock(stats_mutex_);
  ++stats_.calls;
  ++(compact ? stats_.calls_compact : stats_.calls_dense);
  stats_.bytes_logical += spec.count * size_of(spec.type);
  stats_.bytes_dense += moved;
  for (const auto& links : context_.links) {
    stats_.bytes_dense += links != nullptr ? dense / context_.links.size() : 0;
  }
}

uint64_t Comm::bytes_between_nodes(uint64_t LeaderLinks::*direction) const {
  uint64_t bytes = 0;
  for (const auto& links : context_.links) {
    bytes += links != nullptr ? (*links).*direction : 0;
  }
  return bytes;
}

void Comm::refresh_stats() {
  const std::lock_guard lock(stats_mutex_);
  stats_.bytes_sent = bytes_between_nodes(&LeaderLinks::bytes_sent);
  stats_.bytes_received = bytes_between_nodes(&LeaderLinks::bytes_received);
  stats_.times = context_.times;
}

CommStats Comm::stats() const {
  const P2pCounters m = messages_ ? messages_->counters() : P2pCounters{};
  const std::lock_guard lock(stats_mutex_);
  CommStats s = stats_;
  s.calls += m.messages;
  s.calls_dense += m.messages;
  s.bytes_logical += m.bytes_logical;
  s.bytes_sent += m.wire_sent;
  s.bytes_received += m.wire_received;
  s.bytes_dense += m.payload;
  return s;
}

// From one rank's finding to the story that all survivors tell. The communicator is dead after it.
Error Comm::die(const Error& finding) {
  Verdict mine;
  mine.culprit = finding.rank < 0 ? context_.rank : finding.rank;
  mine.code = finding.code;
  mine.text = finding.text;
  const bool late = mine.code == Code::timeout;
  context_.memory.set_culprit({mine.culprit, late});
  context_.memory.ring();
  if (!context_.links.empty() && context_.links[0] != nullptr) {
    CallHeader h;
    h.kind = MessageKind::abort;
    h.sequence = sequence_;
    h.culprit = mine.culprit;
    h.late = late ? 1 : 0;
    (void)context_.links[0]->send_calls(h, {});
    context_.links[0]->progress();
  }
  dead_ = to_error(control_->abort(mine));
  return *dead_;
}

}  // namespace prunex::collective
