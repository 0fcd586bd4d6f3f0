// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/comm.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/collective/context.h"

namespace prunex::nccl::coll {
namespace {

// Of scanning, packing, reducing and unpacking in one call from NCCL's progress thread.
constexpr int64_t kBudget = int64_t{256} << 10;
constexpr uint32_t kWatchEvery = 16;  // polls without movement
constexpr size_t kFewParts = 8;       // of a window: ranks of a node

}  // namespace

CollComm::CollComm(Setup setup) : setup_(std::move(setup)), nodes_(setup_.addresses.size()) {
  // Chunks small enough that one step of a poll is short, and parts of them worth a message.
  tuning_.chunk_bytes = std::clamp<size_t>(nodes_ * (32 << 10), 128 << 10, 256 << 10);
  if (setup_.config.chunk_bytes > 0) {
    tuning_.chunk_bytes = std::max<size_t>(64, setup_.config.chunk_bytes / 64 * 64);
  }
  tuning_.min_chunk_bytes = std::min<size_t>(32 << 10, tuning_.chunk_bytes);
  if (setup_.config.algorithm == "exchange") {
    tuning_.forced = static_cast<int>(collective::Algorithm::exchange);
  } else if (setup_.config.algorithm == "scatter") {
    tuning_.forced = static_cast<int>(collective::Algorithm::scatter);
  }
  for (Request& r : requests_) {
    r.comm = this;
    r.parts.reserve(kFewParts);
  }
  transport::Transport* const transport =
      setup_.links == nullptr ? nullptr : setup_.transport.get();
  pieces_.reserve(kUnderWay);  // they stay where they are
  for (size_t i = 0; i < kUnderWay; ++i) {
    Piece& p = pieces_.emplace_back(transport, setup_.links.get(), nodes_, setup_.self);
    reset_block_map(p.map, kPieceBytes, block_bytes_for(nodes_));
  }
  messages_.resize(nodes_);
  sources_.resize(nodes_);
}

CollStats CollComm::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

Result<bool> CollComm::test(Request& request) {
  if (dead_) {
    return tl::unexpected(*dead_);
  }
  if (request.pieces_left > 0) {
    if (auto polled = poll(); !polled) {
      return tl::unexpected(polled.error());
    }
  }
  if (request.pieces_left > 0) {
    return false;
  }
  request.used = false;
  return true;
}

Result<> CollComm::poll() {
  if (idle()) {
    return {};
  }
  const int64_t begin = now_ns();
  auto polled = [this]() -> Result<> {
    try {
      return poll_pieces();
    } catch (const std::exception& e) {  // half a step was done: there is no going on
      return fail(Code::memory, strf("this node has no memory for a call (%s)", e.what()));
    }
  }();
  {
    const std::lock_guard lock(stats_mutex_);
    stats_.busy_ns += static_cast<uint64_t>(now_ns() - begin);
    stats_.wire_bytes = setup_.links == nullptr ? 0 : setup_.links->bytes_sent;
    publish();
  }
  return polled ? polled : tl::unexpected(die(polled.error()));
}

Result<> CollComm::poll_pieces() {
  int64_t budget = kBudget;
  bool moved = false;
  if (setup_.links != nullptr && !setup_.links->all_sent()) {
    setup_.links->progress_calls();
  }
  open_pieces();
  for (size_t i = 0; i < under_way_ && budget > 0; ++i) {
    auto one = poll_piece(i, &budget);
    if (!one) {
      return tl::unexpected(one.error());
    }
    moved = moved || *one;
    if (piece_at(i).phase < Phase::agreed) {
      break;  // the next needs what all nodes will have learned from this one
    }
  }
  pop_finished();
  idle_polls_ = moved ? 0 : idle_polls_ + 1;
  return idle_polls_ % kWatchEvery == kWatchEvery - 1 ? watch_for_aborts() : Result<>();
}

Result<bool> CollComm::poll_piece(size_t index, int64_t* budget) {
  Piece& p = piece_at(index);
  bool moved = false;
  if (p.phase < Phase::agreed) {
    auto agreed = agree(p, budget);
    if (!agreed) {
      return agreed;
    }
    moved = *agreed;
  }
  // Messages keep the order of pieces on every connection.
  if (p.phase == Phase::agreed) {
    const Piece* before = index == 0 ? nullptr : &piece_at(index - 1);
    if (before == nullptr ||
        (before->phase >= Phase::moving && (!before->transfers || before->transfer.posted()))) {
      start(p);
      moved = true;
    }
  }
  if (p.phase == Phase::moving) {
    auto one = move(p, budget);
    if (!one) {
      return one;
    }
    moved = moved || *one;
  }
  return moved;
}

void CollComm::pop_finished() {
  while (under_way_ > 0 && piece_at(0).phase == Phase::finished) {
    finish(piece_at(0));
    piece_at(0).renew();
    oldest_ = slot_of(1);
    --under_way_;
  }
}

}  // namespace prunex::nccl::coll
