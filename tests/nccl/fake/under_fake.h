// SPDX-License-Identifier: Apache-2.0
// Loads the plugin over the fake library, in a process of its own.
#pragma once
#include <functional>

#include "tests/nccl/fake/fake.h"
#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/tables.h"
#include "tests/nccl/host/world.h"

namespace prunex::nccl::fake {

// The loader takes the fake for the library that the plugin needs: it has that SONAME.
inline std::string under_fake(const std::function<void(void* plugin, Fake& fake)>& body) {
  return host::in_child([&] {
    void* const library = host::load_plugin(PRUNEX_FAKE_LIBRARY);
    Fake& fake = *reinterpret_cast<decltype(&fake_state)>(host::symbol(library, "fake_state"))();
    body(host::load_plugin(host::plugin_path()), fake);
  });
}

// The newest call was this one.
inline void must_be(const Fake& fake, const Call& wanted) {
  const auto text = [](const Call& call) {
    std::string out = call.function;
    for (const uint64_t given : call.given) {
      out += host::format(" %llx", static_cast<unsigned long long>(given));
    }
    return out;
  };
  PRUNEX_MUST(!fake.calls.empty(), "nothing was called, not even %s", wanted.function.c_str());
  PRUNEX_MUST(fake.calls.back() == wanted, "called %s, expected %s",
              text(fake.calls.back()).c_str(), text(wanted).c_str());
}

inline size_t times(const Fake& fake, const std::string& function) {
  size_t n = 0;
  for (const Call& call : fake.calls) {
    n += call.function == function ? 1 : 0;
  }
  return n;
}

inline uint64_t as_number(const void* p) { return reinterpret_cast<uint64_t>(p); }
inline uint64_t as_number(Logger log) { return reinterpret_cast<uint64_t>(log); }
inline constexpr uint64_t kMinusOne = ~uint64_t{0};

}  // namespace prunex::nccl::fake
