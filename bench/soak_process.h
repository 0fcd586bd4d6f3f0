// SPDX-License-Identifier: Apache-2.0
// What the processes of a soak run have in common, and those that come and go.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/nccl/internal_table.h"

namespace prunex::soak {

inline constexpr double kPatience = 60;  // seconds without any progress: a hang
// How much the memory of a process that leaks nothing may differ between two times of a run.
#ifdef PRUNEX_SANITIZED
inline constexpr long kMemoryNoiseKib = 1L << 40;  // a sanitizer keeps what was freed
#else
inline constexpr long kMemoryNoiseKib = 16 * 1024;
#endif
inline constexpr size_t kHandle = nccl::kHandleBytes;

struct Options {
  double seconds = 20;
  uint64_t seed = 0;
  int api = 0, peers = 2;
  std::string plugin;
  int child_fd = -1, child_links = 1;
  uint64_t child_messages = 0;
};

// How a peer ends.
enum class End { after_the_last, peer_is_killed, peer_dies_connecting, we_close };
inline constexpr const char* kEndNames[] = {"after the last message", "peer killed",
                                            "peer killed while connecting", "closed by us"};

struct State {  // of this process
  int descriptors = 0, threads = 0;
  long rss_kib = 0;
};
[[nodiscard]] State state_now();

// NCCL's logger; says nothing without SOAK_VERBOSE: that peers vanish is the run's doing.
__attribute__((format(printf, 5, 6))) void quiet_log(int level, unsigned long, const char*, int,
                                                     const char* format, ...);

// Between the process that stays and a peer, beside the network.
bool give(int fd, const std::string& text);
// Empty: the other side is gone, or silent for too long.
[[nodiscard]] std::string take(int fd, size_t bytes);

// A peer, from its start to its end. 0: it has had all messages; 3: the other end has gone.
[[nodiscard]] int run_child(const Options& o);

}  // namespace prunex::soak
