// SPDX-License-Identifier: Apache-2.0
// What the rings and chains are run over: versions of the tables, and ranks as processes or
// threads.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/nccl/host/world.h"

namespace prunex::nccl::host {

struct Kind {
  int version;
  Ranks ranks;
};

inline std::string name_of(const testing::TestParamInfo<Kind>& info) {
  std::string name = "v";
  name += std::to_string(info.param.version);
  name += info.param.ranks == Ranks::processes ? "_processes" : "_threads";
  return name;
}

// Every version as processes, those given as threads. Versions differ in the module's thin entries
// only: a sanitizer, under which a case takes a quarter of a minute, sees the oldest, the newest.
inline std::vector<Kind> kinds(std::vector<int> as_threads) {
#ifdef PRUNEX_SANITIZED
  std::vector<Kind> out = {{6, Ranks::processes}, {12, Ranks::processes}};
  as_threads = {as_threads.front(), as_threads.back()};
#else
  std::vector<Kind> out;
  for (int version = 6; version <= 12; ++version) {
    out.push_back({version, Ranks::processes});
  }
#endif
  for (const int version : as_threads) {
    out.push_back({version, Ranks::threads});
  }
  return out;
}

}  // namespace prunex::nccl::host
