// SPDX-License-Identifier: Apache-2.0
// What one call enqueues. Nothing here allocates or waits for the device.
#include "plugin/device/backend.h"
#include "plugin/device/common_memory.h"
#include "plugin/device/device_comm.h"

namespace prunex::device {

using collective::Scope;

namespace {

constexpr int kCountsType = nccl::type_of(DType::u64);

}  // namespace

Result<> DeviceComm::pack(const Armed& armed, const CallSpec& spec, const Flow& flow) {
  cuda::MoveCall call{};
  call.plan = armed.made.plan;
  call.type = spec.type;
  call.range = {0, spec.count, 0};
  call.last_tile = armed.tiles;
  call.from = spec.send;
  call.to = armed.packed;
  call.record = flow.audited ? reinterpret_cast<cuda::AuditRecord*>(common_ + CommonMemory::kRecord)
                             : nullptr;
  call.scratch = flow.audited ? common_ + CommonMemory::kScratch : nullptr;
  call.stream = flow.stream;
  return check_cuda(cuda_, cuda_.pack(&call), "pack");
}

Result<> DeviceComm::unpack(const Armed& armed, const CallSpec& spec, void* stream) {
  cuda::MoveCall call{};
  call.plan = armed.made.plan;
  call.type = spec.type;
  call.range = {0, spec.count, 0};
  call.last_tile = armed.tiles;
  call.from = armed.packed;
  call.to = spec.recv;
  call.stream = stream;
  return check_cuda(cuda_, cuda_.unpack(&call), "unpack");
}

Result<> DeviceComm::convert(const void* from, DType in, void* to, DType out, uint64_t count,
                             uint64_t divisor, void* stream) {
  if (count == 0) {
    return {};
  }
  cuda::ReduceCall call{};
  call.move.type = in;
  call.move.stream = stream;
  call.reduction.source[0] = static_cast<const std::byte*>(from);
  call.reduction.out = static_cast<std::byte*>(to);
  call.reduction.divisor = divisor;
  call.reduction.sources = 1;
  call.reduction.own = -1;
  call.reduction.in = in;
  call.reduction.out_type = out;
  call.reduction.op = Op::sum;
  call.count = count;
  return check_cuda(cuda_, cuda_.reduce(&call), "conversion");
}

Result<> DeviceComm::exchange(const CallSpec& spec, const Armed& armed, Flow& flow) {
  flow.contributes = spec.scope != Scope::leaders || leader_locals_[0] == static_cast<int>(local_);
  std::byte* const record = common_ + CommonMemory::kRecord;
  Result<> packed;
  if (armed.compact && flow.contributes) {
    packed = pack(armed, spec, flow);
  } else if (flow.audited) {
    packed = check_cuda(cuda_, cuda_.fill(record, 0, sizeof(Found), flow.stream), "clearing");
  }
  if (!packed) {
    return packed;
  }
  flow.out = armed.compact ? armed.packed : static_cast<std::byte*>(spec.recv);
  const std::byte* own = armed.compact ? armed.packed : static_cast<const std::byte*>(spec.send);
  if (armed.wide == nullptr) {
    flow.from = own;
    flow.to = flow.out;
  } else {
    flow.from = flow.to = armed.wide;
    if (flow.contributes) {
      if (auto widened =
              convert(own, spec.type, armed.wide, armed.partial, armed.elements, 1, flow.stream);
          !widened) {
        return widened;
      }
    }
  }
  Result<> moved;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) {
      return failure();
    }
    const bool split =
        spec.scope == Scope::leaders || (spec.scope == Scope::world && armed.compact);
    moved = split && world_.nodes.size() > 1 ? layered(spec, armed, flow) : flat(armed, spec, flow);
  }
  return moved && flow.audited ? publish(flow.stream, false) : moved;
}

// One communicator does it all.
Result<> DeviceComm::flat(const Armed& armed, const CallSpec& spec, Flow& flow) {
  const bool alone = spec.scope == Scope::leaders;  // of one node: its leader's values are the sum
  const bool inside = spec.scope != Scope::world || world_.nodes.size() == 1;
  const nccl::Comm comm = inside ? cliques_.node() : cliques_.world();
  if (comm != nullptr && !alone) {
    auto added = among(comm, armed, spec, flow);
    return added ? finish(spec, armed, flow, 0, armed.elements) : added;
  }
  Result<> copied;
  if (flow.contributes && flow.from != flow.to) {
    const size_t bytes = armed.elements * size_of(armed.partial);
    copied = check_cuda(cuda_, cuda_.copy(flow.to, flow.from, bytes, flow.stream), "copy");
  }
  if (copied && flow.contributes && flow.audited) {
    copied = check_cuda(cuda_,
                        cuda_.copy(common_ + CommonMemory::kStatus, common_ + CommonMemory::kRecord,
                                   sizeof(Found), flow.stream),
                        "copy");
  }
  if (copied && flow.contributes) {
    copied = finish(spec, armed, flow, 0, armed.elements);
  }
  return copied && alone ? spread(spec, armed, flow) : copied;
}

Result<> DeviceComm::among(nccl::Comm comm, const Armed& armed, const CallSpec& spec,
                           const Flow& flow) {
  const NcclApi& api = cliques_.api();
  (void)api.GroupStart();
  int result = nccl::kSuccess;
  if (armed.elements > 0) {
    result = api.AllReduce(flow.from, flow.to, armed.elements, nccl::type_of(armed.partial),
                           nccl::op_of(spec.op), comm, flow.stream);
  }
  if (nccl::good(result) && flow.audited) {
    result = api.AllReduce(common_ + CommonMemory::kRecord, common_ + CommonMemory::kStatus,
                           CommonMemory::kCounts, kCountsType, nccl::kSum, comm, flow.stream);
  }
  return cliques_.end_group(result, comm, "ncclAllReduce", patience());
}

// All of one size on all nodes: what lies behind the last element is nobody's.
DeviceComm::RailShare DeviceComm::share_of(const Armed& armed, const CallSpec& spec,
                                           size_t rail) const {
  if (spec.scope == Scope::leaders) {
    return {0, rail == 0 ? armed.elements : 0};
  }
  return {rail * armed.share, armed.share};
}

Result<> DeviceComm::layered(const CallSpec& spec, const Armed& armed, const Flow& flow) {
  Flow rest = flow;
  if (spec.scope == Scope::world && node_.ranks.size() > 1) {
    if (auto gathered = gather_in_node(spec, armed, flow); !gathered) {
      return gathered;
    }
    rest.from = flow.to;  // the node's sum is there
  }
  if (auto crossed = between_leaders(spec, armed, rest); !crossed) {
    return crossed;
  }
  for (size_t r = 0; r < rails_; ++r) {
    const RailShare share = share_of(armed, spec, r);
    if (leader_locals_[r] == static_cast<int>(local_)) {
      if (auto made = finish(spec, armed, flow, share.offset, share.count); !made) {
        return made;
      }
    }
  }
  return spread(spec, armed, flow);
}

Result<> DeviceComm::gather_in_node(const CallSpec& spec, const Armed& armed, const Flow& flow) {
  const NcclApi& api = cliques_.api();
  const size_t size = size_of(armed.partial);
  const int type = nccl::type_of(armed.partial), op = nccl::op_of(spec.op);
  const nccl::Comm comm = cliques_.node();
  (void)api.GroupStart();
  int result = nccl::kSuccess;
  if (even_ && armed.share > 0) {
    result = api.ReduceScatter(flow.from, flow.to + local_ * armed.share * size, armed.share, type,
                               op, comm, flow.stream);
  }
  for (size_t r = 0; !even_ && nccl::good(result) && r < rails_; ++r) {
    const RailShare share = share_of(armed, spec, r);
    if (share.count > 0) {
      result = api.Reduce(flow.from + share.offset * size, flow.to + share.offset * size,
                          share.count, type, op, leader_locals_[r], comm, flow.stream);
    }
  }
  if (nccl::good(result) && flow.audited) {
    result = api.Reduce(common_ + CommonMemory::kRecord, common_ + CommonMemory::kStatus,
                        CommonMemory::kCounts, kCountsType, nccl::kSum, leader_locals_[0], comm,
                        flow.stream);
  }
  return cliques_.end_group(result, comm, "the reduction inside the node", patience());
}

Result<> DeviceComm::between_leaders(const CallSpec& spec, const Armed& armed, const Flow& flow) {
  const NcclApi& api = cliques_.api();
  const size_t size = size_of(armed.partial);
  const bool inside_done = spec.scope == Scope::world && node_.ranks.size() > 1;
  constexpr const char* kWhat = "ncclAllReduce between leaders";
  for (size_t r = 0; r < rails_; ++r) {
    const nccl::Comm comm = cliques_.rail(r);
    const RailShare share = share_of(armed, spec, r);
    const bool status = flow.audited && r == 0;
    if (comm == nullptr || (share.count == 0 && !status)) {
      continue;
    }
    (void)api.GroupStart();
    int result = nccl::kSuccess;
    if (share.count > 0) {
      result =
          api.AllReduce(flow.from + share.offset * size, flow.to + share.offset * size, share.count,
                        nccl::type_of(armed.partial), nccl::op_of(spec.op), comm, flow.stream);
    }
    if (nccl::good(result) && status) {
      std::byte* const to = common_ + CommonMemory::kStatus;
      result = api.AllReduce(inside_done ? to : common_ + CommonMemory::kRecord, to,
                             CommonMemory::kCounts, kCountsType, nccl::kSum, comm, flow.stream);
    }
    if (auto ended = cliques_.end_group(result, comm, kWhat, patience()); !ended) {
      return ended;
    }
  }
  return {};
}

// From the leaders to their nodes, in the user's type.
Result<> DeviceComm::spread(const CallSpec& spec, const Armed& armed, const Flow& flow) {
  const nccl::Comm comm = cliques_.node();
  std::byte* const status = common_ + CommonMemory::kStatus;
  if (comm == nullptr) {
    return {};
  }
  const NcclApi& api = cliques_.api();
  const size_t size = size_of(spec.type);
  const int type = nccl::type_of(spec.type);
  (void)api.GroupStart();
  int result = nccl::kSuccess;
  const bool gathered = even_ && spec.scope == Scope::world;
  if (gathered && armed.share > 0) {
    result = api.AllGather(flow.out + local_ * armed.share * size, flow.out, armed.share, type,
                           comm, flow.stream);
  }
  for (size_t r = 0; !gathered && nccl::good(result) && r < rails_; ++r) {
    const RailShare share = share_of(armed, spec, r);
    std::byte* const at = flow.out + share.offset * size;
    if (share.count > 0) {
      result = api.Broadcast(at, at, share.count, type, leader_locals_[r], comm, flow.stream);
    }
  }
  if (nccl::good(result) && flow.audited) {
    result = api.Broadcast(status, status, CommonMemory::kCounts, kCountsType, leader_locals_[0],
                           comm, flow.stream);
  }
  return cliques_.end_group(result, comm, "the spread inside the node", patience());
}

// The one division, and back to the user's type.
Result<> DeviceComm::finish(const CallSpec& spec, const Armed& armed, const Flow& flow,
                            uint64_t offset, uint64_t count) {
  if (armed.divisor <= 1 && armed.partial == spec.type) {
    return {};
  }
  return convert(flow.to + offset * size_of(armed.partial), armed.partial,
                 flow.out + offset * size_of(spec.type), spec.type, count, armed.divisor,
                 flow.stream);
}

// The counts, where the host looks: of this call, or added up over a graph's replays.
Result<> DeviceComm::publish(void* stream, bool sticky) {
  std::byte* const status = common_ + CommonMemory::kStatus;
  if (!sticky) {
    return check_cuda(cuda_,
                      cuda_.copy(pinned_ + CommonMemory::kHostFound, status, sizeof(Found), stream),
                      "copy");
  }
  std::byte* const sum = common_ + CommonMemory::kSticky;
  cuda::ReduceCall call{};
  call.move.type = DType::u64;
  call.move.stream = stream;
  call.reduction.source[0] = sum;
  call.reduction.source[1] = status;
  call.reduction.out = sum;
  call.reduction.divisor = 1;
  call.reduction.sources = 2;
  call.reduction.own = -1;
  call.reduction.in = call.reduction.out_type = DType::u64;
  call.reduction.op = Op::sum;
  call.count = CommonMemory::kCounts;
  if (auto added = check_cuda(cuda_, cuda_.reduce(&call), "counting"); !added) {
    return added;
  }
  return check_cuda(
      cuda_, cuda_.copy(pinned_ + CommonMemory::kHostSticky, sum, sizeof(Found), stream), "copy");
}

}  // namespace prunex::device
