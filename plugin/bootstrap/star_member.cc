// SPDX-License-Identifier: Apache-2.0
// Every other rank's end: one connection, to rank 0.
#include "plugin/bootstrap/meeting.h"
#include "plugin/bootstrap/star.h"

namespace prunex {
namespace {

std::vector<std::unique_ptr<Link>> only(std::unique_ptr<Link> root) {
  std::vector<std::unique_ptr<Link>> out;
  out.push_back(std::move(root));
  return out;
}

class MemberStar final : public Star {
 public:
  MemberStar(int rank, int size, std::unique_ptr<Link> root)
      : Star(rank, size, only(std::move(root))) {}

 private:
  void contribute(std::string_view mine) override {
    waiting_ = true;
    if (root_closed_) {
      judge(closed());
      return;
    }
    link(0)->post(wire::Kind::gather, round_, mine);
  }

  void too_late(double /*timeout_s*/) override {
    if (link(0) != nullptr) {
      link(0)->post(wire::Kind::give_up, round_);
    }
  }

  void report(const Verdict& finding) override {
    if (link(0) == nullptr || root_closed_) {
      judge(finding);  // nobody left to ask
      return;
    }
    link(0)->post(wire::Kind::report, 0, wire::encode(finding));
  }

  void hear(int rank) override {
    constexpr int kMostAtOnce = 16;
    for (int i = 0; i < kMostAtOnce && link(rank) != nullptr; ++i) {
      Frame frame;
      switch (link(rank)->receive({wire::Kind::gathered, wire::Kind::verdict, wire::Kind::goodbye},
                                  &frame)) {
        case Link::Got::nothing:
          return;
        case Link::Got::frame:
          obey(frame);
          break;
        case Link::Got::end:
        case Link::Got::broken:
          lose();
          return;
      }
    }
  }

  void lose() {
    drop(0);
    if (!root_closed_) {
      judge(
          {0, Code::peer_lost, "rank 0 was lost: its control connection ended without a goodbye"});
    }
  }

  [[nodiscard]] static Verdict closed() {
    return {0, Code::peer_lost,
            "rank 0 has closed its communicator, while others still use theirs"};
  }

  void obey(Frame& frame) {
    switch (frame.header.kind) {
      case wire::Kind::gathered:
        if (waiting_ && frame.header.sequence == round_) {
          waiting_ = false;
          deliver(wire::decode_records(wire::bytes_of(frame.body), size_));
        }
        return;
      case wire::Kind::verdict:
        if (auto verdict = wire::decode_verdict(wire::bytes_of(frame.body), size_)) {
          judge(std::move(*verdict));
        } else {
          lose();
        }
        return;
      default:  // goodbye
        root_closed_ = true;
        if (waiting_) {
          judge(closed());
        }
    }
  }

  bool root_closed_ = false;
  bool waiting_ = false;  // for the result of round_
};

}  // namespace

std::unique_ptr<Star> make_member_star(int rank, int size, std::unique_ptr<Link> root) {
  return std::make_unique<MemberStar>(rank, size, std::move(root));
}

}  // namespace prunex
