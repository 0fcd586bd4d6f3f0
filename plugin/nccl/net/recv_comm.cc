// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plugin/api/registry.h"
#include "plugin/base/copy.h"
#include "plugin/nccl/net/comm.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace {

std::shared_ptr<const CompiledMask> registered_mask(uint64_t digest) {
  return api::Registry::instance().find_digest(digest);
}

}  // namespace

RecvComm::RecvComm(Link link) : NetComm(kTag, std::move(link)), decoder_(&registered_mask) {
  for (Recv& r : recvs_) {
    r.owner = this;
  }
}

int RecvComm::irecv(void* data, size_t bytes, const Memory* memory, bool polled, void** request) {
  *request = nullptr;
  if (const int status = usable(); status != kSuccess) {
    return status;
  }
  Recv* const free = claim(recvs_);
  if (free == nullptr) {
    return kSuccess;  // again
  }
  Recv& r = *free;
  r.data = static_cast<std::byte*>(data);
  r.capacity = bytes;
  r.lane = memory == nullptr || bytes == 0 ? nullptr : memory->lane();
  r.direct = r.lane != nullptr && memory->is_direct();
  r.registered = memory != nullptr;
  r.known = memory != nullptr ? memory->known : nullptr;
  r.polled = polled && r.lane == nullptr;  // nobody polls what comes in any order
  r.expanded = false;
  if (r.lane != nullptr && !r.direct && bytes > r.lane->most_message()) {
    r.used = false;
    return report(too_long_to_stage(bytes, *r.lane));
  }
  if (r.lane != nullptr && !find_room(r)) {
    r.used = false;
    return kSuccess;
  }
  const bool staged = r.lane != nullptr && !r.direct;
  const transport::Region* const region = memory == nullptr ? nullptr
                                          : staged          ? r.lane->region()
                                          : r.direct        ? memory->known->direct.get()
                                                            : memory->known->region.get();
  const transport::Io io =
      connection().irecv(staged ? r.staged : r.data, r.capacity, region, &r.ticket, &r);
  if (io == transport::Io::done) {
    posted_.push(&r);
    *request = static_cast<Request*>(&r);
    return kSuccess;
  }
  free_encoded(r);
  r.used = false;
  return io == transport::Io::failed ? broken_connection() : kSuccess;
}

// For the message, and for its encoded form: it is one or the other. Now, since whoever has a
// message cannot be told to wait. false: there is no room while others are on their way.
bool RecvComm::find_room(Recv& r) {
  const size_t most = std::min({r.capacity, kMostEncoded, r.lane->most_message()});
  const size_t encoded = r.capacity >= kLeastEncoded ? most + kSideSlack : 0;
  r.staged_bytes = std::max(r.direct ? 0 : r.capacity, encoded);
  r.staged = r.staged_bytes > 0 ? r.lane->take(r.staged_bytes) : nullptr;
  return r.staged != nullptr || r.staged_bytes == 0;
}

// The encoded form is shorter than the message, but for headers and a mask.
transport::Aside::Room RecvComm::Recv::room(size_t bytes_wanted) {
  side_bytes = bytes_wanted;
  if (lane != nullptr) {
    return bytes_wanted <= staged_bytes ? Room{staged, lane->region()} : Room{};
  }
  if (bytes_wanted > std::min(capacity, kMostEncoded) + kSideSlack) {
    return {};
  }
  side = static_cast<RecvComm*>(owner)->side_buffers().take(bytes_wanted);
  return {side.memory, side.region};
}

// NCCL asks before a GPU reads what arrived, where it knows that it may be late. The other ways
// into device memory were events.
int RecvComm::flush(const Memory& memory) {
  if (const int status = usable(); status != kSuccess) {
    return status;
  }
  return !memory.is_direct() || memory.lane()->flush() ? kSuccess : broken(memory.lane()->error());
}

int RecvComm::pump(const Request* wanted) {
  if (const int status = usable(); status != kSuccess) {
    return status;
  }
  if (were_buffers_taken() &&
      (posted_.any_of(lost_its_buffer<Recv>) || encoded_.any_of(lost_its_buffer<Recv>))) {
    return broken(buffer_was_taken());
  }
  if (const int status = arrive(wanted); status != kSuccess) {
    return status;
  }
  if (!encoded_.empty()) {
    size_t budget = kCallBudget;
    if (const int status = decode(&budget); status != kSuccess) {
      return status;
    }
  }
  return copying_.empty() ? kSuccess : reap_copies();
}

// All bytes are where they belong, or their way to the device's memory is enqueued: nothing of such
// a receive is there before its event.
int RecvComm::finish(Recv& r) {
  if (r.lane == nullptr || r.bytes == 0 || (r.direct && !r.expanded)) {
    if (r.lane != nullptr && r.bytes > 0) {
      stats().device.direct.message(r.bytes);
    }
    free_encoded(r);
    r.done = true;
    return kSuccess;
  }
  const bool good = r.expanded ? !r.lane->failed() && r.lane->mark(slot_of(r))
                               : r.lane->start(slot_of(r), r.data, r.staged, r.bytes);
  if (!good) {
    return broken(r.lane->error());
  }
  if (!r.expanded) {
    stats().device.staged.message(r.bytes);
  }
  copying_.push(&r);
  return kSuccess;
}

int RecvComm::reap_copies() {
  while (!copying_.empty()) {
    Recv& r = *copying_.front();
    const LaneState state = r.lane->state(slot_of(r));
    if (state == LaneState::failed) {
      return broken(r.lane->error());
    }
    if (state == LaneState::busy) {
      break;
    }
    free_encoded(r);
    r.done = true;
    copying_.pop();
  }
  return kSuccess;
}

int RecvComm::arrive(const Request* wanted) {
  size_t left = kCallBudget;
  while (!posted_.empty()) {
    Recv& r = *posted_.front();
    size_t bytes = 0;
    transport::Mark mark = 0;
    const transport::Io io = connection().test(r.ticket, &bytes, &mark);
    if (io == transport::Io::failed) {
      return broken_connection();
    }
    if (io == transport::Io::again) {
      break;
    }
    posted_.pop();
    if ((mark & transport::kAside) != 0) {
      encoded_.push(&r);
    } else {
      r.bytes = bytes;
      stats().received[WireKind::raw].message(bytes, bytes);
      if (const int status = finish(r); status != kSuccess) {
        return status;
      }
    }
    if (&r == wanted || bytes >= left) {
      break;
    }
    left -= bytes;
  }
  return kSuccess;
}

void RecvComm::begin_decoding(Recv& r) {
  // A GPU that polls the buffer wants whole words in order: expand elsewhere, then copy.
  std::span<std::byte> into{r.data, r.capacity};
  if (r.polled) {
    bounce_ = side_buffers().take(r.capacity);
    into = bounce_.span().first(r.capacity);
  }
  r.expanded = true;
  if (r.lane != nullptr) {
    unpacking_.begin(*r.lane, r.data);
  }
  decoder_.begin(r.encoded(), into, r.lane != nullptr ? &unpacking_ : nullptr);
  decoding_ = true;
}

// And the room for it.
void RecvComm::free_encoded(Recv& r) {
  if (r.side) {
    side_buffers().give(std::move(r.side));
  }
  if (r.staged != nullptr) {
    r.lane->give(r.staged);
    r.staged = nullptr;
  }
  r.plan = nullptr;
}

int RecvComm::decode(size_t* budget) {
  while (!encoded_.empty() && *budget > 0) {
    Recv& r = *encoded_.front();
    if (!decoding_) {
      begin_decoding(r);
    }
    const int64_t begin = now_ns();
    const codec::Decoding result = decoder_.step(budget);
    if (result == codec::Decoding::done && r.polled) {
      copy_ascending(r.data, bounce_.memory, decoder_.logical());
    }
    stats().received.codec_ns.add(static_cast<uint64_t>(now_ns() - begin));
    if (result == codec::Decoding::more) {
      continue;
    }
    if (result == codec::Decoding::corrupt) {
      return broken(
          {Code::mismatch,
           strf("a message of %zu bytes cannot be expanded: %s; the stream was damaged, or "
                "the two ends run different builds [%s]",
                r.side_bytes, decoder_.fault().c_str(), connection().describe().c_str())});
    }
    r.bytes = decoder_.logical();
    stats().received[decoder_.kind()].message(r.bytes, r.side_bytes);
    if (r.lane != nullptr) {
      r.plan = unpacking_.release();
      unpacking_.by_kernels() > 0 ? stats().device.unpacked.message(r.bytes)
                                  : stats().device.staged.message(r.bytes);
    } else {
      side_buffers().give(std::move(r.side));
    }
    side_buffers().give(std::move(bounce_));
    decoding_ = false;
    encoded_.pop();
    if (const int status = finish(r); status != kSuccess) {
      return status;
    }
  }
  return kSuccess;
}

}  // namespace prunex::nccl
