// SPDX-License-Identifier: Apache-2.0
// A dropped element was not zero: who, where, and the call once more without those masks. Nothing
// was written yet.
#include <cstring>

#include "plugin/device/backend.h"
#include "plugin/device/common_memory.h"
#include "plugin/device/device_comm.h"
#include "plugin/device/refuse.h"

namespace prunex::device {

Result<> DeviceComm::resolve_violation(const CallSpec& spec, const Armed& armed, void* stream,
                                       int attempt) {
  if (attempt > static_cast<int>(armed.masked->layout.segments.size())) {
    return tl::unexpected(give_up(Error{
        Code::internal, "dropped elements are not zero, yet no rank finds one", 0, comm_.rank()}));
  }
  auto mine = offences_of(spec, armed, stream);
  if (!mine) {
    return tl::unexpected(give_up(mine.error()));
  }
  CallSpec header = header_of(spec, true);
  header.announced->offences = std::move(*mine);
  if (auto told = comm_.all_reduce(header); !told) {
    fail_now(told.error());
    return told;
  }
  forget_plans();  // all ranks do: what they had learned is no longer so
  return run(spec, stream, attempt + 1);
}

Result<std::vector<collective::Offence>> DeviceComm::offences_of(const CallSpec& spec,
                                                                 const Armed& armed, void* stream) {
  std::vector<collective::Offence> out;
  if (spec.scope == collective::Scope::leaders && leader_locals_[0] != static_cast<int>(local_)) {
    return out;
  }
  const Layout& layout = armed.masked->layout;
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& s = layout.segments[i];
    if (s.mask == nullptr || s.projected) {
      continue;
    }
    std::byte* const record = common_ + CommonMemory::kRecord;
    cuda::MoveCall call{};
    call.plan = armed.made.plan;
    call.type = spec.type;
    call.range = {s.offset, s.offset + s.count, layout.kept_before[i]};
    call.last_tile = armed.tiles;
    call.from = spec.send;
    call.to = armed.packed;
    call.record = reinterpret_cast<cuda::AuditRecord*>(record);
    call.scratch = common_ + CommonMemory::kScratch;
    call.stream = stream;
    cuda::AuditRecord found;
    auto looked =
        check_cuda(cuda_, cuda_.pack(&call), "audit")
            .and_then([&] {
              return check_cuda(
                  cuda_,
                  cuda_.copy(pinned_ + CommonMemory::kHostRecord, record, sizeof found, stream),
                  "copy");
            })
            .and_then([&] {
              return check_cuda(cuda_, cuda_.event_record(audit_event_, stream), "an event");
            })
            .and_then([&] { return await(audit_event_); });
    if (!looked) {
      return tl::unexpected(looked.error());
    }
    std::memcpy(static_cast<void*>(&found), pinned_ + CommonMemory::kHostRecord, sizeof found);
    if (found.lossless > 0) {
      out.push_back({static_cast<uint32_t>(i), found.first, found.lossless, found.nonfinite,
                     collective::Offence::kUnknown});
    }
  }
  return out;
}

}  // namespace prunex::device
