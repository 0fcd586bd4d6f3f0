// SPDX-License-Identifier: Apache-2.0
// What nodes say to each other before a piece of a call moves, and what they learn from it.
// Whatever decides anything comes from the messages of all, or from what earlier ones taught.
#include <algorithm>
#include <cstring>

#include "plugin/base/digest.h"
#include "plugin/base/log.h"
#include "plugin/nccl/coll/comm.h"

namespace prunex::nccl::coll {
namespace {

using collective::Algorithm;
using collective::Audit;
using collective::CallHeader;
using collective::Contract;
using collective::MessageKind;

constexpr size_t kMapFrom = size_t{32} << 10;  // bytes of a piece; below, a map is not worth it
constexpr uint64_t kLongestPause = 64;         // calls
constexpr uint64_t kSampleFirst = 10, kSampleEvery = 64;

// The lowest dropped element of the piece that is not zero; there is one.
uint64_t first_offender(const MaskedPiece& piece, DType type, const std::byte* tensor) {
  const CompiledMask& mask = *piece.layout->segments[0].mask;
  uint64_t begin = piece.begin, end = piece.end;
  while (end - begin > 1) {
    const uint64_t middle = begin + (end - begin) / 2;
    const Slice low{kept_before(mask, begin), kept_before(mask, middle), begin, middle};
    if (audit(*piece.layout, type, tensor, low).lossless > 0) {
      end = middle;
    } else {
      begin = middle;
    }
  }
  return begin;
}

}  // namespace

uint64_t CollComm::mask_key(const api::RangeHit& hit) {
  return Digest().add(hit.version->mask->digest).add(hit.count).add(hit.version->name).value();
}

uint64_t CollComm::piece_digest(const Piece& p) {
  const uint64_t begin = p.hit->byte_offset / size_of(p.type);
  return Digest()
      .add(p.hit->version->mask->digest)
      .add(p.hit->version->contract)
      .add(begin)
      .add(p.elements)
      .value();
}

Algorithm CollComm::algorithm_for(const Piece& p, uint64_t elements) const {
  const collective::Traffic traffic{nodes_, size_of(p.type), size_of(p.type)};
  return choose_algorithm(tuning_, traffic, elements, p.elements);
}

Result<bool> CollComm::agree(Piece& p, int64_t* budget) {
  bool moved = false;
  if (p.phase == Phase::fresh) {
    begin(p);
    moved = true;
  }
  if (p.phase == Phase::preparing) {
    if (!prepare(p, budget)) {
      return true;
    }
    if (auto said = announce(p); !said) {
      return tl::unexpected(said.error());
    }
    p.phase = Phase::announced;
    moved = true;
  }
  auto heard = hear(p);
  if (!heard) {
    return heard;
  }
  return moved || *heard;
}

// Masks that the operation cannot use, that would not pay or that broke their promise are left out.
bool CollComm::use_mask(Piece& p) {
  if (!p.hit || p.function != Function::all_reduce ||
      p.hit->version->alone->layout.segments.size() != 1) {
    return false;
  }
  const auto& alone = p.hit->version->alone;
  const uint64_t begin = p.hit->byte_offset / size_of(p.type);
  MaskedPiece piece =
      make_piece(std::shared_ptr<const Layout>(alone, &alone->layout), begin, begin + p.elements);
  const Contract contract = p.hit->version->contract;
  if (contract != Contract::project) {
    p.broken = broken_.contains(mask_key(*p.hit));
    if (p.broken || p.op != Op::sum ||
        !compaction_pays(tuning_, p.elements, piece.kept(), size_of(p.type))) {
      return false;
    }
  }
  const uint64_t calls = contract == Contract::sampled ? sampled_.count(piece_digest(p)) : 0;
  p.audited =
      contract == Contract::lossless ||
      (contract == Contract::sampled && (calls < kSampleFirst || calls % kSampleEvery == 0));
  p.kept = piece.kept();
  p.stream = Stream::masked(p.send, p.recv, p.type, std::move(piece),
                            p.audited || contract == Contract::project, p.memory);
  return true;
}

void CollComm::begin(Piece& p) {
  p.sequence = ++sequence_;
  p.phase = Phase::preparing;
  p.kept = p.elements;
  if (use_mask(p)) {
    p.wish = Wish::masked;
  } else if (p.function == Function::all_reduce && nodes_ > 1 && !p.broken &&
             p.bytes() >= kMapFrom && p.sequence >= scan_from_) {
    p.wish = Wish::mapped;
    reset_block_map(p.map, p.bytes(), block_bytes_for(nodes_));
  }
}

// true: ready to speak.
bool CollComm::prepare(Piece& p, int64_t* budget) {
  if (p.wish == Wish::masked) {
    while (!p.stream.packed() && *budget > 0) {
      *budget -= static_cast<int64_t>(p.stream.pack_step());
    }
    return p.stream.packed();
  }
  if (p.wish == Wish::mapped) {
    const size_t blocks = p.map.blocks();
    const size_t step = std::max<size_t>(64, kStepBytes / p.map.block_bytes / 64 * 64);
    while (p.scanned<blocks&& * budget> 0) {
      const size_t end = std::min(blocks, p.scanned + step);
      scan_blocks(p.map, p.send, p.scanned, end);
      *budget -= static_cast<int64_t>((end - p.scanned) * p.map.block_bytes);
      p.scanned = end;
    }
    return p.scanned == blocks;
  }
  return true;
}

void CollComm::tell_violation(Piece& p) {
  const uint64_t begin = p.hit->byte_offset / size_of(p.type);
  const auto& alone = p.hit->version->alone;
  const MaskedPiece piece =
      make_piece(std::shared_ptr<const Layout>(alone, &alone->layout), begin, begin + p.elements);
  const std::byte* tensor = p.send - p.hit->byte_offset;
  p.header.audit = Audit::violated;
  p.head.nonzero = p.stream.dropped().lossless;
  p.head.offender = first_offender(piece, p.type, tensor) - begin + p.first;
}

Result<> CollComm::announce(Piece& p) {
  CallHeader& h = p.header;
  h.sequence = p.sequence;
  h.count = p.count;
  h.op = static_cast<uint8_t>(p.op);
  h.dtype = static_cast<uint8_t>(p.type);
  h.audited = p.audited ? 1 : 0;
  h.audit = Audit::clean;
  h.wire_kept = p.kept;
  h.extra_digest =
      Digest().add(tuning_.chunk_bytes).add(tuning_.min_chunk_bytes).add(tuning_.forced).value();
  CollHead& head = p.head;
  head.function = p.function;
  head.wish = p.wish;
  head.strict = setup_.config.on_mismatch == OnMismatch::error ? 1 : 0;
  head.piece = p.index;
  head.bytes_per_rank = p.request->window.bytes_per_rank;
  head.window_offset = p.request->window.offset;
  head.window_bytes = p.request->window.bytes;
  std::span<const std::byte> body;
  if (p.wish == Wish::masked) {
    h.mask_digest = piece_digest(p);
    head.contract = static_cast<uint8_t>(p.hit->version->contract);
    if (p.stream.dropped().lossless > 0) {
      tell_violation(p);
    }
  }
  if (p.wish == Wish::mapped) {
    body = std::as_bytes(std::span<const uint64_t>(p.map.words));
    head.map_bytes = static_cast<uint32_t>(body.size());
  } else if (p.function == Function::all_reduce && nodes_ > 1 && h.audit != Audit::violated &&
             algorithm_for(p, p.kept) == Algorithm::inlined) {
    body = {p.wish == Wish::masked ? p.stream.source() : p.send, p.kept * size_of(p.type)};
    head.inlined = 1;
    head.inline_bytes = static_cast<uint32_t>(body.size());
  }
  p.payload.resize(CollHead::kWireBytes + body.size());
  encode(head, std::span<std::byte, CollHead::kWireBytes>(p.payload.data(), CollHead::kWireBytes));
  if (!body.empty()) {
    std::memcpy(p.payload.data() + CollHead::kWireBytes, body.data(), body.size());
  }
  return setup_.links == nullptr ? Result<>() : setup_.links->send_calls(h, p.payload);
}

// true: all nodes have spoken about this piece, and what becomes of it is settled.
Result<bool> CollComm::hear(Piece& p) {
  bool all = true;
  for (size_t n = 0; n < nodes_; ++n) {
    if (n == setup_.self) {
      continue;
    }
    auto peeked = setup_.links->peek_call(n);
    if (!peeked) {
      return tl::unexpected(peeked.error());
    }
    if (*peeked != nullptr && (*peeked)->kind == MessageKind::abort) {
      return tl::unexpected(given_up(n, **peeked));
    }
    all = all && *peeked != nullptr;
  }
  if (!all) {
    return false;
  }
  for (size_t n = 0; n < nodes_; ++n) {
    const bool own = n == setup_.self;
    auto message = own ? decode(p.header, p.payload)
                       : decode(**setup_.links->peek_call(n), setup_.links->payload(n));
    if (!message) {
      Error e = message.error();
      e.rank = static_cast<int>(n);
      return tl::unexpected(std::move(e));
    }
    messages_[n] = *message;
  }
  if (auto concluded = conclude(p, messages_); !concluded) {
    return tl::unexpected(concluded.error());
  }
  for (size_t n = 0; n < nodes_; ++n) {
    if (n != setup_.self) {
      setup_.links->take_call(n);
    }
  }
  p.payload.clear();
  p.phase = Phase::agreed;
  return true;
}

std::string CollComm::parameter_here(const Piece& p) {
  return p.hit && !p.hit->version->name.empty()
             ? strf("; here the buffer is parameter %s", p.hit->version->name.c_str())
             : std::string();
}

Result<> CollComm::conclude(Piece& p, std::span<const CollMessage> messages) {
  Verdict v = decide(messages);
  // Digests say that masks differ; the name says whose mask it is.
  if (v.error) {
    v.error->text += parameter_here(p);
    return tl::unexpected(*v.error);
  }
  learn(p, v, messages);
  bool mapped = v.way == Verdict::Way::mapped;
  if (mapped) {
    auto worth_it = merge_maps(p, messages);
    if (!worth_it) {
      return tl::unexpected(worth_it.error());
    }
    mapped = *worth_it;
  }
  if (v.way != Verdict::Way::masked) {
    p.stream = mapped ? Stream::mapped(p.send, p.recv, p.map, p.memory)
                      : Stream::dense(p.send, p.recv, p.bytes());
  }
  if (v.inlined) {
    combine_inlined(p, messages);
  }
  const std::lock_guard lock(stats_mutex_);
  ++(v.way == Verdict::Way::masked ? stats_.masked : mapped ? stats_.mapped : stats_.dense);
  stats_.violated += v.violated ? 1 : 0;
  stats_.mismatched += v.mismatched ? 1 : 0;
  if (v.way == Verdict::Way::masked) {
    stats_.dropped_nonzero += p.stream.dropped().projected;
  }
  return {};
}

void CollComm::learn(Piece& p, const Verdict& v, std::span<const CollMessage> messages) {
  if (v.way == Verdict::Way::masked && p.hit->version->contract == Contract::sampled) {
    sampled_.add(piece_digest(p));
  }
  if (v.violated) {
    broken_.add(mask_key(*p.hit));
    p.hit->violations->fetch_add(1);
    if (setup_.self == 0) {
      const std::string& name = p.hit->version->name;
      const CollHead& head = messages[static_cast<size_t>(v.offender)].head;
      PRUNEX_LOG(warn,
                 "CollNet: %s%s promised zeros, but node %d (%s) has %llu non-zero dropped "
                 "elements, the first at element %llu of the call's buffer; it stays dense until "
                 "its mask changes. Masked training that may have gradients there wants the "
                 "'project' contract",
                 name.empty() ? "a registered tensor" : "parameter ", name.c_str(), v.offender,
                 setup_.addresses[static_cast<size_t>(v.offender)].c_str(),
                 static_cast<unsigned long long>(head.nonzero),
                 static_cast<unsigned long long>(head.offender));
    }
  }
  if (!v.mismatched || setup_.self != 0) {
    return;
  }
  const auto other = static_cast<size_t>(v.differing);
  if (warned_.add(difference_digest(messages, other)) == 1) {
    PRUNEX_LOG(warn,
               "CollNet: %s%s; such calls go dense until the masks are the same (prunex_agree_mask "
               "makes them so; PRUNEX_ON_MISMATCH=error makes this an error); said once",
               describe_difference(messages, other).c_str(), parameter_here(p).c_str());
  }
}

// The union of what is not zero anywhere; false: too little would be saved.
Result<bool> CollComm::merge_maps(Piece& p, std::span<const CollMessage> messages) {
  for (size_t n = 0; n < nodes_; ++n) {
    if (n != setup_.self && !merge_map(p.map, messages[n].map)) {
      return fail(Code::mismatch, strf("node %zu sent a block map that does not fit its call", n),
                  0, static_cast<int>(n));
    }
  }
  const size_t kept = p.map.kept_bytes();
  if (kept > p.map.bytes - p.map.bytes / 8) {
    pause_ = pause_ == 0 ? 1 : std::min(2 * pause_, kLongestPause);
    scan_from_ = p.sequence + 1 + pause_;
    return false;
  }
  pause_ = 0;
  p.kept = kept / size_of(p.type);
  return true;
}

// Small calls: every node adds all contributions, in node order.
void CollComm::combine_inlined(Piece& p, std::span<const CollMessage> messages) {
  for (size_t n = 0; n < nodes_; ++n) {
    sources_[n] = messages[n].data.data();
  }
  if (p.stream.bytes() > 0) {
    reduce(p.stream.result(), p.type, sources_, p.type, p.stream.bytes() / size_of(p.type), p.op);
  }
  p.came_inlined = true;
}

}  // namespace prunex::nccl::coll
