// SPDX-License-Identifier: Apache-2.0
// Measures one workload on one rank: dense, then each density, in turn within every iteration.
#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench.h"
#include "tools/bench_world.h"
#include "tools/check_data.h"
#include "tools/progress.h"
#include "tools/workload.h"

namespace prunex::tools {

// Page-aligned memory, not initialised.
class HostMemory {
 public:
  explicit HostMemory(size_t bytes) : data_(::operator new(bytes, kAlign)) {}
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_.get()); }

 private:
  static constexpr std::align_val_t kAlign{4096};
  struct Free {
    void operator()(void* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<void, Free> data_;
};

// One way of reducing the workload, with the library's handles for it.
class Mode {
 public:
  [[nodiscard]] static Result<Mode> dense(const Workload& workload);
  [[nodiscard]] static Result<Mode> compact(const Workload& workload, double keep, uint64_t seed,
                                            prunex_contract_t contract);
  Mode(Mode&&) noexcept = default;
  Mode& operator=(Mode&&) = delete;
  ~Mode();

  [[nodiscard]] bool is_compact() const { return keep.has_value(); }

  std::optional<double> keep;
  KeepFlags flags;  // compact only
  double density = 1;
  std::vector<prunex_layout_t> layouts;  // one per buffer; 0: dense

 private:
  Mode() = default;
  std::vector<prunex_mask_t> masks_;
};

class Measurement {
 public:
  Measurement(const World& world, const BenchSpec& spec, const Workload& workload);

  // Collective. The rows are complete on every rank, the errors are those of all ranks.
  [[nodiscard]] Result<std::vector<BenchRow>> run(Progress& progress);
  [[nodiscard]] double measured_us() const { return measured_us_; }

 private:
  struct Samples {  // of one mode, this rank
    std::vector<double> times_us;
    prunex_stats_t total{};
    int64_t errors = 0;
  };

  Result<> prepare();
  Result<> reduce(const Mode& mode);
  Result<> check_all();
  Result<int64_t> check(const Mode& mode);
  void fill_for_check(const Mode& mode);
  int64_t count_errors(const Mode& mode, std::string* first);
  void fill_for_timing();
  Result<> warm_up(Progress& progress);
  Result<> measure(Progress& progress);
  Result<std::vector<BenchRow>> gather();
  [[nodiscard]] std::byte* result_of(size_t buffer) const;

  const World& world_;
  const BenchSpec& spec_;
  const Workload& workload_;
  CheckData data_;
  std::vector<HostMemory> send_, recv_;  // one per buffer; recv_ empty: in place
  std::vector<Mode> modes_;
  std::vector<Samples> samples_;  // parallel to modes_
  int warmup_done_ = 0;
  double measured_us_ = 0;
};

}  // namespace prunex::tools
