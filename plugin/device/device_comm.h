// SPDX-License-Identifier: Apache-2.0
// The hierarchical all-reduce on device memory: pack, reduce inside the node, dense all-reduce of
// the packed buffer between leaders, spread, unpack; all on the caller's stream, by NCCL and the
// kernels. The first call with a (layout, masks, type, operation) arms a plan: its ranks agree on
// it, and everything it needs is allocated. Later calls only enqueue; their headers are compared in
// the background, and a difference ends the communicator before anybody waits for ever.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/table.h"
#include "plugin/collective/comm.h"
#include "plugin/device/nccl_cliques.h"
#include "plugin/device/plan_maker.h"

namespace prunex::device {

using collective::CallSpec;

class DeviceComm {
 public:
  // Of one device; the communicator must outlive it, and the world, which is the communicator's own
  // but for tests of other rails. Talks to nobody.
  DeviceComm(collective::Comm& comm, const cuda::Table& table, int device,
             const topo::World* world = nullptr);
  ~DeviceComm();  // waits for what was enqueued
  DeviceComm(const DeviceComm&) = delete;
  DeviceComm& operator=(const DeviceComm&) = delete;

  // Returns when the call is enqueued; `lossless` and checked `sampled` calls wait for the check.
  [[nodiscard]] Result<> all_reduce(const CallSpec& spec, int device, void* stream);

  // What ended the communicator, or an error of NCCL, of the device or of a graph's checks that
  // came since the last call, which ends it now. Waits for nobody; not beside another call.
  [[nodiscard]] Result<> poll();

  // This rank's finding becomes the common verdict, which it returns; all that waits on devices
  // ends.
  [[nodiscard]] Error give_up(const Error& finding);

 private:
  struct Armed {
    std::shared_ptr<const collective::MaskedLayout> masked;
    bool compact = false, lossless = false, sampled = false, captured = false;
    uint64_t calls = 0;
    MadePlan made;  // compact
    uint32_t tiles = 0;
    uint64_t elements = 0, share = 0;  // that cross; of one rail
    DType partial = DType::f32;
    uint64_t divisor = 1;
    size_t wide_offset = 0;  // of the arena; 0: nothing is widened
    std::byte *packed = nullptr, *wide = nullptr;
  };
  using ArmedPtr = std::shared_ptr<Armed>;
  // One call's way: from -> to in the type that is added, then to `out` in the user's.
  struct Flow {
    const std::byte* from = nullptr;
    std::byte *to = nullptr, *out = nullptr;
    void* stream = nullptr;
    bool audited = false, contributes = true;
  };
  struct Found {  // sums over the ranks of the call
    uint64_t lossless, projected, nonfinite;
  };

  // device_comm.cc
  [[nodiscard]] Result<> run(const CallSpec& spec, void* stream, int attempt);
  [[nodiscard]] Result<> run_eager(const CallSpec& spec, void* stream, int attempt);
  [[nodiscard]] Result<> run_captured(const CallSpec& spec, void* stream);
  [[nodiscard]] Result<> announce(const CallSpec& spec);
  [[nodiscard]] Result<> failure() const;
  [[nodiscard]] Patience patience() const;
  void end_soon(const Error& error);
  void fail_now(const Error& error);
  void drain();
  [[nodiscard]] Result<> check_sticky() const;
  [[nodiscard]] Result<> order_after_last(void* stream);
  [[nodiscard]] Result<> await(void* event);

  // arm.cc
  [[nodiscard]] static uint64_t key_of(const CallSpec& spec);
  [[nodiscard]] Result<ArmedPtr> arm(const CallSpec& spec, int attempt);
  [[nodiscard]] Result<> join(const CallSpec& spec, const collective::Announcement& answer);
  [[nodiscard]] Result<> build(Armed& armed, const CallSpec& spec);
  [[nodiscard]] Result<> make_room(size_t bytes);
  [[nodiscard]] Result<> allocate_common();
  [[nodiscard]] Result<> reserve(Armed& armed, const CallSpec& spec);
  void place(Armed& armed) const;
  void forget_plans();
  void destroy(Armed& armed);

  // steps.cc
  [[nodiscard]] Result<> exchange(const CallSpec& spec, const Armed& armed, Flow& flow);
  [[nodiscard]] Result<> flat(const Armed& armed, const CallSpec& spec, Flow& flow);
  [[nodiscard]] Result<> among(nccl::Comm comm, const Armed& armed, const CallSpec& spec,
                               const Flow& flow);
  [[nodiscard]] Result<> layered(const CallSpec& spec, const Armed& armed, const Flow& flow);
  [[nodiscard]] Result<> gather_in_node(const CallSpec& spec, const Armed& armed, const Flow& flow);
  [[nodiscard]] Result<> between_leaders(const CallSpec& spec, const Armed& armed,
                                         const Flow& flow);
  [[nodiscard]] Result<> spread(const CallSpec& spec, const Armed& armed, const Flow& flow);
  [[nodiscard]] Result<> finish(const CallSpec& spec, const Armed& armed, const Flow& flow,
                                uint64_t offset, uint64_t count);
  [[nodiscard]] Result<> convert(const void* from, DType in, void* to, DType out, uint64_t count,
                                 uint64_t divisor, void* stream);
  [[nodiscard]] Result<> pack(const Armed& armed, const CallSpec& spec, const Flow& flow);
  [[nodiscard]] Result<> unpack(const Armed& armed, const CallSpec& spec, void* stream);
  [[nodiscard]] Result<> publish(void* stream, bool sticky);
  struct RailShare {
    uint64_t offset, count;
  };
  [[nodiscard]] RailShare share_of(const Armed& armed, const CallSpec& spec, size_t rail) const;
  [[nodiscard]] size_t contributions(collective::Scope scope) const;

  // violation.cc
  [[nodiscard]] Result<> resolve_violation(const CallSpec& spec, const Armed& armed, void* stream,
                                           int attempt);
  [[nodiscard]] Result<std::vector<collective::Offence>> offences_of(const CallSpec& spec,
                                                                     const Armed& armed,
                                                                     void* stream);

  collective::Comm& comm_;
  const cuda::Table& cuda_;
  const int device_;
  const topo::World& world_;
  const topo::Node& node_;
  size_t local_, rails_;
  std::vector<int> leader_locals_;  // by rail
  bool even_ = false;               // local rank r leads rail r, and there are no other ranks

  std::mutex mutex_;  // of the cliques: calls here, abort on the communicator's thread
  Cliques cliques_;
  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};

  std::unordered_map<uint64_t, ArmedPtr> armed_;
  std::vector<ArmedPtr> retired_, captured_;
  std::deque<std::shared_ptr<collective::Request>> announced_;
  struct Arena {
    std::byte* base = nullptr;
    size_t bytes = 0;
  };
  Arena arena_;
  std::vector<Arena> old_arenas_;
  uint32_t arch_ = 0, sms_ = 0;
  std::byte* common_ = nullptr;  // device: record, status, sticky, scratch
  std::byte* pinned_ = nullptr;  // host: Found of the call, Found of captured calls, a record
  void *last_event_ = nullptr, *audit_event_ = nullptr;
  bool any_call_ = false;
};

}  // namespace prunex::device
