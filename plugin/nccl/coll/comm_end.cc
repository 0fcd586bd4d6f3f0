// SPDX-License-Identifier: Apache-2.0
// How a communicator ends: who is to blame, what the others are told, the last words.
#include <poll.h>

#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/nccl/coll/comm.h"

namespace prunex::nccl::coll {
namespace {

using collective::CallHeader;
using collective::MessageKind;

constexpr double kLastWordsS = 1.0;
constexpr double kBlameS = 0.05;

}  // namespace

// What node `from` gave up for.
Error CollComm::given_up(size_t from, const CallHeader& abort) {
  return Error{Code::peer_lost,
               abort.culprit == static_cast<int32_t>(from)
                   ? std::string("it has closed its communicator with a call open")
                   : strf("it was lost or does not answer, says node %zu", from),
               0, abort.culprit};
}

CollComm::~CollComm() {
  const CollStats s = stats();
  PRUNEX_LOG(info,
             "CollNet: node %zu of %zu: %llu calls of %llu bytes, sent %llu; %llu dense, %llu "
             "masked, %llu by their non-zero blocks, %llu violated, %llu mismatched; busy %.3f s",
             setup_.self, nodes_, static_cast<unsigned long long>(s.calls),
             static_cast<unsigned long long>(s.logical_bytes),
             static_cast<unsigned long long>(s.wire_bytes),
             static_cast<unsigned long long>(s.dense), static_cast<unsigned long long>(s.masked),
             static_cast<unsigned long long>(s.mapped), static_cast<unsigned long long>(s.violated),
             static_cast<unsigned long long>(s.mismatched), static_cast<double>(s.busy_ns) * 1e-9);
  write_metrics();
  if (setup_.links == nullptr) {
    return;
  }
  if (!dead_ && !idle()) {
    CallHeader h;
    h.kind = MessageKind::abort;
    h.sequence = sequence_;
    h.culprit = static_cast<int32_t>(setup_.self);
    (void)setup_.links->send_calls(h, {});
  }
  const Deadline deadline = Deadline::after(kLastWordsS);
  while (!dead_ && !setup_.links->all_sent() && !deadline.passed()) {
    setup_.links->progress();
    std::vector<pollfd> fds;
    setup_.links->poll_fds(fds);
    ::poll(fds.data(), fds.size(), 10);
  }
  setup_.links.reset();  // before the memory that others may still write to
}

void CollComm::publish() {
  CollCounts& all = setup_.stats->coll;
  const auto tell = [this](Count& count, uint64_t CollStats::*field) {
    count.add(stats_.*field - published_.*field);
  };
  tell(all.calls, &CollStats::calls);
  tell(all.dense, &CollStats::dense);
  tell(all.masked, &CollStats::masked);
  tell(all.unioned, &CollStats::mapped);
  tell(all.violated, &CollStats::violated);
  tell(all.mismatched, &CollStats::mismatched);
  tell(all.logical, &CollStats::logical_bytes);
  tell(all.wire, &CollStats::wire_bytes);
  tell(all.busy_ns, &CollStats::busy_ns);
  published_ = stats_;
}

// A node that gave up says why before it goes; whoever waits for its data hears it here. A
// connection that has ended is an error only when something is due on it.
Result<> CollComm::watch_for_aborts() {
  for (size_t n = 0; setup_.links != nullptr && n < nodes_; ++n) {
    if (n == setup_.self) {
      continue;
    }
    const auto peeked = setup_.links->peek_call(n);
    if (peeked && *peeked != nullptr && (*peeked)->kind == MessageKind::abort) {
      return tl::unexpected(given_up(n, **peeked));
    }
  }
  return {};
}

// A connection that ends may be that of a node which itself gave up because of another one. It says
// so in another connection, which may be a little behind.
Error CollComm::blame(Error finding) {
  if (setup_.links == nullptr || finding.code != Code::peer_lost || finding.rank < 0 ||
      static_cast<size_t>(finding.rank) >= nodes_) {
    return finding;
  }
  const Deadline deadline = Deadline::after(kBlameS);
  while (true) {
    bool gone = false;  // the accused has nothing more to say
    for (size_t n = 0; n < nodes_; ++n) {
      while (n != setup_.self) {
        const auto peeked = setup_.links->peek_call(n);
        gone = gone || (!peeked && static_cast<size_t>(finding.rank) == n);
        if (!peeked || *peeked == nullptr) {
          break;
        }
        const CallHeader header = **peeked;
        setup_.links->take_call(n);
        const bool other = header.culprit >= 0 && static_cast<size_t>(header.culprit) < nodes_ &&
                           static_cast<size_t>(header.culprit) != setup_.self;
        if (header.kind == MessageKind::abort && other) {
          return given_up(n, header);
        }
      }
    }
    if (gone || deadline.passed()) {
      return finding;
    }
    std::vector<pollfd> fds;
    setup_.links->poll_fds(fds);
    ::poll(fds.data(), fds.size(), 5);
  }
}

// The communicator's end: said once, with the node and where it is; the others are told whom to
// blame.
Error CollComm::die(Error finding) {
  finding = blame(std::move(finding));
  const int culprit = finding.rank;
  if (culprit >= 0 && static_cast<size_t>(culprit) < nodes_) {
    finding.text =
        strf("CollNet: node %d of %zu (%s): %s", culprit, nodes_,
             setup_.addresses[static_cast<size_t>(culprit)].c_str(), finding.text.c_str());
  } else {
    finding.text = "CollNet: " + finding.text;
  }
  PRUNEX_LOG(warn, "%s", finding.text.c_str());
  dead_ = finding;
  if (setup_.links != nullptr) {
    CallHeader h;
    h.kind = MessageKind::abort;
    h.sequence = sequence_;
    h.culprit = static_cast<int32_t>(culprit < 0 ? static_cast<int>(setup_.self) : culprit);
    h.late = finding.code == Code::timeout ? 1 : 0;
    (void)setup_.links->send_calls(h, {});
    setup_.links->progress();
  }
  return finding;
}

}  // namespace prunex::nccl::coll
