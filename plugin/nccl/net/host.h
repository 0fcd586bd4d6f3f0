// SPDX-License-Identifier: Apache-2.0
// What the plugin knows about this process: configuration, devices, NCCL's logger and its
// communicators (contexts). Lives until the process ends: NCCL closes communicators in exit
// handlers, after those of a library.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"
#include "plugin/nccl/net/devices.h"
#include "plugin/nccl/net/object.h"
#include "plugin/nccl/stats.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

// What tells NCCL's protocols apart by the length they register (reference: FIFO buffers of LL,
// LL128 and Simple are registered with these sizes).
struct FifoBytes {
  size_t ll = 524288, ll128 = 4915200, simple = 4194304;
};

// The transports that are open, shared by all that is on a device: an RDMA device is opened once,
// however many connections it has, and closed with the last.
struct OpenTransports {
  using Key = std::tuple<int, int, uint32_t>;  // device, traffic class, forks() when opened
  std::mutex mutex;
  std::map<Key, std::weak_ptr<transport::Transport>> all;
};

struct Settings {
  Config config;
  FifoBytes fifo;
  bool takes_device = false;  // device memory of this process; config says it of the job's
  std::vector<Device> devices;
  std::unique_ptr<OpenTransports> open = std::make_unique<OpenTransports>();
};

// One of NCCL's communicators.
struct Context : Object {
  static constexpr Tag kTag = Tag::context;
  explicit Context(uint64_t id) : Object(kTag), comm_id(id) {}
  uint64_t comm_id;
  int traffic_class = -1;
  std::shared_ptr<const Settings> settings;
  std::shared_ptr<ContextStats> stats = std::make_shared<ContextStats>();
};

class Host {
 public:
  [[nodiscard]] static Host& instance();

  // The first one reads configuration and devices; the others share them.
  [[nodiscard]] Result<std::shared_ptr<Context>> open(uint64_t comm_id, int traffic_class,
                                                      Logger logger);
  void close(void* context);  // nothing happens to one that is not open
  [[nodiscard]] std::shared_ptr<Context> find(void* context) const;  // null: not open

  // Of the last start; empty before it.
  [[nodiscard]] std::shared_ptr<const Settings> settings() const;
  [[nodiscard]] const char* lasting(const std::string& text);  // a copy that is never freed

 private:
  Host() = default;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Context>> contexts_;
  std::shared_ptr<const Settings> settings_;
  std::set<std::string> texts_;
};

// NCCL says on a thread what the transfers are that follow on it.
void set_thread_hint(const void* context, const TransferHint& hint);
[[nodiscard]] TransferHint thread_hint(const void* context);

}  // namespace prunex::nccl
