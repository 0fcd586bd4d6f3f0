// SPDX-License-Identifier: Apache-2.0
// Rank 0's end: gathers, judges, relays.
#include <algorithm>

#include "plugin/bootstrap/meeting.h"
#include "plugin/bootstrap/star.h"

namespace prunex {
namespace {

class RootStar final : public Star {
 public:
  RootStar(int size, std::vector<std::unique_ptr<Link>> links)
      : Star(0, size, std::move(links)), seats_(static_cast<size_t>(size)) {}

 private:
  struct Seat {                         // of one rank
    std::optional<std::string> record;  // for round_
    bool closed = false;                // has said goodbye
  };

  void contribute(std::string_view mine) override {
    seats_[0].record = std::string(mine);
    check_round();
  }

  void too_late(double timeout_s) override { judge_late(strf(" within %g s", timeout_s)); }

  void judge_late(const std::string& when) {
    const std::vector<int> missing = missing_ranks();
    if (!missing.empty()) {
      rule({missing.front(), Code::timeout,
            strf("%s of %d did not come to all-gather %llu%s", rank_words(missing).c_str(), size_,
                 static_cast<unsigned long long>(round_), when.c_str())});
    }
  }

  void report(const Verdict& finding) override { rule(finding); }

  // The first ruling is everybody's.
  void rule(Verdict verdict) {
    if (verdict_) {
      return;
    }
    verdict.text.resize(std::min(verdict.text.size(), wire::kMaxText));
    tell(wire::Kind::verdict, 0, wire::encode(verdict));
    judge(std::move(verdict));
  }

  void tell(wire::Kind kind, uint64_t sequence, std::string_view body) {
    const auto frame =
        std::make_shared<const std::string>(wire::encode_frame(kind, sequence, body));
    for (const auto& one : links_) {
      if (one) {
        one->post(frame);
      }
    }
  }

  [[nodiscard]] std::vector<int> missing_ranks() const {
    std::vector<int> out;
    for (int rank = 0; rank < size_; ++rank) {
      if (!seats_[static_cast<size_t>(rank)].record) {
        out.push_back(rank);
      }
    }
    return out;
  }

  void check_round() {
    if (verdict_) {
      return;
    }
    const std::vector<int> missing = missing_ranks();
    if (missing.empty()) {
      finish_round();
      return;
    }
    if (missing.size() == seats_.size()) {
      return;  // nobody waits
    }
    const auto closed = std::ranges::find_if(
        missing, [&](int rank) { return seats_[static_cast<size_t>(rank)].closed; });
    if (closed != missing.end()) {
      rule({*closed, Code::peer_lost,
            strf("rank %d has closed its communicator, while others still use theirs", *closed)});
    }
  }

  void finish_round() {
    std::vector<std::string> records;
    for (Seat& seat : seats_) {
      records.push_back(std::move(*seat.record));
      seat.record.reset();
    }
    if (size_ > 1) {
      const std::vector<std::string_view> views(records.begin(), records.end());
      tell(wire::Kind::gathered, round_, wire::encode_records(views));
    }
    deliver(std::move(records));
  }

  void hear(int rank) override {
    constexpr int kMostAtOnce = 16;  // then the others have their turn
    for (int i = 0; i < kMostAtOnce && link(rank) != nullptr; ++i) {
      Frame frame;
      switch (link(rank)->receive(
          {wire::Kind::gather, wire::Kind::give_up, wire::Kind::report, wire::Kind::goodbye},
          &frame)) {
        case Link::Got::nothing:
          return;
        case Link::Got::frame:
          obey(rank, frame);
          break;
        case Link::Got::end:
        case Link::Got::broken:
          lose(rank);
          return;
      }
    }
  }

  void lose(int rank) {
    drop(rank);
    if (!seats_[static_cast<size_t>(rank)].closed) {
      rule({rank, Code::peer_lost,
            strf("rank %d was lost: its control connection ended without a goodbye", rank)});
    }
  }

  void obey(int rank, Frame& frame) {
    Seat& seat = seats_[static_cast<size_t>(rank)];
    switch (frame.header.kind) {
      case wire::Kind::gather:
        if (frame.header.sequence != round_ || seat.record) {
          rule({rank, Code::internal,
                strf("rank %d sent all-gather %llu while %llu is due", rank,
                     static_cast<unsigned long long>(frame.header.sequence),
                     static_cast<unsigned long long>(round_))});
          return;
        }
        seat.record = std::move(frame.body);
        check_round();
        return;
      case wire::Kind::give_up:
        if (frame.header.sequence == round_) {
          judge_late(strf(" before rank %d's deadline", rank));
        }
        return;
      case wire::Kind::report:
        if (const auto finding = wire::decode_verdict(wire::bytes_of(frame.body), size_)) {
          rule(*finding);
        } else {
          lose(rank);
        }
        return;
      default:  // goodbye: receive() lets nothing else through
        seat.closed = true;
        check_round();
    }
  }

  std::vector<Seat> seats_;
};

}  // namespace

std::unique_ptr<Star> make_root_star(int size, std::vector<std::unique_ptr<Link>> links) {
  return std::make_unique<RootStar>(size, std::move(links));
}

}  // namespace prunex
