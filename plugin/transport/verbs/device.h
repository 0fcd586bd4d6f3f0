// SPDX-License-Identifier: Apache-2.0
// An opened port: context, protection domain and what was chosen on it.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
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
  // What may have changed since it was opened: by a flap, a new address, the subnet manager.
  struct Now {
    Gid gid;
    uint16_t lid = 0;
    int mtu = 0;  // bytes
  };
  [[nodiscard]] Now now();  // a few system calls
  [[nodiscard]] uint16_t pkey_index() const { return pkey_index_; }
  [[nodiscard]] const VerbsOptions& options() const { return options_; }

  // Takes what the device has to say about itself. Empty: what uses `gid` here may go on; else why
  // it may not. A few system calls.
  [[nodiscard]] std::string trouble(const Gid& used);
  [[nodiscard]] int event_fd() const { return context_->async_fd; }

  // Connections on one device may be driven by several threads.
  std::atomic<int> queue_pairs = 0;  // alive on this device, of this process
  std::atomic<bool> refuses_relaxed = false;

 private:
  Device(const Api& api, const PortInfo& port, const VerbsOptions& options)
      : api_(api), port_(port), options_(options) {}
  void take_events();

  const Api& api_;
  PortInfo port_;
  VerbsOptions options_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  uint16_t pkey_index_ = 0;
  std::mutex mutex_;  // of what follows
  Gid gid_;
  std::vector<Gid> gids_;
  bool down_ = false, fatal_ = false;
};

}  // namespace prunex::transport::verbs
