// SPDX-License-Identifier: Apache-2.0
// What the parts of nccl_check have in common: the cases, and what a rank's plugin has counted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace prunex::check {

inline constexpr int kSkip = 77, kRanks = 2, kRounds = 5;
inline constexpr size_t kRows = 1024, kColumns = 1024, kCount = kRows * kColumns;
inline constexpr size_t kBytes = kCount * sizeof(float);  // of one round

// How a case's bytes have to travel, as the plugin counts them.
enum class Way {
  net,             // through Net, whichever way
  zero_block,      // some messages without their blocks of zeros
  masked,          // some messages without what the mask drops
  coll,            // through CollNet, whichever way
  compact,         // some CollNet calls by a mask or by the union of what is not zero
  device,          // prunex_all_reduce, dense
  device_compact,  // ... of what the mask keeps
  violated,        // ... dense, because a checked mask did not hold
};
[[nodiscard]] const char* name_of(Way way);

struct Case {
  const char* name;
  bool collnet, staged, registered, masked;
  Way way;
  // Of prunex_all_reduce on two nodes with half of the ranks each; 0: NCCL over the plugin, and
  // two.
  int device_ranks = 0;
  bool project = false;  // the contract; else lossless
  [[nodiscard]] int ranks() const { return device_ranks > 0 ? device_ranks : kRanks; }
};

struct Places {
  std::string cuda, library, out;
};

// Of one rank, from its metrics file.
struct Counts {
  uint64_t raw = 0, zero_block = 0, masked = 0;                        // messages sent
  uint64_t net_bytes = 0, net_wire = 0;                                // of them
  uint64_t coll = 0, coll_dense = 0, coll_masked = 0, coll_union = 0;  // calls
  uint64_t coll_bytes = 0, coll_wire = 0;
  uint64_t device = 0, device_compact = 0, device_violated = 0;  // calls of prunex_all_reduce
  void add(const Counts& other);
};

[[nodiscard]] std::string file_of(const Places& places, const Case& one, int rank,
                                  const char* suffix);
// All zeros where there is no such file.
[[nodiscard]] Counts read_counts(const std::string& metrics_file);
// Empty: the plugin has carried the case's bytes the way they have to travel. For each rank.
[[nodiscard]] std::string fault_of(const Case& one, const Counts& counts);

struct Outcome {
  const Case* of = nullptr;
  const char* result = "skip";
  double seconds = 0;
  std::string fault;  // or why it was left out
  Counts counted;     // of all ranks
};
[[nodiscard]] std::string json_of(const Outcome& outcome);

// In a process of its own, which ends here: 0, or 1 with the last line of stdout saying why.
// `pipe` hands NCCL's identity from rank 0 to the others.
[[noreturn]] void be_rank(const Places& places, const Case& one, int rank, const int* pipe,
                          double seconds);
[[noreturn]] void be_device_rank(const Places& places, const Case& one, int rank, const int* pipe,
                                 double seconds);
// Empty: there are a GPU, our CUDA library and NCCL.
[[nodiscard]] std::string missing_here(const Places& places);

}  // namespace prunex::check
