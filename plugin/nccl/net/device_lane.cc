// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/device_lane.h"

#include "plugin/api/registry.h"
#include "plugin/device/architectures.h"
#include "plugin/device/backend.h"
#include "plugin/device/mask_plans.h"
#include "plugin/device/on_device.h"
#include "plugin/nccl/codec/frame.h"

namespace prunex::nccl {
namespace {

using device::check_cuda;
using device::MaskPlans;
using device::OnDevice;

constexpr size_t kAlign = 256;
constexpr size_t kBlockBytes = 128;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
constexpr size_t kBlockRoom =
    DeviceLane::kMostBlocks * kBlockBytes + 2 * kAlign + aligned(DeviceLane::kMostBlocks / 8);

}  // namespace

DeviceLane::DeviceLane(const cuda::Table& table, int device,
                       std::shared_ptr<transport::Transport> transport, const Room& room)
    : table_(table),
      device_(device),
      transport_(std::move(transport)),
      room_(room),
      ring_(room.staging) {
  MaskPlans::instance().open(device_);
}

Result<std::shared_ptr<DeviceLane>> DeviceLane::open(
    const cuda::Table& table, int device, std::shared_ptr<transport::Transport> transport,
    const Room& room) {
  std::shared_ptr<DeviceLane> lane(new DeviceLane(table, device, std::move(transport), room));
  if (auto made = lane->make(); !made) {
    return tl::unexpected(made.error());
  }
  for (const auto& mask : api::Registry::instance().addressed()) {
    MaskPlans::instance().prepare(mask.base, api::mask_of(mask.version), mask.element_bytes);
  }
  return lane;
}

Result<> DeviceLane::make() {
  if (auto runs = device::check_architecture(table_, device_); !runs) {
    return runs;
  }
  const OnDevice on(table_, device_);
  cuda::DeviceFacts facts{};
  if (auto known = check_cuda(table_, table_.device_facts(device_, &facts), "device facts");
      !known) {
    return known;
  }
  remote_writes_ = facts.remote_writes;
  if (auto made = check_cuda(table_, table_.stream_create(&stream_), "a stream"); !made) {
    return made;
  }
  for (void*& event : events_) {
    if (auto made = check_cuda(table_, table_.event_create(&event), "an event"); !made) {
      return made;
    }
  }
  if (auto made = make_memory(); !made) {
    return made;
  }
  // A first launch may wait for kernels that wait for this lane.
  return check_cuda(table_, table_.prepare(), "the first kernels");
}

size_t DeviceLane::pinned_bytes() const {
  return ring_.bytes() + (room_.expands ? codec::kMaxPiece : 0);
}

Result<> DeviceLane::make_memory() {
  void *pinned = nullptr, *scratch = nullptr;
  const size_t audit = aligned(table_.scratch_bytes());
  block_scratch_ = aligned(table_.block_scratch_bytes(kMostBlocks));
  const size_t bytes = audit + block_scratch_ + kBlockRoom;
  if (auto made = check_cuda(table_, table_.allocate_pinned(&pinned, pinned_bytes()),
                             strf("%zu bytes of pinned memory", pinned_bytes()).c_str());
      !made) {
    return made;
  }
  pinned_ = static_cast<std::byte*>(pinned);
  if (auto made = check_cuda(table_, table_.allocate(&scratch, bytes),
                             strf("%zu bytes of device memory", bytes).c_str());
      !made) {
    return made;
  }
  scratch_ = static_cast<std::byte*>(scratch);
  if (auto made = check_cuda(table_, table_.fill(scratch_, 0, audit, stream_), "device memory");
      !made) {
    return made;
  }
  if (auto region = transport_->register_memory(pinned_, ring_.bytes())) {
    region_ = *std::move(region);
  }
  return {};
}

DeviceLane::~DeviceLane() {
  {
    const OnDevice on(table_, device_);
    drain();
    region_.reset();
    if (scratch_ != nullptr) {
      (void)table_.deallocate(scratch_);
    }
    if (pinned_ != nullptr) {
      (void)table_.deallocate_pinned(pinned_);
    }
    for (void* const event : events_) {
      if (event != nullptr) {
        (void)table_.event_destroy(event);
      }
    }
    if (stream_ != nullptr) {
      (void)table_.stream_destroy(stream_);
    }
  }
  MaskPlans::instance().close(device_);
}

void DeviceLane::drain() {
  if (stream_ != nullptr) {
    (void)table_.stream_synchronize(stream_);
  }
}

bool DeviceLane::good(int code, const char* what) {
  if (code != 0 && code_ == 0) {
    code_ = code;
    failed_ = what;
  }
  return code == 0;
}

bool DeviceLane::copy(void* to, const void* from, size_t bytes) {
  return good(table_.copy(to, from, bytes, stream_), "copying a message");
}

bool DeviceLane::pack(cuda::MoveCall call) {
  const OnDevice on(table_, device_);
  call.scratch = call.record != nullptr ? scratch_ : nullptr;
  call.stream = stream_;
  return good(table_.pack(&call), "packing a message");
}

bool DeviceLane::unpack(cuda::MoveCall call) {
  const OnDevice on(table_, device_);
  call.stream = stream_;
  return good(table_.unpack(&call), "expanding a message");
}

bool DeviceLane::pack_blocks(cuda::BlockCall call) {
  const OnDevice on(table_, device_);
  call.scratch = scratch_ + aligned(table_.scratch_bytes());
  call.scratch_bytes = block_scratch_;
  call.stream = stream_;
  return good(table_.pack_blocks(&call), "packing a message's blocks");
}

bool DeviceLane::unpack_blocks(cuda::BlockCall call) {
  const OnDevice on(table_, device_);
  call.scratch = scratch_ + aligned(table_.scratch_bytes());
  call.scratch_bytes = block_scratch_;
  call.stream = stream_;
  return good(table_.unpack_blocks(&call), "expanding a message's blocks");
}

bool DeviceLane::flush() {
  if (remote_writes_ != cuda::RemoteWrites::flushed) {
    return true;
  }
  const OnDevice on(table_, device_);
  return good(table_.flush_remote_writes(), "seeing what the network wrote");
}

bool DeviceLane::mark(size_t slot) {
  return good(table_.event_record(events_[slot], stream_), "recording an event");
}

LaneState DeviceLane::state(size_t slot) {
  int done = 0;
  if (failed() || !good(table_.event_done(events_[slot], &done), "a message's copy")) {
    return LaneState::failed;
  }
  return done != 0 ? LaneState::done : LaneState::busy;
}

Error DeviceLane::error() const {
  const auto found = check_cuda(table_, code_, failed_);
  return found ? Error{Code::internal, "no error of CUDA"} : found.error();
}

std::byte* DeviceLane::take(size_t bytes) {
  const auto at = ring_.take(bytes);
  return at ? pinned_ + *at : nullptr;
}

void DeviceLane::give(const std::byte* piece) { ring_.give(static_cast<size_t>(piece - pinned_)); }

std::span<std::byte> DeviceLane::block_room() const {
  return {scratch_ + aligned(table_.scratch_bytes()) + block_scratch_, kBlockRoom};
}

Error too_long_to_stage(size_t bytes, const DeviceLane& lane) {
  return {
      Code::invalid_argument,
      strf("a message of %zu bytes of device memory that the network does not reach: %zu are "
           "copied at most; set NCCL_P2P_NET_CHUNKSIZE to that at most, or NCCL_BUFFSIZE to more "
           "(67108864 at most), alike on all ranks",
           bytes, lane.most_message())};
}

bool LaneOfComm::takes_copied(size_t bytes, const DeviceLane::Room& room, size_t fifo_bytes) {
  const std::lock_guard lock(mutex_);
  const bool is_long = bytes > room.message;
  const bool takes = !is_long || !has_nccls_;
  has_nccls_ = has_nccls_ || is_long || bytes == fifo_bytes;
  return takes;
}

LaneOfComm::~LaneOfComm() { drain(); }

void LaneOfComm::drain() {
  const std::lock_guard lock(mutex_);
  if (lane_ != nullptr) {
    lane_->drain();
  }
}

Result<std::shared_ptr<DeviceLane>> LaneOfComm::of(
    const void* data, const std::shared_ptr<transport::Transport>& transport,
    const DeviceLane::Room& room) {
  auto table = device::cuda_table();
  if (!table) {
    return tl::unexpected(table.error());
  }
  cuda::PointerFacts facts{};
  if (auto known = check_cuda(**table, (*table)->pointer_facts(data, &facts), "a buffer's device");
      !known) {
    return tl::unexpected(known.error());
  }
  if (facts.device < 0) {
    return fail(Code::invalid_argument,
                strf("%p was registered as device memory and is none", data));
  }
  const std::lock_guard lock(mutex_);
  if (lane_ == nullptr) {
    auto opened = DeviceLane::open(**table, facts.device, transport, room);
    if (!opened) {
      return opened;
    }
    lane_ = *std::move(opened);
  }
  if (lane_->device() != facts.device) {
    return fail(Code::invalid_argument,
                strf("a buffer of device %d on a connection that has buffers of device %d",
                     facts.device, lane_->device()));
  }
  return lane_;
}

}  // namespace prunex::nccl
