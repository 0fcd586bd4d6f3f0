// SPDX-License-Identifier: Apache-2.0
// An opened port: context, protection domain and what was chosen on it.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plugin/transport/verbs/api.h"
#include "plugin/transport/verbs/verbs.h"

namespace prunex::transport::verbs {

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
  struct Partition {
    uint16_t index = 0;    // of its key in the table
    uint32_t changes = 0;  // of that key before
  };
  [[nodiscard]] Partition partition();  // a few system calls
  [[nodiscard]] const VerbsOptions& options() const { return options_; }

  // Takes what the device has to say about itself. Empty: what uses these here may go on; else why
  // it may not. A few system calls.
  struct Used {
    Gid gid;
    std::span<const uint32_t> pairs;  // numbers of queue pairs
    const ibv_cq* queue = nullptr;
    uint32_t pkey_changes = 0;  // as partition() said before the pairs were made
  };
  [[nodiscard]] std::string trouble(const Used& used);
  // New ones, which may have the number or the place of one that failed and is gone.
  void welcome_pair(uint32_t number);
  void welcome_queue(const ibv_cq* queue);
  [[nodiscard]] int event_fd() const { return context_->async_fd; }

  // Connections on one device may be driven by several threads.
  std::atomic<int> queue_pairs = 0;  // alive on this device, of this process
  std::atomic<bool> refuses_relaxed = false;

 private:
  Device(const Api& api, const PortInfo& port, const VerbsOptions& options)
      : api_(api), port_(port), options_(options) {}
  struct Failed {
    uint32_t pair = 0;
    const ibv_cq* queue = nullptr;  // or a queue of completions
    std::string why;
  };
  void take_events();
  void note_failed(const ibv_async_event& event);
  void look_at_gids();
  void look_at_pkeys();

  const Api& api_;
  PortInfo port_;
  VerbsOptions options_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  std::mutex mutex_;  // of what follows
  uint16_t pkey_index_ = 0;
  uint32_t pkey_changes_ = 0;
  std::string pkey_trouble_;  // for what was made before the last change
  std::vector<Failed> failed_;
  Gid gid_;
  std::vector<Gid> gids_;
  bool down_ = false, fatal_ = false;
};

}  // namespace prunex::transport::verbs
