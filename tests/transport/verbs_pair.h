// SPDX-License-Identifier: Apache-2.0
// The verbs transport on the fake.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/transport/verbs/verbs.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/pair.h"

namespace prunex::transport {

inline std::unique_ptr<Transport> open_fake_verbs(fake::World& world, VerbsOptions options = {}) {
  options.api = &world.api();
  auto t = open_verbs_transport(options);
  EXPECT_TRUE(t) << t.error().text;
  return t ? std::move(*t) : nullptr;
}

// Brings its own world, for tests that know no more than a transport.
class FakeVerbsTransport final : public Transport {
 public:
  explicit FakeVerbsTransport(fake::FakeDevice device, const VerbsOptions& options = {})
      : world_({std::move(device)}), inner_(open_fake_verbs(world_, options)) {}
  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  Result<std::unique_ptr<Listener>> listen() override { return inner_->listen(); }
  Result<std::unique_ptr<Connecting>> connect(std::string_view handle, std::string_view hello,
                                              double timeout_s) override {
    return inner_->connect(handle, hello, timeout_s);
  }
  Result<std::unique_ptr<Region>> register_memory(void* data, size_t bytes) override {
    return inner_->register_memory(data, bytes);
  }

 private:
  fake::World world_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace prunex::transport
