// SPDX-License-Identifier: Apache-2.0
// The first GPU and libprunex, as a rank of nccl_check has them. Failures end the process.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "bench/nccl_check.h"
#include "kernels/cuda/table.h"
#include "prunex/prunex.h"

namespace prunex::check {

// The last line of a rank that fails.
[[noreturn]] void give_up(const char* what, const std::string& why);
[[nodiscard]] const cuda::Table* open_table(const std::string& file, std::string* why);

// Whole numbers: sums are exact in any order. Rows that the mask drops are zero where `zeros`.
[[nodiscard]] inline bool kept(size_t row) { return row % 8 < 3; }
[[nodiscard]] inline float value_of(bool zeros, int rank, int round, size_t i) {
  if (zeros && !kept(i / kColumns)) {
    return 0;
  }
  return static_cast<float>((i * 7 + static_cast<size_t>(rank * 13 + round)) % 251) + 1;
}
[[nodiscard]] std::vector<float> values_of(bool zeros, int rank, int round);

class Gpu {
 public:
  explicit Gpu(const Places& places);
  [[nodiscard]] float* allocate() const;        // kCount floats
  void copy(void* to, const void* from) const;  // as many; waits
  void fill(float* to) const;                   // with what no result is
  void check(const char* what, int error) const;
  // The mask of kept() for a buffer, with a prunex_contract_t.
  void publish(const float* base, prunex_contract_t contract) const;
  // A function of libprunex has to succeed.
  void must(const char* what, prunex_result_t result) const;
  [[nodiscard]] void* stream() const { return stream_; }
  // A function of libprunex.
  template <class F>
  [[nodiscard]] F* prunex(const char* name) const {
    return reinterpret_cast<F*>(look_up(name));
  }

 private:
  [[nodiscard]] void* look_up(const char* name) const;
  const cuda::Table* table_ = nullptr;
  void *library_ = nullptr, *stream_ = nullptr;
};

}  // namespace prunex::check
