// SPDX-License-Identifier: Apache-2.0
// Arming: the ranks agree on a call, and everything that such calls need is made. May allocate and
// synchronise; nothing else here may.
#include <algorithm>

#include "kernels/cuda/tuning.h"
#include "plugin/base/digest.h"
#include "plugin/device/backend.h"
#include "plugin/device/common_memory.h"
#include "plugin/device/device_comm.h"
#include "plugin/device/refuse.h"

namespace prunex::device {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kPlans = 1024;  // then all are made again

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

using collective::Scope;

uint64_t DeviceComm::key_of(const CallSpec& spec) {
  return Digest()
      .add(spec.masked ? spec.masked->digest : 0)
      .add(spec.masked ? spec.masked->layout.shape_digest : 0)
      .add(spec.count)
      .add(spec.type)
      .add(spec.op)
      .add(spec.scope)
      .value();
}

size_t DeviceComm::contributions(Scope scope) const {
  return scope == Scope::node      ? node_.ranks.size()
         : scope == Scope::leaders ? world_.nodes.size()
                                   : static_cast<size_t>(world_.size);
}

Result<DeviceComm::ArmedPtr> DeviceComm::arm(const CallSpec& spec, int attempt) {
  const bool node_only = spec.scope == Scope::node;
  CallSpec header = header_of(spec, false);
  bool differ = false;
  std::shared_ptr<collective::Announcement> answer;
  while (true) {
    answer = header.announced;
    answer->again = attempt > 0;
    const bool joining = !cliques_.ready(node_only);
    if (joining) {
      answer->record = cliques_.offer(node_only);
    }
    // A mismatch leaves the communicator as it was: nothing of this call was enqueued here.
    if (auto agreed = comm_.all_reduce(header); !agreed) {
      return tl::unexpected(agreed.error());
    }
    differ = differ || answer->differ;
    if (!joining) {
      break;
    }
    if (!answer->differ) {
      if (auto joined = join(spec, *answer); !joined) {
        return tl::unexpected(joined.error());
      }
      break;
    }
    // Nobody looked at the offers: the same call once more without masks, which are no use anyway.
    CallSpec dense = spec;
    dense.masked = nullptr;
    header = header_of(dense, false);
    attempt = 1;
  }
  if (armed_.size() >= kPlans) {
    forget_plans();
  }
  auto armed = std::make_shared<Armed>();
  armed->masked = answer->masked;
  armed->compact = answer->compact && !differ;
  armed->lossless = answer->lossless && !differ;
  armed->sampled = answer->sampled && !differ;
  if (auto built = spec.count > 0 ? build(*armed, spec) : Result<>(); !built) {
    destroy(*armed);
    return tl::unexpected(give_up(built.error()));
  }
  if (differ) {
    retired_.push_back(armed);  // asked again at the next call
  } else {
    armed_.emplace(key_of(spec), armed);
  }
  return armed;
}

// What everybody sees alike is an answer to the call; what one rank alone meets ends them all.
Result<> DeviceComm::join(const CallSpec& spec, const collective::Announcement& answer) {
  Result<> joined;
  {
    const std::lock_guard lock(mutex_);
    joined =
        failed_ ? failure() : cliques_.join(spec.scope == Scope::node, answer.records, patience());
  }
  if (!joined && joined.error().code != Code::unsupported) {
    return tl::unexpected(give_up(joined.error()));
  }
  return joined;
}

Result<> DeviceComm::build(Armed& armed, const CallSpec& spec) {
  if (auto common = allocate_common(); !common) {
    return common;
  }
  const size_t adders = contributions(spec.scope);
  armed.partial = adders > 1 ? partial_type(spec.type, spec.op) : spec.type;
  armed.divisor = spec.op == Op::avg ? adders : 1;
  armed.elements = armed.compact ? armed.masked->layout.kept : spec.count;
  const bool layered = armed.compact && spec.scope == Scope::world && world_.nodes.size() > 1;
  armed.share = layered ? (armed.elements + rails_ - 1) / rails_ : armed.elements;
  if (armed.compact) {
    const uint32_t tile =
        cuda::tile_elements(cuda::tuning_of(arch_), sms_, spec.count, size_of(spec.type));
    auto made = make_plan(cuda_, armed.masked->layout, tile);
    if (!made) {
      return tl::unexpected(made.error());
    }
    armed.made = *std::move(made);
    armed.tiles = static_cast<uint32_t>(armed.made.lowered.tiles.size());
    armed.made.lowered = {};  // calls take the whole buffer
  }
  return reserve(armed, spec);
}

Result<> DeviceComm::allocate_common() {
  if (common_ != nullptr) {
    return {};
  }
  cuda::DeviceFacts facts{};
  const size_t bytes = CommonMemory::kScratch + cuda_.scratch_bytes();
  // The default stream waits for everybody's, and may be captured.
  void *device = nullptr, *host = nullptr, *stream = nullptr;
  const auto step = [&](int error, const char* what) { return check_cuda(cuda_, error, what); };
  Result<> made =
      step(cuda_.device_facts(device_, &facts), "device facts")
          .and_then([&] { return step(cuda_.prepare(), "the first kernels"); })
          .and_then([&] { return step(cuda_.stream_create(&stream), "a stream"); })
          .and_then([&] { return step(cuda_.allocate(&device, bytes), "memory"); })
          .and_then([&] {
            common_ = static_cast<std::byte*>(device);
            return step(cuda_.allocate_pinned(&host, CommonMemory::kHostBytes), "pinned memory");
          })
          .and_then([&] {
            pinned_ = static_cast<std::byte*>(host);
            std::fill_n(pinned_, CommonMemory::kHostBytes, std::byte{0});
            return step(cuda_.fill(device, 0, bytes, stream), "clearing memory");
          })
          .and_then([&] { return step(cuda_.event_create(&last_event_), "an event"); })
          .and_then([&] { return step(cuda_.event_create(&audit_event_), "an event"); })
          .and_then([&] { return step(cuda_.stream_synchronize(stream), "clearing"); });
  if (stream != nullptr) {
    (void)cuda_.stream_destroy(stream);
  }
  arch_ = static_cast<uint32_t>(facts.arch);
  sms_ = static_cast<uint32_t>(facts.sms);
  return made;
}

Result<> DeviceComm::reserve(Armed& armed, const CallSpec& spec) {
  const uint64_t padded = std::max(armed.elements, armed.share * rails_);
  const size_t packed = armed.compact ? aligned(padded * size_of(spec.type)) : 0;
  const bool widened = armed.partial != spec.type;
  const size_t wide = widened ? aligned(padded * size_of(armed.partial)) : 0;
  armed.wide_offset = widened ? packed + kAlign : 0;
  if (auto room = make_room(packed + kAlign + wide); !room) {
    return room;
  }
  place(armed);
  return {};
}

void DeviceComm::place(Armed& armed) const {
  armed.packed = arena_.base;
  armed.wide = armed.wide_offset != 0 ? arena_.base + armed.wide_offset : nullptr;
}

Result<> DeviceComm::make_room(size_t bytes) {
  if (bytes <= arena_.bytes && retired_.empty()) {
    return {};
  }
  if (any_call_) {
    if (auto done = await(last_event_); !done) {
      return done;
    }
  }
  for (const ArmedPtr& armed : retired_) {
    if (!armed->captured) {
      destroy(*armed);
    }
  }
  retired_.clear();
  if (bytes <= arena_.bytes) {
    return {};
  }
  if (captured_.empty()) {
    (void)(arena_.base != nullptr ? cuda_.deallocate(arena_.base) : 0);
  } else {
    old_arenas_.push_back(arena_);  // graphs use it
  }
  arena_ = {};
  void* base = nullptr;
  if (auto made = check_cuda(cuda_, cuda_.allocate(&base, bytes), "memory for packed values");
      !made) {
    return made;
  }
  arena_ = {static_cast<std::byte*>(base), bytes};
  for (auto& [key, other] : armed_) {
    if (!other->captured) {
      place(*other);
    }
  }
  return {};
}

// They may be in use on a stream: they go when the next plan is armed.
void DeviceComm::forget_plans() {
  for (auto& [key, armed] : armed_) {
    if (!armed->captured) {
      retired_.push_back(armed);
    }
  }
  armed_.clear();
}

void DeviceComm::destroy(Armed& armed) { destroy_plan(cuda_, armed.made); }

}  // namespace prunex::device
