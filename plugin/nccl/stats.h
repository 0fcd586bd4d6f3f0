// SPDX-License-Identifier: Apache-2.0
// What the plugin counts: per communicator, per direction and kind, and per mask. Written by
// progress threads, read by anybody.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace prunex::nccl {

// How a message travelled.
enum class WireKind : uint8_t { raw = 0, zero_block, masked };
inline constexpr size_t kWireKinds = 3;
[[nodiscard]] constexpr const char* name_of(WireKind kind) {
  constexpr std::array<const char*, kWireKinds> kNames{"raw", "zero_block", "masked"};
  return kNames[static_cast<size_t>(kind)];
}

class Count {  // several threads may add
 public:
  void add(uint64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  [[nodiscard]] uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct KindCounts {
  Count messages, logical, wire;  // bytes
  void message(uint64_t logical_bytes, uint64_t wire_bytes) {
    messages.add(1);
    logical.add(logical_bytes);
    wire.add(wire_bytes);
  }
};

struct DirectionCounts {
  std::array<KindCounts, kWireKinds> kind;
  Count codec_ns;  // packing, scanning, testing; or expanding
  [[nodiscard]] KindCounts& operator[](WireKind k) { return kind[static_cast<size_t>(k)]; }
};

// Messages of device memory.
struct DeviceCounts {
  struct Way {
    Count messages, bytes;  // logical
    void message(uint64_t logical) {
      messages.add(1);
      bytes.add(logical);
    }
  };
  Way packed;    // tested and packed by kernels, those that then went raw included
  Way unpacked;  // expanded by kernels
  Way direct;    // read or written by the network where they are
  Way staged;    // copied through pinned memory, in either direction
};

struct CollCounts {
  Count calls, dense, masked, unioned, mismatched, violated;
  Count logical, wire, busy_ns;
};

struct MaskCounts : KindCounts {
  std::string name;
  Count violated;
};

struct ContextStats {
  DirectionCounts sent, received;
  DeviceCounts device;
  CollCounts coll;
  Count stale;     // messages of a registered tensor that did not lie inside it
  Count violated;  // messages with something where the mask promised zeros: sent as they were
  Count connects, failures;
  std::atomic<int> open{0};  // comms

  // The counters of a mask, of all versions of one that has a name; they stay where they are. Those
  // of masks that are registered with an address are there already: asking allocates nothing.
  [[nodiscard]] MaskCounts& of_mask(uint64_t digest, const std::string& name);
  // With what each is called.
  [[nodiscard]] std::vector<std::pair<std::string, const MaskCounts*>> masks() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, MaskCounts> named_;
  std::map<uint64_t, MaskCounts> unnamed_;  // by digest
};

// Plain numbers, for reports.
struct Totals {
  struct Kind {
    uint64_t messages = 0, logical = 0, wire = 0;
  };
  std::array<Kind, kWireKinds> sent, received;
  struct Device {
    uint64_t messages = 0, bytes = 0;
  };
  Device packed, unpacked, direct, staged;  // of device memory: DeviceCounts
  uint64_t pack_ns = 0, unpack_ns = 0, stale = 0, violated = 0, connects = 0, failures = 0;
  uint64_t coll_calls = 0, coll_dense = 0, coll_masked = 0, coll_union = 0, coll_mismatched = 0,
           coll_violated = 0, coll_logical = 0, coll_wire = 0, coll_ns = 0;
  void add(const ContextStats& stats);
};

// Every communicator of the process, those that are gone included. Its masks get their counters,
// now and when they are registered.
void register_stats(std::shared_ptr<ContextStats> stats);
[[nodiscard]] Totals all_totals();

// "sent 12 messages, 5.00 MB as 2.10 MB (raw 3, zero-block 9, masked 0); received …"
[[nodiscard]] std::string summary(const Totals& totals);
// Prometheus' text format, of all communicators.
[[nodiscard]] std::string metrics_text();

// Rewrites `path` every ten seconds and when a communicator closes; "%p" becomes the process id.
// Empty: nothing. The one thread this takes is started once.
void start_metrics(const std::string& path);
void write_metrics();

}  // namespace prunex::nccl
