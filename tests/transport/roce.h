// SPDX-License-Identifier: Apache-2.0
// The kernel's devices, as scripts/soft-roce.sh has them: rxe0 and rxe1.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "plugin/transport/verbs/verbs.h"
#include "tests/transport/pair.h"

#define NEED_DEVICES()                                               \
  do {                                                               \
    if (no_devices()) {                                              \
      GTEST_SKIP() << "this machine does not have two RDMA devices"; \
    }                                                                \
  } while (0)

namespace prunex::transport {

inline bool long_ones() { return std::getenv("PRUNEX_TEST_LONG") != nullptr; }

inline bool no_devices() {
  const auto ports = list_verbs_ports({});
  return !ports || ports->size() < 2;
}

inline std::unique_ptr<Transport> open_on(size_t rail, VerbsOptions options = {}) {
  options.rail = rail;
  auto t = open_verbs_transport(options);
  EXPECT_TRUE(t) << t.error().text;
  return t ? *std::move(t) : nullptr;
}

}  // namespace prunex::transport
