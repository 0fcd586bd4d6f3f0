// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_measure.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "plugin/base/clock.h"
#include "tools/p2p_flow.h"
#include "tools/p2p_ping.h"
#include "tools/p2p_result.h"

namespace prunex::tools {
namespace {

constexpr int kIdleLooks = 16;  // polls without result before the processor is lent out
// Over RDMA, where no call of this loop moves a byte: when nothing has come for that long, and
// nothing was packed or unpacked, it sleeps for a part of the wait so far. A device in software
// works on the processors that the loop would spin on, and no other leaves such gaps with several
// messages posted. (perftest's server of ib_write_bw does not poll at all.)
constexpr int64_t kNapAfterNs = 50'000;
constexpr int64_t kNapPart = 4;

// Buffers of one size, and what was registered for them.
struct Buffers {
  const P2pSession& s;
  P2pSlots send, recv, expected;
  void *send_mr = nullptr, *recv_mr = nullptr;
  prunex_mask_t mask = 0;

  explicit Buffers(const P2pSession& session) : s(session) {}
  ~Buffers() {
    if (send_mr != nullptr) {
      (void)s.link.api().dereg_mr(s.link.send_comm(), send_mr);
    }
    if (recv_mr != nullptr) {
      (void)s.link.api().dereg_mr(s.link.recv_comm(), recv_mr);
    }
    s.library.withdraw(mask);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Result<> make(uint64_t bytes) {
    const int slots = s.spec.slots();
    for (P2pSlots* one : {&send, &recv, &expected}) {
      if (one == &expected && !s.spec.check) {
        continue;
      }
      auto made = make_slots(bytes, slots);
      if (!made) {
        return tl::unexpected(made.error());
      }
      *one = std::move(*made);
    }
    fill_slots(s.spec, s.rank, slots, send);
    if (s.spec.check) {
      fill_slots(s.spec, 1 - s.rank, slots, expected);
    }
    if (s.spec.pattern == P2pPattern::mask) {
      auto published = s.library.publish(send);
      if (!published) {
        return tl::unexpected(published.error());
      }
      mask = *published;
    }
    NetApi& api = s.link.api();
    if (const int r =
            api.reg_mr(s.link.send_comm(), send.buffer.data(), send.buffer.size(), &send_mr);
        r != 0) {
      return tl::unexpected(net_error(api, "regMr", r));
    }
    const int r = api.reg_mr(s.link.recv_comm(), recv.buffer.data(), recv.buffer.size(), &recv_mr);
    return r == 0 ? Result<>() : tl::unexpected(net_error(api, "regMr", r));
  }
  FlowEnd sender() { return end_of(s.link.send_comm(), send_mr, &send); }
  FlowEnd receiver() { return end_of(s.link.recv_comm(), recv_mr, &recv); }

 private:
  FlowEnd end_of(void* comm, void* mr, P2pSlots* slots) {
    FlowEnd end;
    end.api = &s.link.api();
    end.comm = comm;
    end.mr = mr;
    end.slots = slots;
    end.slot_count = s.spec.slots();
    end.inflight = s.spec.inflight;
    end.receives = s.spec.receives();
    end.batch = s.spec.batch();
    end.in_turn = s.link.transport().empty();
    if (s.link.transport() != "verbs") {
      end.window = kP2pPeakBytes / slots->bytes + 1;
    }
    end.check = s.spec.check;
    return end;
  }
};

struct Limits {
  uint64_t iters;
  double seconds;  // 0: no limit
};

class Idling {
 public:
  explicit Idling(const P2pSession& s)
      : naps_((s.link.transport() == "verbs" || s.spec.network == "IB") && s.spec.receives() > 1),
        packs_(s.spec.pattern != P2pPattern::dense),
        session_(s),
        stall_(s.peer) {}
  void moved() {
    looks_ = 0;
    since_ns_ = 0;
    stall_.moved();
  }
  Result<> wait() {
    if (++looks_ < kIdleLooks) {
      return {};
    }
    if (auto fine = stall_.check(); !fine) {
      return fine;
    }
    const int64_t now = now_ns();
    since_ns_ = since_ns_ == 0 ? now : since_ns_;
    if (naps_ && now - since_ns_ >= kNapAfterNs && !has_packed(now)) {
      const timespec nap{0, static_cast<long>(std::min((now - since_ns_) / kNapPart, kMostNapNs))};
      ::nanosleep(&nap, nullptr);
    } else {
      ::sched_yield();
    }
    return {};
  }

 private:
  // Longer, and the scheduler moves the sender's program to this one's processor, away from the
  // device in software that it feeds.
  static constexpr int64_t kMostNapNs = 1'000'000;
  // A long message is packed by many of the loop's calls. true: it was, since the last question.
  bool has_packed(int64_t now) {
    prunex_net_stats_t stats{};
    if (!packs_ || !session_.library.stats(&stats)) {
      return false;
    }
    const uint64_t before = std::exchange(packed_ns_, stats.pack_ns + stats.unpack_ns);
    since_ns_ = packed_ns_ == before ? since_ns_ : now;
    return packed_ns_ != before;
  }

  bool naps_, packs_;
  const P2pSession& session_;
  uint64_t packed_ns_ = 0;
  int looks_ = 0;
  int64_t since_ns_ = 0;
  Stall stall_;
};

// Runs what this end has to do, in one thread, until both directions are through.
Result<> run_flows(const P2pSession& s, SendFlow* out, RecvFlow* in) {
  Idling idling(s);
  while ((out != nullptr && !out->done()) || (in != nullptr && !in->done())) {
    bool moved = false;
    if (out != nullptr && !out->done()) {
      const auto step = out->step();
      if (!step) {
        return tl::unexpected(step.error());
      }
      moved = *step;
    }
    if (in != nullptr && !in->done()) {
      const auto step = in->step();
      if (!step) {
        return tl::unexpected(step.error());
      }
      moved = moved || *step;
    }
    if (moved) {
      idling.moved();
    } else if (auto fine = idling.wait(); !fine) {
      return fine;
    }
  }
  return {};
}

Result<> stream(const P2pSession& s, Buffers& b, const Limits& limits, EndResult& r) {
  const bool sends = s.rank == 0 || s.spec.bidirectional;
  const bool receives = s.rank == 1 || s.spec.bidirectional;
  SendFlow out;
  RecvFlow in;
  if (auto together = s.peer.barrier(); !together) {
    return together;
  }
  const int64_t now = now_ns();
  if (sends) {
    out.start(b.sender(), limits.iters,
              limits.seconds > 0 ? now + static_cast<int64_t>(limits.seconds * 1e9) : 0);
  }
  if (receives) {
    in.start(b.receiver(), s.spec.check ? &b.expected : nullptr);
  }
  if (auto done = run_flows(s, sends ? &out : nullptr, receives ? &in : nullptr); !done) {
    return done;
  }
  r.sent = sends ? out.messages() : 0;
  r.ended = sends ? out.ended() : 0;
  r.time = out.time();
  r.send_seconds = sends ? out.seconds() : 0;
  r.send_peak = out.peak_per_second();
  r.received = receives ? in.messages() : 0;
  r.errors += receives ? in.errors() : 0;
  if (receives) {
    r.receive_seconds = in.seconds();
    r.receive_peak = in.peak_per_second();
  }
  return {};
}

Result<> once(const P2pSession& s, Buffers& b, const Limits& limits, EndResult& r) {
  if (!s.spec.latency) {
    return stream(s, b, limits, r);
  }
  if (auto together = s.peer.barrier(); !together) {
    return together;
  }
  PingPong ping(s, b.sender(), b.receiver(), s.spec.check ? &b.expected : nullptr);
  if (auto done = s.rank == 0 ? ping.serve(limits.iters, limits.seconds) : ping.answer(); !done) {
    return done;
  }
  r.sent = r.received = ping.messages();
  r.ended = ping.ended();
  r.errors += ping.errors();
  r.receive_seconds = ping.seconds();
  r.time = ping.time();
  return {};
}

void count_kinds(const prunex_net_stats_t& a, const prunex_net_stats_t& z, EndResult& r) {
  const prunex_net_kind_t* before[] = {&a.sent_raw, &a.sent_zero_block, &a.sent_masked};
  const prunex_net_kind_t* after[] = {&z.sent_raw, &z.sent_zero_block, &z.sent_masked};
  for (size_t i = 0; i < 3; ++i) {
    r.kinds.messages[i] = after[i]->messages - before[i]->messages;
    r.kinds.logical[i] = after[i]->bytes_logical - before[i]->bytes_logical;
    r.kinds.wire[i] = after[i]->bytes_wire - before[i]->bytes_wire;
  }
  r.kinds.messages[0] -= std::min(r.kinds.messages[0], r.ended);  // none of the user's
  r.pack_ns = z.pack_ns - a.pack_ns;
  r.unpack_ns = z.unpack_ns - a.unpack_ns;
}

}  // namespace

bool sender_clock(const P2pSpec& spec, const std::string& transport) {
  return spec.op == P2pOp::write && !spec.latency && spec.pattern == P2pPattern::dense &&
         transport == "verbs";
}

Result<P2pRow> measure_p2p(const P2pSession& s, uint64_t bytes) {
  Buffers b(s);
  if (auto made = b.make(bytes); !made) {
    return tl::unexpected(made.error());
  }
  EndResult mine;
  if (s.spec.warmup > 0) {
    if (auto warm = once(s, b, {s.spec.warmup, kP2pWarmupCapSeconds}, mine); !warm) {
      return tl::unexpected(warm.error());
    }
    mine.warmup_done = mine.sent;
  }
  prunex_net_stats_t before{}, after{};
  mine.has_kinds = s.library.stats(&before);
  const Limits limits =
      s.spec.duration_s > 0 ? Limits{~uint64_t{0}, s.spec.duration_s} : Limits{s.spec.iters, 0};
  if (auto done = once(s, b, limits, mine); !done) {
    return tl::unexpected(done.error());
  }
  mine.density = b.send.density;
  if (mine.has_kinds && s.library.stats(&after)) {
    count_kinds(before, after, mine);
  }
  const auto told = s.peer.exchange(encode(mine));
  if (!told) {
    return tl::unexpected(told.error());
  }
  EndResult theirs;
  if (!decode(*told, theirs)) {
    return fail(Code::mismatch, "the other end's results cannot be understood");
  }
  P2pRow row;
  row.bytes = bytes;
  const bool by_sender = sender_clock(s.spec, s.link.transport());
  row.local = part_of(s.spec, mine, theirs, bytes, by_sender);
  row.sum = row.local;
  if (s.spec.bidirectional) {
    row.remote = part_of(s.spec, theirs, mine, bytes, by_sender);
    row.sum = sum_of(row.local, *row.remote);
  }
  return row;
}

}  // namespace prunex::tools
