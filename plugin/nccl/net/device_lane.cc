// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/device_lane.h"

#include "plugin/device/backend.h"

namespace prunex::nccl {
namespace {

// The calling thread's device is NCCL's.
class OnDevice {
 public:
  OnDevice(const cuda::Table& table, int device) : table_(table) {
    (void)table_.get_device(&before_);
    (void)table_.set_device(device);
  }
  ~OnDevice() { (void)table_.set_device(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const cuda::Table& table_;
  int before_ = 0;
};

}  // namespace

Result<std::shared_ptr<DeviceLane>> DeviceLane::open(const cuda::Table& table, int device) {
  const OnDevice on(table, device);
  std::shared_ptr<DeviceLane> lane(new DeviceLane(table, device));
  if (auto made = device::check_cuda(table, table.stream_create(&lane->stream_), "a stream");
      !made) {
    return tl::unexpected(made.error());
  }
  for (void*& event : lane->events_) {
    if (auto made = device::check_cuda(table, table.event_create(&event), "an event"); !made) {
      return tl::unexpected(made.error());
    }
  }
  return lane;
}

DeviceLane::~DeviceLane() {
  const OnDevice on(table_, device_);
  drain();
  for (void* const event : events_) {
    if (event != nullptr) {
      (void)table_.event_destroy(event);
    }
  }
  if (stream_ != nullptr) {
    (void)table_.stream_destroy(stream_);
  }
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

bool DeviceLane::start(size_t slot, void* to, const void* from, size_t bytes) {
  return good(table_.copy(to, from, bytes, stream_), "copying a message") &&
         good(table_.event_record(events_[slot], stream_), "recording an event");
}

LaneState DeviceLane::state(size_t slot) {
  int done = 0;
  if (!good(table_.event_done(events_[slot], &done), "a message's copy")) {
    return LaneState::failed;
  }
  return done != 0 ? LaneState::done : LaneState::busy;
}

Error DeviceLane::error() const {
  const auto found = device::check_cuda(table_, code_, failed_);
  return found ? Error{Code::internal, "no error of CUDA"} : found.error();
}

Result<Shadow> Shadow::make(std::shared_ptr<DeviceLane> lane, size_t bytes) {
  const OnDevice on(lane->table(), lane->device());
  void* memory = nullptr;
  if (auto made = device::check_cuda(
          lane->table(), lane->table().allocate_pinned(&memory, bytes),
          strf("%zu bytes of pinned memory for a registered buffer", bytes).c_str());
      !made) {
    return tl::unexpected(made.error());
  }
  Shadow out;
  out.memory_ = static_cast<std::byte*>(memory);
  out.lane_ = std::move(lane);
  return out;
}

Shadow::~Shadow() {
  if (memory_ != nullptr) {
    lane_->drain();  // a connection that broke may have left a copy behind
    (void)lane_->table().deallocate_pinned(memory_);
  }
}

LaneOfComm::~LaneOfComm() {
  if (lane_ != nullptr) {
    lane_->drain();
  }
}

Result<std::shared_ptr<DeviceLane>> LaneOfComm::of(const void* data) {
  auto table = device::cuda_table();
  if (!table) {
    return tl::unexpected(table.error());
  }
  cuda::PointerFacts facts{};
  if (auto known =
          device::check_cuda(**table, (*table)->pointer_facts(data, &facts), "a buffer's device");
      !known) {
    return tl::unexpected(known.error());
  }
  if (facts.device < 0) {
    return fail(Code::invalid_argument,
                strf("%p was registered as device memory and is none", data));
  }
  const std::lock_guard lock(mutex_);
  if (lane_ == nullptr) {
    auto opened = DeviceLane::open(**table, facts.device);
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
