// SPDX-License-Identifier: Apache-2.0
// What is told to the other ranks by a rank that takes no part in a call, and what it knows between
// two calls.
#include "plugin/device/refuse.h"

#include "plugin/base/digest.h"
#include "plugin/device/backend.h"
#include "plugin/device/device_comm.h"
#include "plugin/device/on_device.h"

namespace prunex::device {

namespace {

Result<> check_aligned(const void* p, const char* name, DType type) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at % size_of(type) == 0) {
    return {};
  }
  return fail(Code::invalid_argument,
              strf("%s is %#zx, no multiple of %zu, the size of %s: device buffers begin at a "
                   "multiple of their element's size; copy it to memory that does",
                   name, static_cast<size_t>(at), size_of(type), name_of(type)));
}

}  // namespace

CallSpec header_of(const CallSpec& spec, bool offences) {
  constexpr uint64_t kHeaderOfDevice = 0x6465766963650000;
  CallSpec header = spec;
  header.extra_digest = Digest(kHeaderOfDevice).add(offences).value();
  header.announced = std::make_shared<collective::Announcement>();
  return header;
}

Result<> check_alignment(const CallSpec& spec) {
  auto good = check_aligned(spec.send, "send", spec.type);
  return good ? check_aligned(spec.recv, "recv", spec.type) : good;
}

// As a rank that arms such a call: with different masks everybody comes once more without.
Result<> refuse_call(collective::Comm& comm, const CallSpec& spec, const Error& why) {
  CallSpec call = spec;
  while (true) {
    const CallSpec header = header_of(call, false);
    header.announced->again = call.masked != spec.masked;
    header.announced->record = Cliques::refusal(why.text, static_cast<size_t>(comm.world().rails));
    if (auto agreed = comm.all_reduce(header); !agreed) {
      return agreed;
    }
    if (!header.announced->differ) {
      return tl::unexpected(why);
    }
    call.masked = nullptr;
  }
}

Result<> DeviceComm::poll() {
  Result<> state = failure();
  if (!state) {
    return state;
  }
  const OnDevice current(cuda_, device_);
  state = check_sticky();
  int done = 0;
  if (state && any_call_) {
    state = check_cuda(cuda_, cuda_.event_done(last_event_, &done), "an earlier call");
  }
  if (state) {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // who has it looks himself
    state = !lock ? Result<>() : failed_ ? failure() : cliques_.check();
  }
  if (!state) {
    end_soon(state.error());
  }
  return state;
}

void DeviceComm::end_soon(const Error& error) {
  fail_now(error);
  CallSpec end;
  end.announced = std::make_shared<collective::Announcement>();
  end.announced->finding = error;
  (void)comm_.submit(end);
}

}  // namespace prunex::device
