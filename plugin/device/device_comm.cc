// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_comm.h"

#include <cstring>
#include <ctime>

#include "plugin/base/clock.h"
#include "plugin/device/backend.h"
#include "plugin/device/common_memory.h"
#include "plugin/device/on_device.h"
#include "plugin/device/refuse.h"

namespace prunex::device {
namespace {

constexpr uint64_t kSampleFirst = 10, kSampleEvery = 64;
constexpr size_t kAnnouncedLimit = 256;  // headers under way, when the host runs far ahead
constexpr double kDrainS = 10;
// cudaError_t
constexpr int kInvalidValue = 1, kInvalidHandle = 400, kFirstOfCapture = 900, kLastOfCapture = 908;

const topo::Node& node_of(const topo::World& world, int rank) {
  return world.nodes[static_cast<size_t>(world.node_of[static_cast<size_t>(rank)])];
}

}  // namespace

DeviceComm::DeviceComm(collective::Comm& comm, const cuda::Table& table, int device,
                       const topo::World* world)
    : comm_(comm),
      cuda_(table),
      device_(device),
      world_(world != nullptr ? *world : comm.world()),
      node_(node_of(world_, comm.rank())),
      local_(static_cast<size_t>(world_.local_of[static_cast<size_t>(comm.rank())])),
      rails_(static_cast<size_t>(world_.rails)),
      cliques_(world_, comm.rank()) {
  even_ = rails_ == node_.ranks.size();
  for (size_t r = 0; r < rails_; ++r) {
    leader_locals_.push_back(world_.local_of[static_cast<size_t>(node_.leaders[r].rank)]);
    even_ = even_ && leader_locals_[r] == static_cast<int>(r);
  }
  comm_.on_abort([this](const Error& error) { fail_now(error); });
}

DeviceComm::~DeviceComm() {
  comm_.on_abort({});
  comm_.wait_idle();
  for (const auto& request : announced_) {
    (void)request->wait();
  }
  const OnDevice current(cuda_, device_);
  if (auto done = failed_ ? failure() : any_call_ ? await(last_event_) : Result<>(); !done) {
    fail_now(done.error());
    drain();
  }
  for (auto& [key, armed] : armed_) {
    destroy(*armed);
  }
  for (auto* list : {&retired_, &captured_}) {
    for (const ArmedPtr& armed : *list) {
      destroy(*armed);
    }
  }
  old_arenas_.push_back(arena_);
  for (const Arena& arena : old_arenas_) {
    (void)(arena.base != nullptr ? cuda_.deallocate(arena.base) : 0);
  }
  (void)(common_ != nullptr ? cuda_.deallocate(common_) : 0);
  (void)(pinned_ != nullptr ? cuda_.deallocate_pinned(pinned_) : 0);
  for (void* event : {last_event_, audit_event_}) {
    (void)(event != nullptr ? cuda_.event_destroy(event) : 0);
  }
  const std::lock_guard lock(mutex_);
  cliques_.destroy();
}

// What was enqueued before the end runs on, and still uses our memory.
void DeviceComm::drain() {
  const Deadline deadline = Deadline::after(kDrainS);
  int done = any_call_ ? 0 : 1;
  while (done == 0 && !deadline.passed() && cuda_.event_done(last_event_, &done) == 0 &&
         done == 0) {
    const timespec t{0, 100'000};
    ::nanosleep(&t, nullptr);
  }
}

Result<> DeviceComm::all_reduce(const CallSpec& spec, int device, void* stream) {
  if (device != device_) {
    return fail(Code::invalid_argument,
                strf("this communicator works on device %d, the buffers are on device %d: one "
                     "communicator for each device",
                     device_, device));
  }
  if (auto good = check_alignment(spec); !good) {
    return good;
  }
  const OnDevice current(cuda_, device_);
  if (auto good = check_cuda(cuda_, current.error(), "the buffers' device"); !good) {
    return good;
  }
  return run(spec, stream, 0);
}

Result<> DeviceComm::run(const CallSpec& spec, void* stream, int attempt) {
  if (auto alive = failure(); !alive) {
    return alive;
  }
  int capturing = 0;
  // Others wait for this rank's part already: a device that is broken must not stay a secret. What
  // is no stream at all, or cannot be asked while another is captured, is this call's own fault.
  if (const int error = cuda_.stream_capturing(stream, &capturing); error != 0) {
    auto known = check_cuda(cuda_, error, "the stream");
    const bool capture = error >= kFirstOfCapture && error <= kLastOfCapture;
    if (error == kInvalidValue || error == kInvalidHandle || capture) {
      known.error().code = Code::invalid_argument;
    } else {
      (void)give_up(known.error());
    }
    return known;
  }
  if (capturing != 0) {
    return run_captured(spec, stream);
  }
  Result<> result = check_sticky();
  if (result) {
    const std::lock_guard lock(mutex_);
    result = failed_ ? failure() : cliques_.check();
  }
  if (result) {
    return run_eager(spec, stream, attempt);
  }
  return tl::unexpected(give_up(result.error()));
}

// From the announcement on, an error of this rank alone is everybody's: they count on its part.
Result<> DeviceComm::run_eager(const CallSpec& spec, void* stream, int attempt) {
  ArmedPtr armed;
  bool audited = false;
  if (const auto found = armed_.find(key_of(spec)); found != armed_.end()) {
    armed = found->second;
    const uint64_t call = armed->calls++;
    audited =
        armed->lossless || (armed->sampled && (call < kSampleFirst || call % kSampleEvery == 0));
    if (auto told = announce(spec); !told) {
      return told;
    }
  } else {
    auto made = arm(spec, attempt);
    if (!made) {
      return tl::unexpected(made.error());
    }
    armed = *made;
    ++armed->calls;
    audited = armed->lossless || armed->sampled;
  }
  if (spec.count == 0) {
    return {};
  }
  Flow flow;
  flow.stream = stream;
  flow.audited = audited && armed->compact;
  Result<> result = order_after_last(stream);
  if (result) {
    result = exchange(spec, *armed, flow);
  }
  bool violated = false;
  if (result && flow.audited) {
    result = check_cuda(cuda_, cuda_.event_record(audit_event_, stream), "recording an event");
    if (result) {
      result = await(audit_event_);
    }
    Found found{};
    std::memcpy(&found, pinned_ + CommonMemory::kHostFound, sizeof found);
    violated = result && found.lossless != 0;
  }
  if (result && !violated && armed->compact) {
    result = unpack(*armed, spec, stream);
  }
  const Result<> recorded =
      check_cuda(cuda_, cuda_.event_record(last_event_, stream), "recording an event");
  any_call_ = true;
  result = result ? recorded : result;
  if (!result) {
    return tl::unexpected(give_up(result.error()));
  }
  return violated ? resolve_violation(spec, *armed, stream, attempt) : Result<>();
}

// A graph is replayed without the host: nothing can be agreed, and nobody waits for a check.
Result<> DeviceComm::run_captured(const CallSpec& spec, void* stream) {
  const auto found = armed_.find(key_of(spec));
  if (found == armed_.end()) {
    return fail(
        Code::invalid_argument,
        "a call under graph capture needs a plan: make the same call (layout, masks, count, "
        "type, operation, scope) once outside of the capture");
  }
  const ArmedPtr armed = found->second;
  if (armed->lossless && armed->compact) {
    return fail(
        Code::invalid_argument,
        "a 'lossless' mask cannot be checked inside a captured graph: give it the 'project' "
        "or the 'sampled' contract, or capture without the layout");
  }
  if (spec.count == 0) {
    return {};
  }
  if (!armed->captured) {
    armed->captured = true;
    captured_.push_back(armed);  // its memory is the graph's, too
  }
  Flow flow;
  flow.stream = stream;
  flow.audited = armed->sampled && armed->compact;
  Result<> result = exchange(spec, *armed, flow);
  if (result && flow.audited) {
    result = publish(stream, true);
  }
  if (result && armed->compact) {
    result = unpack(*armed, spec, stream);
  }
  return result ? result : Result<>(tl::unexpected(give_up(result.error())));
}

// In the background: nobody waits for the answer, which can only be an error.
Result<> DeviceComm::announce(const CallSpec& spec) {
  while (!announced_.empty() &&
         (announced_.front()->done() || announced_.size() >= kAnnouncedLimit)) {
    (void)announced_.front()->wait();
    announced_.pop_front();
  }
  if (auto alive = failure(); !alive) {
    return alive;
  }
  const CallSpec header = header_of(spec, false);
  auto answer = header.announced;
  announced_.push_back(comm_.submit(header, [this, answer](const Result<>& result) {
    if (result && !answer->differ) {
      return;
    }
    end_soon(result ? Error{Code::mismatch,
                            strf("rank %d had begun a call with other masks than some other ranks: "
                                 "masks must change on all ranks between the same two calls",
                                 comm_.rank()),
                            0, comm_.rank()}
                    : result.error());
  }));
  return {};
}

Result<> DeviceComm::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_ ? Result<>(tl::unexpected(*failure_)) : Result<>();
}

Patience DeviceComm::patience() const {
  return [this, deadline = Deadline::after(comm_.timeout_s())]() -> Result<> {
    if (failed_) {
      return failure();
    }
    if (deadline.passed()) {
      return fail(Code::timeout,
                  strf("rank %d: the exchange between devices did not end within %g s",
                       comm_.rank(), comm_.timeout_s()),
                  0, comm_.rank());
    }
    return {};
  };
}

Error DeviceComm::give_up(const Error& finding) {
  fail_now(finding);
  CallSpec end;
  end.announced = std::make_shared<collective::Announcement>();
  end.announced->finding = finding;
  if (end.announced->finding->rank < 0) {
    end.announced->finding->rank = comm_.rank();
  }
  auto verdict = comm_.all_reduce(end);
  const Error common = verdict ? finding : verdict.error();
  const std::lock_guard lock(failure_mutex_);
  failure_ = common;
  return common;
}

void DeviceComm::fail_now(const Error& error) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_ = error;
    }
  }
  failed_ = true;  // whoever holds the mutex and waits looks at it
  const std::lock_guard lock(mutex_);
  cliques_.abort();
}

Result<> DeviceComm::check_sticky() const {
  Found found{};
  if (pinned_ != nullptr) {
    std::memcpy(&found, pinned_ + CommonMemory::kHostSticky, sizeof found);
  }
  if (found.lossless == 0) {
    return {};
  }
  return fail(
      Code::mismatch,
      strf("rank %d: a captured graph dropped %llu non-zero elements of masks with the "
           "'sampled' contract: its results since then are wrong; 'project' is the contract "
           "for masks whose dropped elements may have values",
           comm_.rank(), static_cast<unsigned long long>(found.lossless)),
      0, comm_.rank());
}

// Calls share buffers: one after the other, on whatever streams they are. A handle does not tell
// two streams apart: one is each thread's own, others are used again.
Result<> DeviceComm::order_after_last(void* stream) {
  if (!any_call_) {
    return {};
  }
  return check_cuda(cuda_, cuda_.stream_wait(stream, last_event_), "ordering two streams");
}

Result<> DeviceComm::await(void* event) {
  const Patience patient = patience();
  for (uint64_t look = 0;; ++look) {
    int done = 0;
    if (auto known = check_cuda(cuda_, cuda_.event_done(event, &done), "waiting for the stream");
        !known || done != 0) {
      return known;
    }
    if (look < 64) {
      continue;
    }
    if (auto good = patient(); !good) {
      return good;
    }
    if (look % 64 == 0) {
      const std::lock_guard lock(mutex_);
      if (auto good = failed_ ? failure() : cliques_.check(); !good) {
        return good;
      }
    }
    const timespec t{0, 10'000};
    ::nanosleep(&t, nullptr);
  }
}

}  // namespace prunex::device
