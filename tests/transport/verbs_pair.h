// SPDX-License-Identifier: Apache-2.0
// The verbs transport on the fake.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/transport/verbs/verbs.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/pair.h"

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

namespace prunex::transport {

inline std::unique_ptr<Transport> open_fake_verbs(fake::World& world, VerbsOptions options = {}) {
  options.api = &world.api();
  auto t = open_verbs_transport(options);
  EXPECT_TRUE(t) << t.error().text;
  return t ? std::move(*t) : nullptr;
}

// One message between registered buffers; both ends checked.
inline void exchange_registered(Transport& transport, Pair& p, const std::vector<std::byte>& out) {
  std::vector<std::byte> into(out.size());
  auto from = transport.register_memory(const_cast<std::byte*>(out.data()), out.size()),
       to = transport.register_memory(into.data(), into.size());
  ASSERT_TRUE(from && to);
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), to->get(), &r), Io::done);
  ASSERT_EQ(p.a->isend(out.data(), out.size(), from->get(), &s), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done) << p.a->error().text;
  EXPECT_EQ(into, out);
}

// Registers whatever is sent or received, as users do who can: once per buffer and operation.
class RegisteringConnection final : public Connection {
 public:
  RegisteringConnection(Transport& transport, std::unique_ptr<Connection> inner)
      : transport_(transport), inner_(std::move(inner)) {}
  Io isend(const void* data, size_t bytes, const Region*, Ticket* out, Mark mark) override {
    auto region = add(const_cast<void*>(data), bytes);
    return keep(inner_->isend(data, bytes, region.get(), out, mark), std::move(region), *out);
  }
  Io irecv(void* data, size_t capacity, const Region*, Ticket* out, Aside* aside) override {
    auto region = add(data, capacity);
    return keep(inner_->irecv(data, capacity, region.get(), out, aside), std::move(region), *out);
  }
  Io test(Ticket ticket, size_t* bytes, Mark* mark) override {
    const Io io = inner_->test(ticket, bytes, mark);
    if (io == Io::done) {
      regions_.erase(ticket);
    }
    return io;
  }
  Io progress() override { return inner_->progress(); }
  void poll_fds(std::vector<pollfd>& out) const override { inner_->poll_fds(out); }
  [[nodiscard]] const Error& error() const override { return inner_->error(); }
  [[nodiscard]] std::string_view hello() const override { return inner_->hello(); }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<Region> add(void* data, size_t bytes) {
    auto r = bytes > 0 ? transport_.register_relaxed(data, bytes)
                       : Result<std::unique_ptr<Region>>(nullptr);
    EXPECT_TRUE(r) << r.error().text;
    return r ? *std::move(r) : nullptr;
  }
  Io keep(Io io, std::unique_ptr<Region> region, Ticket ticket) {
    if (io == Io::done) {
      regions_[ticket] = std::move(region);
    }
    return io;
  }

  Transport& transport_;
  std::map<Ticket, std::unique_ptr<Region>> regions_;
  std::unique_ptr<Connection> inner_;
};

class RegisteringListener final : public Listener {
 public:
  RegisteringListener(Transport& transport, std::unique_ptr<Listener> inner)
      : transport_(transport), inner_(std::move(inner)) {}
  [[nodiscard]] std::string handle() const override { return inner_->handle(); }
  Result<std::unique_ptr<Connection>> accept() override {
    auto r = inner_->accept();
    return r && *r ? std::make_unique<RegisteringConnection>(transport_, *std::move(r))
                   : std::move(r);
  }
  void poll_fds(std::vector<pollfd>& out) const override { inner_->poll_fds(out); }

 private:
  Transport& transport_;
  std::unique_ptr<Listener> inner_;
};

class RegisteringConnecting final : public Connecting {
 public:
  RegisteringConnecting(Transport& transport, std::unique_ptr<Connecting> inner)
      : transport_(transport), inner_(std::move(inner)) {}
  Result<std::unique_ptr<Connection>> step() override {
    auto r = inner_->step();
    return r && *r ? std::make_unique<RegisteringConnection>(transport_, *std::move(r))
                   : std::move(r);
  }
  void poll_fds(std::vector<pollfd>& out) const override { inner_->poll_fds(out); }

 private:
  Transport& transport_;
  std::unique_ptr<Connecting> inner_;
};

// Brings its own world, for tests that know no more than a transport.
class FakeVerbsTransport final : public Transport {
 public:
  struct Setting {
    VerbsOptions options;
    bool registers = false;
    uint64_t scatter = 0;  // not 0: every queue pair takes its time
  };
  FakeVerbsTransport(std::vector<fake::FakeDevice> devices, const Setting& setting)
      : world_(std::move(devices)),
        inner_(open_fake_verbs(world_, setting.options)),
        registers_(setting.registers) {
    if (setting.scatter != 0) {
      world_.scatter(setting.scatter);
    }
  }
  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  Result<std::unique_ptr<Listener>> listen() override {
    auto r = inner_->listen();
    return r && registers_ ? std::make_unique<RegisteringListener>(*inner_, *std::move(r))
                           : std::move(r);
  }
  Result<std::unique_ptr<Connecting>> connect(std::string_view handle, std::string_view hello,
                                              double timeout_s) override {
    auto r = inner_->connect(handle, hello, timeout_s);
    return r && registers_ ? std::make_unique<RegisteringConnecting>(*inner_, *std::move(r))
                           : std::move(r);
  }
  Result<std::unique_ptr<Region>> register_memory(void* data, size_t bytes) override {
    return inner_->register_memory(data, bytes);
  }

 private:
  fake::World world_;
  std::unique_ptr<Transport> inner_;
  bool registers_;
};

}  // namespace prunex::transport
