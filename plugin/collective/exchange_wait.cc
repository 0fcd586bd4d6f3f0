// SPDX-License-Identifier: Apache-2.0
// How an exchange waits: asleep, with an eye on aborts and on the deadline, and who is to blame
// after it.
#include <algorithm>

#include "plugin/collective/exchange.h"
#include "plugin/collective/point_to_point.h"

namespace prunex::collective {
namespace {

// How long a sleeper sleeps at most before it looks at deadlines and aborts again.
constexpr int64_t kNapNs = 50'000'000;
// The same where messages between two ranks are under way and their descriptors are not watched.
constexpr int64_t kShortNapNs = 1'000'000;

}  // namespace

Error to_error(const Verdict& verdict) {
  return Error{verdict.code, verdict.text, 0, verdict.culprit};
}

Error late_error(int rank, const char* what, double timeout_s) {
  return Error{Code::timeout,
               strf("rank %d did not %s within %g s (PRUNEX_TIMEOUT)", rank, what, timeout_s), 0,
               rank};
}

Result<> Exchange::wait(uint32_t seen) {
  if (auto healthy = check_health(); !healthy) {
    return healthy;
  }
  int64_t left = std::min(kNapNs, std::max<int64_t>(direct_.left_ns(), 1'000'000));
  if (c_.messages != nullptr) {
    c_.messages->progress();
    left = std::min(left, c_.messages->busy() ? kShortNapNs : kNapNs / 5);
  }
  if (!networked_ || !c_.leads_any()) {
    c_.memory.sleep(seen, left);
    c_.control->poll();  // the communicator's own thread may be the one that waits here
    return {};
  }
  c_.fds.clear();
  for (size_t rail = 0; rail < c_.links.size(); ++rail) {
    if (c_.links[rail] != nullptr) {
      c_.links[rail]->poll_fds(c_.fds);
    }
  }
  if (c_.messages != nullptr) {
    c_.messages->poll_fds(c_.fds);
  }
  c_.fds.push_back({c_.control->poll_fd(), POLLIN, 0});
  c_.memory.poll(c_.local, seen, c_.fds, left);
  c_.control->poll();
  return {};
}

Result<> Exchange::check_health() {
  if (auto verdict = c_.control->aborted()) {
    return tl::unexpected(to_error(*verdict));
  }
  if (const auto culprit = c_.memory.culprit(); culprit.rank >= 0) {
    return culprit.late
               ? tl::unexpected(late_error(culprit.rank, "answer", in_.timeout_s))
               : fail(Code::peer_lost, strf("rank %d was lost", culprit.rank), 0, culprit.rank);
  }
  for (size_t i = 0; i < c_.local_size(); ++i) {
    const RankBlock& block = c_.memory.rank(i);
    const bool needed = block.header_turn.load(std::memory_order_acquire) < in_.turn;
    if (needed && block.closed.load(std::memory_order_acquire) != 0) {
      return fail(Code::peer_lost,
                  strf("rank %d has closed its communicator, this call needs it", c_.rank_at(i)), 0,
                  c_.rank_at(i));
    }
  }
  if (direct_.passed()) {
    Error e = late(!indirect_.passed());
    if (e.rank >= 0) {
      return tl::unexpected(std::move(e));
    }
  }
  return {};
}

// Who is to blame when time is up? A local rank that has not come, or that could go on and does
// not, is known directly; a leader elsewhere may itself be waiting for one of its own.
Error Exchange::late(bool direct_only) const {
  const size_t slots = c_.memory.shape().slots;
  const auto blame = [this](int rank, const char* what) {
    return late_error(rank, what, in_.timeout_s);
  };
  for (size_t i = 0; i < c_.local_size(); ++i) {
    if (c_.memory.rank(i).header_turn.load(std::memory_order_acquire) < in_.turn) {
      return blame(c_.rank_at(i), "make this call");
    }
  }
  const uint64_t reduced = min_reduced();
  for (const int i : plan_.contributors) {
    const uint64_t packed =
        c_.memory.rank(static_cast<size_t>(i)).packed.load(std::memory_order_acquire);
    if (static_cast<size_t>(i) != c_.local && packed < in_.end() && packed < reduced + slots) {
      return blame(c_.rank_at(static_cast<size_t>(i)), "pack its part of the call");
    }
  }
  for (size_t i = 0; i < c_.local_size(); ++i) {
    const uint64_t mine = c_.memory.rank(i).reduced.load(std::memory_order_acquire);
    if (i != c_.local && mine < in_.end() && mine < min_packed() &&
        output_free(std::max(mine, in_.base) - in_.base)) {
      return blame(c_.rank_at(i), "do its part of the call");
    }
  }
  for (size_t i = 0; i < c_.local_size(); ++i) {
    const uint64_t mine = c_.memory.rank(i).unpacked.load(std::memory_order_acquire);
    if (i != c_.local && mine < in_.end() &&
        result_ready(std::max(mine, in_.base) - in_.base) == Ready::yes) {
      return blame(c_.rank_at(i), "take the result of the call");
    }
  }
  if (!direct_only) {
    if (agreement_) {
      if (const int rank = agreement_->awaited_rank(); rank >= 0) {
        return blame(rank, "answer");
      }
    }
    for (const NetworkStage& stage : stages_) {
      if (const int rank = stage.awaited_rank(); rank >= 0) {
        return blame(rank, "answer");
      }
    }
    const size_t rail = unpacked_ < plan_.chunks.size() ? plan_.chunks[unpacked_].rail : 0;
    return blame(c_.rank_at(c_.leader_locals[rail]), "finish the exchange between nodes");
  }
  return Error{Code::timeout, {}, 0, -1};
}

}  // namespace prunex::collective
