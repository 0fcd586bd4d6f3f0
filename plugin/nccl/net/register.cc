// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/register.h"

#include <atomic>

#include "plugin/base/fd.h"
#include "plugin/base/log.h"
#include "plugin/device/on_device.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace {

// As long as what NCCL has under way on a connection, which its own buffers hold; to what arrives
// encoded a mask may be added.
DeviceLane::Room room_of(const NetComm& comm) {
  constexpr size_t kSteps = 8;
  const size_t fifo = most_staged_message(comm.context().settings->fifo.simple);
  const bool receives = comm.tag == Tag::recv;
  return {fifo, fifo + (receives ? kSteps * kSideSlack : size_t{512} << 10), receives};
}

// The network reaches the device's memory itself where both can do it, which only trying tells.
std::unique_ptr<transport::Region> direct_region(NetComm& comm, const DeviceLane& lane, void* data,
                                                 size_t bytes) {
  int fd = -1;
  uint64_t offset = 0;
  const device::OnDevice on(lane.table(), lane.device());
  if ((comm.tag == Tag::recv && !lane.sees_remote_writes()) ||
      lane.table().export_dmabuf(data, bytes, &fd, &offset) != 0) {
    return nullptr;
  }
  const Fd descriptor(fd);
  auto region = comm.transport()->register_dmabuf(descriptor.get(), offset, data, bytes);
  if (!region) {
    PRUNEX_LOG(trace, "copied through pinned memory: %s", region.error().text.c_str());
    return nullptr;
  }
  return *std::move(region);
}

int refuse_copied(size_t bytes, const DeviceLane::Room& room) {
  static std::atomic<bool> said{false};
  const std::string text = strf(
      "a buffer of %zu bytes of device memory that the network does not reach is not registered "
      "(%zu are copied at most): NCCL copies through its own",
      bytes, room.message);
  if (!said.exchange(true)) {
    PRUNEX_LOG(warn, "%s; further ones are told with PRUNEX_DEBUG=INFO", text.c_str());
  } else {
    PRUNEX_LOG(info, "%s", text.c_str());
  }
  return kSystemError;
}

int register_device(NetComm& comm, Memory& memory) {
  const DeviceLane::Room room = room_of(comm);
  auto lane = comm.lane().of(memory.data, comm.transport(), room);
  if (!lane) {
    return report(lane.error());
  }
  memory.known->of_device = *std::move(lane);
  memory.known->direct = direct_region(comm, *memory.lane(), memory.data, memory.bytes);
  const size_t fifo = comm.context().settings->fifo.simple;
  return memory.is_direct() || comm.lane().takes_copied(memory.bytes, room, fifo)
             ? kSuccess
             : refuse_copied(memory.bytes, room);
}

int register_host(NetComm& comm, Memory& memory) {
  auto region = comm.transport()->register_memory(memory.data, memory.bytes);
  if (!region) {
    return report(region.error());
  }
  memory.known->region = *std::move(region);
  // LL and LL128 travel as they are.
  const Settings& settings = *comm.context().settings;
  if (memory.bytes >= kLeastEncoded && settings.config.net_mode != NetMode::passthrough &&
      protocol_of({}, &memory, settings.fifo) != Protocol::polled) {
    const DeviceLane::Room room = room_of(comm);
    comm.side_buffers().prepare(room.expands ? room.staging : room.message);  // who sends can wait
  }
  return kSuccess;
}

}  // namespace

int register_memory(NetComm& comm, Memory& memory) {
  memory.known->transport = comm.transport();
  return memory.type == kPtrCuda ? register_device(comm, memory) : register_host(comm, memory);
}

}  // namespace prunex::nccl
