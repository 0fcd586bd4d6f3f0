// SPDX-License-Identifier: Apache-2.0
// A libprunex.so that only writes down what the plugin module calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/nccl/internal_table.h"

namespace prunex::nccl::fake {

struct Call {
  std::string function;         // "net.isend"
  std::vector<uint64_t> given;  // arguments in order; what arrays hold, one after the other
  bool operator==(const Call&) const = default;
};

struct Fake {
  std::vector<Call> calls;
  int answer = kSuccess;  // of every function
  bool no_table = false;  // as a library that knows no such table
  uint32_t bytes = sizeof(InternalTable);
  uint32_t version = kTableVersion;
  int devices = 2;
  int tuner_mode = 0;
  bool leaves_hint = false;  // irecv does not touch *request
};

// What functions that give out an object give out: a number no pointer has.
inline constexpr uintptr_t kCtx = 0x1000, kListen = 0x2000, kSend = 0x3000, kRecv = 0x4000,
                           kMr = 0x5000, kRequest = 0x6000, kColl = 0x7000;

inline void* object(uintptr_t number) { return reinterpret_cast<void*>(number); }

}  // namespace prunex::nccl::fake

extern "C" __attribute__((visibility("default"))) prunex::nccl::fake::Fake* fake_state();
