// SPDX-License-Identifier: Apache-2.0
// A library of the host's that has names of ours and of anybody's. None may be called in their
// place.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "plugin/base/log.h"
#include "plugin/nccl/coll_calls.h"
#include "plugin/nccl/net_calls.h"

#define PRUNEX_CLASH __attribute__((visibility("default")))

namespace {
[[noreturn]] void caught(const char* name) {
  std::fprintf(stderr, "%s of another library was called\n", name);
  std::abort();
}
}  // namespace

extern "C" {
PRUNEX_CLASH void init() { caught("init"); }
PRUNEX_CLASH void hash() { caught("hash"); }
PRUNEX_CLASH void listen_call() { caught("listen_call"); }
PRUNEX_CLASH void XXH3_64bits() { caught("XXH3_64bits"); }
PRUNEX_CLASH void XXH64() { caught("XXH64"); }
}

namespace prunex {
PRUNEX_CLASH std::string strf(const char*, ...) { caught("strf"); }
PRUNEX_CLASH void log_message(LogLevel, const char*, int, const std::string&) {
  caught("log_message");
}
PRUNEX_CLASH LogLevel log_level() { caught("log_level"); }
PRUNEX_CLASH void set_log_sink(LogSink) { caught("set_log_sink"); }
namespace nccl {
PRUNEX_CLASH const NetCalls& net_calls() { caught("net_calls"); }
PRUNEX_CLASH const CollCalls& coll_calls() { caught("coll_calls"); }
}  // namespace nccl
}  // namespace prunex
