// SPDX-License-Identifier: Apache-2.0
// An opened port: context, protection domain and what was chosen on it; and memory registered
// there.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "plugin/transport/verbs/api.h"
#include "plugin/transport/verbs/verbs.h"

namespace prunex::transport::verbs {

[[nodiscard]] Result<std::vector<PortInfo>> list_ports(const Api& api);

// Shared by all that lives on the port; the last one closes it.
class Device {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Device>> open(const Api& api, const PortInfo& port,
                                                            const VerbsOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const Api& api() const { return api_; }
  [[nodiscard]] ibv_context* context() const { return context_; }
  [[nodiscard]] ibv_pd* domain() const { return domain_; }
  [[nodiscard]] const PortInfo& port() const { return port_; }
  [[nodiscard]] const Gid& gid() const { return gid_; }
  [[nodiscard]] uint16_t pkey_index() const { return pkey_index_; }
  [[nodiscard]] const VerbsOptions& options() const { return options_; }

  // Takes what the device has to say about itself. `false`: the port is down.
  bool look_at_events();
  [[nodiscard]] int event_fd() const { return context_->async_fd; }

  // Connections on one device may be driven by several threads.
  std::atomic<int> queue_pairs = 0;  // alive on this device, of this process

 private:
  Device(const Api& api, const PortInfo& port, const VerbsOptions& options)
      : api_(api), port_(port), options_(options) {}

  const Api& api_;
  PortInfo port_;
  VerbsOptions options_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  Gid gid_;
  uint16_t pkey_index_ = 0;
  std::atomic<bool> down_ = false;
};

class Memory {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Memory>> open(std::shared_ptr<Device> device,
                                                            void* data, size_t bytes);
  ~Memory() { device_->api().dereg_mr(region_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] bool holds(const void* data, size_t bytes) const;
  [[nodiscard]] uint32_t local_key() const { return region_->lkey; }
  [[nodiscard]] uint32_t remote_key() const { return region_->rkey; }
  [[nodiscard]] const Device* device() const { return device_.get(); }

 private:
  Memory(std::shared_ptr<Device> device, ibv_mr* region)
      : device_(std::move(device)), region_(region) {}
  std::shared_ptr<Device> device_;
  ibv_mr* region_;
};

// What register_memory() gives. Operations in flight keep the memory registered by themselves.
struct VerbsRegion final : Region {
  explicit VerbsRegion(std::shared_ptr<Memory> m) : memory(std::move(m)) {}
  std::shared_ptr<Memory> memory;
};

}  // namespace prunex::transport::verbs
