// SPDX-License-Identifier: Apache-2.0
// A sending and a receiving comm in one process, driven through the table's functions by turns.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/nccl/net_calls.h"
#include "plugin/nccl/stats.h"

namespace prunex::nccl {

inline constexpr double kPatience = 120;  // seconds until a test calls it a hang

class NetPair {
 public:
  explicit NetPair(uint64_t comm_id = 1) {
    EXPECT_EQ(net().init(&ctx, comm_id, -1, nullptr), kSuccess);
    EXPECT_EQ(net().listen(ctx, 0, handle, &listening), kSuccess);
    const Deadline deadline = Deadline::after(kPatience);
    while ((send == nullptr || recv == nullptr) && !deadline.passed()) {
      if (send == nullptr && net().connect(ctx, 0, handle, &send) != kSuccess) {
        break;
      }
      if (recv == nullptr && net().accept(listening, &recv) != kSuccess) {
        break;
      }
    }
    EXPECT_TRUE(send != nullptr && recv != nullptr);
  }
  NetPair(const NetPair&) = delete;
  NetPair& operator=(const NetPair&) = delete;
  ~NetPair() {
    if (send != nullptr) {
      EXPECT_EQ(net().close_send(send), kSuccess);
    }
    if (recv != nullptr) {
      EXPECT_EQ(net().close_recv(recv), kSuccess);
    }
    EXPECT_EQ(net().close_listen(listening), kSuccess);
    EXPECT_EQ(net().finalize(ctx), kSuccess);
  }
  static const NetCalls& net() { return net_calls(); }

  // Tests both until the wanted one is done; the other may be null.
  static int finish(void* request, int* bytes, void* other = nullptr) {
    const Deadline deadline = Deadline::after(kPatience);
    for (int done = 0; !deadline.passed();) {
      if (const int status = net().test(request, &done, bytes); status != kSuccess || done != 0) {
        return status;
      }
      int other_done = 0;
      if (other != nullptr) {
        if (const int status = net().test(other, &other_done, nullptr); status != kSuccess) {
          return status;
        }
        other = other_done != 0 ? nullptr : other;
      }
    }
    ADD_FAILURE() << "a request is never done";
    return kInternalError;
  }

  // One message, both ends checked: what arrives is what was sent, and nothing else is written.
  void exchange(const std::vector<std::byte>& data, size_t capacity = 0) {
    exchange(data.data(), data.size(), capacity);
  }
  void exchange(const void* data, size_t bytes, size_t capacity = 0) {
    std::vector<std::byte> into(std::max(capacity, bytes) + 64, std::byte{0xEE});
    void* in = into.data();
    const size_t room = std::max(capacity, bytes);
    void* mr = nullptr;
    void *s = nullptr, *r = nullptr;
    ASSERT_EQ(net().irecv(recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
    ASSERT_EQ(net().isend(send, const_cast<void*>(data), bytes, 0, nullptr, &s), kSuccess);
    ASSERT_TRUE(s != nullptr && r != nullptr);
    int got = -1, sent = -1;
    const Deadline deadline = Deadline::after(kPatience);
    for (int s_done = 0, r_done = 0; (s_done == 0 || r_done == 0);) {
      ASSERT_FALSE(deadline.passed());
      if (s_done == 0) {
        ASSERT_EQ(net().test(s, &s_done, &sent), kSuccess);
      }
      if (r_done == 0) {
        ASSERT_EQ(net().test(r, &r_done, &got), kSuccess);
      }
    }
    EXPECT_EQ(got, static_cast<int>(bytes));
    EXPECT_EQ(sent, static_cast<int>(bytes));
    EXPECT_EQ(bytes == 0 ? 0 : std::memcmp(data, into.data(), bytes), 0);
    for (size_t i = bytes; i < into.size(); ++i) {
      ASSERT_EQ(into[i], std::byte{0xEE}) << "written behind the message, at +" << i - bytes;
    }
  }

  void *ctx = nullptr, *listening = nullptr, *send = nullptr, *recv = nullptr;
  alignas(8) unsigned char handle[kHandleBytes] = {};
};

// What was sent while a piece of a test ran.
class Sent {
 public:
  Sent() : before_(all_totals()) {}
  [[nodiscard]] uint64_t messages(WireKind k) const {
    return all_totals().sent[static_cast<size_t>(k)].messages -
           before_.sent[static_cast<size_t>(k)].messages;
  }
  [[nodiscard]] uint64_t wire() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < kWireKinds; ++i) {
      sum += all_totals().sent[i].wire - before_.sent[i].wire;
    }
    return sum;
  }
  [[nodiscard]] uint64_t violated() const { return all_totals().violated - before_.violated; }
  [[nodiscard]] uint64_t stale() const { return all_totals().stale - before_.stale; }

 private:
  Totals before_;
};

// The environment of a test, put back at its end.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    was_set_ = before != nullptr;
    before_ = was_set_ ? before : "";
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Variable() { was_set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool was_set_;
};

}  // namespace prunex::nccl
