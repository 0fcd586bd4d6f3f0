// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/registry.h"
#include "plugin/base/log.h"
#include "plugin/nccl/net/comm.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace {

constexpr size_t kMostEncodedInFlight = 8;  // NCCL's steps; more would only take memory
constexpr double kDrainS = 1;

}  // namespace

SendComm::SendComm(Link link) : NetComm(kTag, std::move(link)) {
  for (Send& s : sends_) {
    s.owner = this;
  }
}

SendComm::~SendComm() {
  const Deadline deadline = Deadline::after(kDrainS);
  while (usable() == kSuccess && !buffer_gone() && !(waiting_.empty() && posted_.empty()) &&
         !deadline.passed()) {
    (void)pump(nullptr);
  }
  disconnect();
  lane().drain();
}

int SendComm::isend(void* data, size_t bytes, const Memory* memory, void** request) {
  *request = nullptr;
  if (const int status = usable(); status != kSuccess) {
    return status;
  }
  Send* const free = claim(sends_);
  if (free == nullptr) {
    return kSuccess;  // again
  }
  Send& s = *free;
  s.data = static_cast<const std::byte*>(data);
  s.origin = s.data;
  s.lane = memory == nullptr || bytes == 0 ? nullptr : memory->lane();
  s.bytes = bytes;
  s.registered = memory != nullptr;
  s.kind = WireKind::raw;
  s.encoded = {};
  s.piece.reset();
  s.stage = s.lane == nullptr && passes_over(bytes) ? Stage::ready : Stage::undecided;
  s.protocol = s.stage == Stage::undecided && is_looked_at(bytes)
                   ? protocol_of(thread_hint(&context()), memory, context().settings->fifo)
                   : Protocol::unknown;
  s.direct = s.lane != nullptr && memory->is_direct();
  if (s.lane != nullptr && !s.direct && bytes > s.lane->most_message()) {
    s.used = false;
    return report(too_long_to_stage(bytes, *s.lane));
  }
  *request = static_cast<Request*>(&s);
  if (s.lane == nullptr && waiting_.empty()) {
    if (s.stage == Stage::undecided) {
      decide(s);
    }
    if (s.stage == Stage::ready) {
      const transport::Io io = post_raw(s, memory);
      if (io == transport::Io::failed) {
        return broken_connection();
      }
      if (io == transport::Io::done) {
        // With nothing else under way there is nothing to reap yet, and a look costs as much as a
        // post.
        return posted_.size() == 1 ? kSuccess : reap(nullptr);
      }
    }
  }
  s.known = memory != nullptr ? memory->known : nullptr;
  waiting_.push(&s);
  return posted_.empty() ? advance() : pump(nullptr);
}

// What goes as it is, with nothing before it: NCCL's word for its buffer holds for this call.
transport::Io SendComm::post_raw(Send& s, const Memory* memory) {
  const transport::Region* const region = memory != nullptr ? memory->known->region.get() : nullptr;
  const transport::Io io = connection().isend(s.data, s.bytes, region, &s.ticket);
  if (io == transport::Io::done) {
    posted_.push(&s);
  }
  return io;
}

// Prepares and posts in order, hands bytes to the kernel, and frees what is gone.
int SendComm::pump(const Request* wanted) {
  const int status = advance();
  return status == kSuccess ? reap(wanted) : status;
}

int SendComm::advance() {
  if (const int status = usable(); status != kSuccess) {
    return status;
  }
  if (waiting_.empty()) {
    return kSuccess;
  }
  if (were_buffers_taken() && buffer_gone()) {
    return broken(buffer_was_taken());
  }
  if (waiting_.front()->lane != nullptr) {
    start_on_device();
  }
  size_t budget = kCallBudget;
  while (!waiting_.empty()) {
    Send& s = *waiting_.front();
    if (!prepare(s, &budget)) {
      if (const int status = usable(); status != kSuccess) {
        return status;
      }
      break;
    }
    const transport::Io io = post(s);
    if (io == transport::Io::failed) {
      return broken_connection();
    }
    if (io == transport::Io::again) {
      break;
    }
    waiting_.pop();
    posted_.push(&s);
  }
  return kSuccess;
}

bool SendComm::buffer_gone() const { return waiting_.any_of(lost_its_buffer<Send>); }

transport::Io SendComm::post(Send& s) {
  if (s.encoded.empty()) {
    const auto known = s.known.lock();  // taken on another thread, its region stays for the call
    if (s.registered && known == nullptr && s.staged == nullptr) {
      return transport::Io::again;  // pump() sees it
    }
    const transport::Region* const region = s.staged != nullptr ? s.lane->region()
                                            : known == nullptr  ? nullptr
                                            : s.direct          ? known->direct.get()
                                                                : known->region.get();
    return connection().isend(s.data, s.bytes, region, &s.ticket);
  }
  const transport::Region* const region = s.staged != nullptr ? s.lane->region() : s.side.region;
  const transport::Io io =
      connection().isend(s.encoded.data(), s.encoded.size(), region, &s.ticket, transport::kAside);
  if (io == transport::Io::done && s.kind == WireKind::masked) {
    encoder_.sent();
  }
  return io;
}

int SendComm::reap(const Request* wanted) {
  size_t left = kCallBudget;
  while (!posted_.empty()) {
    Send& s = *posted_.front();
    const transport::Io io = connection().test(s.ticket, nullptr);
    if (io == transport::Io::failed) {
      return broken_connection();
    }
    if (io == transport::Io::again) {
      break;
    }
    const size_t wire = s.wire_bytes();
    stats().sent[s.kind].message(s.bytes, wire);
    if (s.side) {
      free_side(s);
    }
    if (s.staged != nullptr) {
      free_staged(s);
    }
    s.done = true;
    posted_.pop();
    if (&s == wanted || wire >= left) {
      break;
    }
    left -= wire;
  }
  return kSuccess;
}

bool SendComm::prepare(Send& s, size_t* budget) {
  if (s.stage == Stage::undecided) {
    decide(s);
  }
  if (s.stage == Stage::placing) {
    s.lane != nullptr ? place(s) : begin_encoding(s);
  }
  if (s.stage == Stage::packing && !packed_by_device(s)) {
    return false;
  }
  if (s.stage == Stage::copying && !arrived_from_device(s)) {
    return false;
  }
  if (s.stage == Stage::encoding) {
    return encode(s, budget);
  }
  return s.stage == Stage::ready;
}

bool SendComm::is_looked_at(size_t bytes) const {
  return bytes >= kLeastEncoded && bytes <= kMostEncoded &&
         context().settings->config.net_mode != NetMode::passthrough;
}

// Goes as it is in any case: short, or behind looks that did not pay, where no tensor has a mask.
bool SendComm::passes_over(size_t bytes) {
  return !is_looked_at(bytes) || (context().settings->config.net_mode == NetMode::automatic &&
                                  !api::Registry::instance().has_addressed() && backoff_.skips());
}

// Raw is `ready`; a message that waits for memory is `placing`.
void SendComm::decide(Send& s) {
  const Settings& settings = *context().settings;
  const NetMode mode = settings.config.net_mode;
  // From host memory to another node's device memory, too.
  const size_t most = s.lane == nullptr && settings.config.staged_gpu
                          ? most_staged_message(settings.fifo.simple)
                          : kMostEncoded;
  const bool looked_at = is_looked_at(s.bytes) && s.protocol != Protocol::polled && s.bytes <= most;
  if (looked_at) {
    find_mask(s);
  }
  const bool may_pay = looked_at && (s.piece || mode == NetMode::compact || !backoff_.skips());
  if (s.lane != nullptr) {
    decide_on_device(s, may_pay);
  } else {
    may_pay ? begin_encoding(s) : send_raw(s);
  }
}

void SendComm::find_mask(Send& s) {
  api::RangeHit hit;
  const api::Lookup found = api::Registry::instance().find_range(s.origin, s.bytes, &hit);
  if (found == api::Lookup::stale) {
    stats().stale.add(1);
  }
  if (found != api::Lookup::hit) {
    return;
  }
  s.piece = MaskedPiece{hit.version->mask, hit.element_bytes, hit.byte_offset};
  if (s.lane != nullptr && !find_plan(s)) {
    s.piece.reset();
    return;
  }
  if (!pays_masked(*s.piece, s.bytes) || !encoder_.carries(*s.piece->mask)) {
    s.piece.reset();
    return;
  }
  s.counts = &stats().of_mask(hit.version->mask->digest, hit.version->name);
  s.violations = hit.violations;
}

// Its bytes are in host memory.
void SendComm::begin_encoding(Send& s) {
  s.stage = Stage::placing;
  if (encoded_in_flight_ >= kMostEncodedInFlight) {
    return;
  }
  if (!s.piece && !codec::worth_scanning(s.data, s.bytes)) {
    backoff_.did_not_pay();
    send_raw(s);
    return;
  }
  s.side = side_buffers().take_or_wait(encoder_.room_for(s.piece, s.bytes));
  if (!s.side) {
    return;
  }
  s.kind = s.piece ? WireKind::masked : WireKind::zero_block;
  ++encoded_in_flight_;
  encoder_.begin({s.data, s.bytes}, s.side.span(), s.piece);
  s.stage = Stage::encoding;
}

// There is something where the mask promised zeros.
void SendComm::count_violation(Send& s) {
  if (s.counts->violated.get() == 0) {
    PRUNEX_LOG(
        warn,
        "%s: a message holds non-zero bytes in places that its mask drops: it travels without "
        "the mask, as do all such; is the mask still the trainer's?",
        s.counts->name.empty() ? "a registered tensor" : s.counts->name.c_str());
  }
  stats().violated.add(1);
  s.counts->violated.add(1);
  s.violations->fetch_add(1, std::memory_order_relaxed);
}

// The message travels as if there were no mask.
bool SendComm::violated(Send& s, size_t* budget) {
  count_violation(s);
  if (codec::worth_scanning(s.data, s.bytes)) {
    s.kind = WireKind::zero_block;
    encoder_.begin({s.data, s.bytes}, s.side.span(), std::nullopt);
    return encode(s, budget);
  }
  send_raw(s);
  return true;
}

void SendComm::free_side(Send& s) {
  side_buffers().give(std::move(s.side));
  --encoded_in_flight_;
}

void SendComm::send_raw(Send& s) {
  if (s.side) {
    free_side(s);
  }
  s.kind = WireKind::raw;
  s.stage = Stage::ready;
}

bool SendComm::encode(Send& s, size_t* budget) {
  const int64_t begin = now_ns();
  codec::Encoding result = codec::Encoding::more;
  while (*budget > 0 && (result = encoder_.step(budget)) == codec::Encoding::more) {
  }
  stats().sent.codec_ns.add(static_cast<uint64_t>(now_ns() - begin));
  if (result == codec::Encoding::more) {
    return false;
  }
  if (result == codec::Encoding::violated) {
    return violated(s, budget);
  }
  const bool masked = s.kind == WireKind::masked, pays = result == codec::Encoding::done;
  if (!masked) {
    pays ? backoff_.paid() : backoff_.did_not_pay();
  }
  if (!pays) {
    send_raw(s);
    return true;
  }
  s.encoded = s.side.span().first(encoder_.size());
  s.stage = Stage::ready;
  if (masked) {
    s.counts->message(s.bytes, s.encoded.size());
  }
  return true;
}

}  // namespace prunex::nccl
