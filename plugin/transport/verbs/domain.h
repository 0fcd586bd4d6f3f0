// SPDX-License-Identifier: Apache-2.0
// The ports of one transport, and what is registered on all of them.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "plugin/transport/verbs/memory.h"

namespace prunex::transport::verbs {

// What is registered stays so until the last of its users has given it back; whatever lies within
// it needs no call of the library meanwhile. Only registering puts anything here, so nothing here
// outlives its owner's word for it. Connections may be driven by several threads.
class Domain : public std::enable_shared_from_this<Domain> {
 public:
  explicit Domain(std::vector<std::shared_ptr<Device>> rails) : rails_(std::move(rails)) {}

  [[nodiscard]] const std::vector<std::shared_ptr<Device>>& rails() const { return rails_; }
  [[nodiscard]] const VerbsOptions& options() const { return rails_.front()->options(); }

  [[nodiscard]] Result<std::unique_ptr<Region>> add(void* data, size_t bytes, Order order);
  [[nodiscard]] Result<std::unique_ptr<Region>> add(const DmaBuf& buffer, void* data, size_t bytes);
  // One of its users gives it back.
  void remove(const Memory& memory);

 private:
  struct Entry {
    std::shared_ptr<const Memory> memory;
    size_t users = 0;
  };
  std::vector<std::shared_ptr<Device>> rails_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

// What register_memory() gives. Operations in flight keep the memory registered by themselves, but
// from the end of its last Region on nothing new finds it: its address may be another's by then.
struct VerbsRegion final : Region {
  VerbsRegion(std::shared_ptr<Domain> d, std::shared_ptr<const Memory> m)
      : Region(d.get()), domain(std::move(d)), memory(std::move(m)) {}
  ~VerbsRegion() override { domain->remove(*memory); }
  std::shared_ptr<Domain> domain;
  std::shared_ptr<const Memory> memory;
};

}  // namespace prunex::transport::verbs
