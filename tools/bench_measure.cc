// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_measure.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "plugin/base/clock.h"

namespace prunex::tools {
namespace {

// The ranks whose data enter this rank's result.
std::vector<int> contributors(const World& world, prunex_scope_t scope) {
  switch (scope) {
    case PRUNEX_SCOPE_NODE:
      return world.ranks_of(world.node_of(world.rank()));
    case PRUNEX_SCOPE_LEADERS:
      return world.leaders();
    case PRUNEX_SCOPE_WORLD:
      break;
  }
  std::vector<int> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    all.push_back(rank);
  }
  return all;
}

void add_difference(prunex_stats_t& total, const prunex_stats_t& after,
                    const prunex_stats_t& before) {
  for (const auto field :
       {&prunex_stats_t::calls_compact, &prunex_stats_t::calls_dense,
        &prunex_stats_t::bytes_wire_sent, &prunex_stats_t::pack_ns, &prunex_stats_t::unpack_ns,
        &prunex_stats_t::reduce_ns, &prunex_stats_t::inter_ns, &prunex_stats_t::agree_ns}) {
    total.*field += after.*field - before.*field;
  }
}

const char* mode_name(const Mode& mode) { return mode.is_compact() ? "compact" : "dense"; }

std::string label(const Workload& workload) {
  return workload.model.empty() ? format_bytes(static_cast<double>(workload.bytes()))
                                : workload.model;
}

}  // namespace

Measurement::Measurement(const World& world, const BenchSpec& spec, const Workload& workload)
    : world_(world),
      spec_(spec),
      workload_(workload),
      data_(spec.type, spec.op, contributors(world, spec.scope), world.rank()) {}

Result<std::vector<BenchRow>> Measurement::run(Progress& progress) {
  progress.say(label(workload_) + ": preparing" + (spec_.check ? " and checking" : ""));
  Result<> step = prepare();
  if (step && spec_.check) {
    step = check_all();
  }
  if (step) {
    fill_for_timing();
    step = warm_up(progress);
  }
  if (step) {
    step = measure(progress);
  }
  // Again after the loop: what went wrong in the course of many calls shows now.
  if (step && spec_.check) {
    step = check_all();
  }
  if (!step) {
    return tl::unexpected(step.error());
  }
  return gather();
}

Result<> Measurement::prepare() {
  Result<Mode> dense = Mode::dense(workload_);
  modes_.push_back(std::move(*dense));
  for (const double keep : spec_.keeps) {
    Result<Mode> compact = Mode::compact(workload_, keep, spec_.seed, spec_.contract);
    if (!compact) {
      return tl::unexpected(compact.error());
    }
    modes_.push_back(std::move(*compact));
  }
  samples_.resize(modes_.size());
  try {
    for (const BenchBuffer& buffer : workload_.buffers) {
      send_.emplace_back(buffer.count * size_of(workload_.type));
      if (!spec_.in_place) {
        recv_.emplace_back(buffer.count * size_of(workload_.type));
      }
    }
  } catch (const std::bad_alloc&) {
    return fail(Code::memory, "no memory for buffers of " + label(workload_));
  }
  return {};
}

std::byte* Measurement::result_of(size_t buffer) const {
  return (recv_.empty() ? send_ : recv_)[buffer].data();
}

Result<> Measurement::reduce(const Mode& mode) {
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.scope = spec_.scope;
  const size_t buffers = workload_.buffers.size();
  std::vector<prunex_request_t> requests(buffers, 0);
  Result<> outcome;
  size_t begun = 0;
  // One buffer is a blocking call; buckets are all under way before the first is waited for, as in
  // DDP.
  for (; begun < buffers && outcome; ++begun) {
    call.request = buffers > 1 ? &requests[begun] : nullptr;
    outcome = checked(
        prunex_all_reduce(world_.comm(), send_[begun].data(), result_of(begun),
                          workload_.buffers[begun].count, static_cast<prunex_dtype_t>(spec_.type),
                          static_cast<prunex_op_t>(spec_.op), mode.layouts[begun], &call),
        "all-reduce");
  }
  for (size_t i = 0; i < begun && buffers > 1; ++i) {
    if (requests[i] != 0) {
      Result<> ended = checked(prunex_request_wait(requests[i]), "all-reduce");
      outcome = outcome ? std::move(ended) : std::move(outcome);
    }
  }
  return outcome;
}

Result<> Measurement::check_all() {
  for (size_t m = 0; m < modes_.size(); ++m) {
    const Result<int64_t> errors = check(modes_[m]);
    if (!errors) {
      return tl::unexpected(errors.error());
    }
    samples_[m].errors += *errors;
  }
  return {};
}

Result<int64_t> Measurement::check(const Mode& mode) {
  fill_for_check(mode);
  if (const Result<> reduced = reduce(mode); !reduced) {
    return tl::unexpected(reduced.error());
  }
  std::string first;
  const int64_t errors = count_errors(mode, &first);
  if (errors > 0) {
    std::fprintf(stderr, "prunex bench: rank %d: %s all-reduce: %lld wrong elements, first %s\n",
                 world_.rank(), mode_name(mode), static_cast<long long>(errors), first.c_str());
  }
  return errors;
}

void Measurement::fill_for_check(const Mode& mode) {
  const size_t element = size_of(spec_.type);
  for (size_t b = 0; b < workload_.buffers.size(); ++b) {
    const BenchBuffer& buffer = workload_.buffers[b];
    std::byte* const send = send_[b].data();
    data_.fill(send, 0, buffer.count);
    if (!spec_.in_place) {
      std::memset(recv_[b].data(), 0xFF, buffer.count * element);
    }
    if (!mode.is_compact()) {
      continue;
    }
    for (const Piece& piece : buffer.pieces) {
      for_each_run(piece, mode.flags, [&](uint64_t begin, uint64_t count, bool kept) {
        if (kept) {
          return;
        }
        // PROJECT promises +0 whatever was there; the other contracts want zeros to begin with.
        if (spec_.contract == PRUNEX_PROJECT) {
          data_.fill_garbage(send + begin * element, count);
        } else {
          std::memset(send + begin * element, 0, count * element);
        }
      });
    }
  }
}

int64_t Measurement::count_errors(const Mode& mode, std::string* first) {
  const size_t element = size_of(spec_.type);
  uint64_t errors = 0;
  for (size_t b = 0; b < workload_.buffers.size(); ++b) {
    const std::byte* const result = result_of(b);
    const auto check_run = [&](const Piece* piece, uint64_t begin, uint64_t count, bool kept) {
      uint64_t bad = 0;
      const std::byte* const at = result + begin * element;
      const uint64_t wrong = kept ? data_.wrong_results(at, begin, count, &bad)
                                  : wrong_zeros(at, element, begin, count, &bad);
      if (wrong > 0 && errors == 0) {
        *first =
            strf("element %llu%s%s: got %.9g, expected %.9g", static_cast<unsigned long long>(bad),
                 piece == nullptr ? "" : " in ", piece == nullptr ? "" : piece->name.c_str(),
                 data_.value_at(result, bad), kept ? data_.expected(bad) : 0.0);
      }
      errors += wrong;
      if (kept && !spec_.in_place) {  // the source must be as it was
        errors += data_.wrong_inputs(send_[b].data() + begin * element, begin, count);
      }
    };
    if (!mode.is_compact()) {
      check_run(nullptr, 0, workload_.buffers[b].count, true);
      continue;
    }
    for (const Piece& piece : workload_.buffers[b].pieces) {
      for_each_run(piece, mode.flags, [&](uint64_t begin, uint64_t count, bool kept) {
        check_run(&piece, begin, count, kept);
      });
    }
  }
  return static_cast<int64_t>(errors);
}

// Zero wherever any density drops, so that one buffer serves all modes. In place, floats grow with
// every iteration, at the end to infinity, which costs no more to add; integers would overflow, so
// they are 0.
void Measurement::fill_for_timing() {
  const size_t element = size_of(spec_.type);
  for (size_t b = 0; b < workload_.buffers.size(); ++b) {
    const BenchBuffer& buffer = workload_.buffers[b];
    std::byte* const send = send_[b].data();
    data_.fill(send, 0, buffer.count);
    if (spec_.in_place && !is_float(spec_.type)) {
      std::memset(send, 0, buffer.count * element);
    }
    for (const Mode& mode : modes_) {
      for (size_t p = 0; mode.is_compact() && p < buffer.pieces.size(); ++p) {
        for_each_run(buffer.pieces[p], mode.flags, [&](uint64_t begin, uint64_t count, bool kept) {
          if (!kept) {
            std::memset(send + begin * element, 0, count * element);
          }
        });
      }
    }
  }
}

Result<> Measurement::warm_up(Progress& progress) {
  const int64_t begin = now_ns();
  for (; warmup_done_ < spec_.warmup; ++warmup_done_) {
    // All ranks stop together: when the time is up on any of them.
    int64_t late = static_cast<double>(now_ns() - begin) > kWarmupCapSeconds * 1e9 ? 1 : 0;
    if (const Result<> agreed = world_.max({&late, 1}); !agreed || late != 0) {
      return agreed;
    }
    if (progress.due()) {
      progress.say(
          strf("%s: warm-up %d of %d", label(workload_).c_str(), warmup_done_ + 1, spec_.warmup));
    }
    for (const Mode& mode : modes_) {
      if (const Result<> reduced = reduce(mode); !reduced) {
        return reduced;
      }
    }
  }
  return {};
}

Result<> Measurement::measure(Progress& progress) {
  int64_t together = 0;
  if (const Result<> met = world_.sum(std::span(&together, 1)); !met) {
    return met;
  }
  Result<prunex_stats_t> before = world_.stats();
  if (!before) {
    return tl::unexpected(before.error());
  }
  const int64_t loop_begin = now_ns();
  for (int iteration = 0; iteration < spec_.iters; ++iteration) {
    for (size_t m = 0; m < modes_.size(); ++m) {
      const int64_t begin = now_ns();
      const Result<> reduced = reduce(modes_[m]);
      const int64_t end = now_ns();
      Result<prunex_stats_t> after = world_.stats();
      if (!reduced || !after) {
        return reduced ? tl::unexpected(after.error()) : reduced;
      }
      samples_[m].times_us.push_back(static_cast<double>(end - begin) / 1e3);
      add_difference(samples_[m].total, *after, *before);
      before = after;
    }
    if (progress.due()) {
      const double seconds = static_cast<double>(now_ns() - loop_begin) / 1e9;
      progress.say(strf("%s: iteration %d of %d, about %.0f s left", label(workload_).c_str(),
                        iteration + 1, spec_.iters,
                        seconds / (iteration + 1) * (spec_.iters - iteration - 1)));
    }
  }
  measured_us_ = static_cast<double>(now_ns() - loop_begin) / 1e3;
  return {};
}

Result<std::vector<BenchRow>> Measurement::gather() {
  std::vector<BenchRow> rows;
  for (size_t m = 0; m < modes_.size(); ++m) {
    Samples& s = samples_[m];
    int64_t sums[] = {static_cast<int64_t>(s.total.bytes_wire_sent), s.errors};
    int64_t maxima[] = {static_cast<int64_t>(s.total.pack_ns + s.total.unpack_ns),
                        static_cast<int64_t>(s.total.agree_ns),
                        static_cast<int64_t>(s.total.inter_ns),
                        static_cast<int64_t>(s.total.reduce_ns)};
    for (const Result<>& gathered :
         {world_.sum(std::span<double>(s.times_us)), world_.sum(sums), world_.max(maxima)}) {
      if (!gathered) {
        return tl::unexpected(gathered.error());
      }
    }
    for (double& time : s.times_us) {
      time /= world_.size();
    }
    const auto per_iteration_us = [this](int64_t ns) {
      return static_cast<double>(ns) / 1e3 / std::max(spec_.iters, 1);
    };
    BenchRow row;
    row.elements = workload_.count();
    row.bytes = workload_.bytes();
    row.compact = modes_[m].is_compact();
    row.keep = modes_[m].keep;
    row.density = modes_[m].density;
    row.bytes_wire = static_cast<double>(sums[0]) / std::max(spec_.iters, 1);
    row.time = summarize(std::move(s.times_us));
    row.pack_us = per_iteration_us(maxima[0]);
    row.agree_us = per_iteration_us(maxima[1]);
    row.inter_us = per_iteration_us(maxima[2]);
    row.intra_us = per_iteration_us(maxima[3]);
    row.calls_compact = s.total.calls_compact;
    row.calls_dense = s.total.calls_dense;
    row.iters = spec_.iters;
    row.warmup_done = warmup_done_;
    row.buffers = static_cast<int>(workload_.buffers.size());
    if (spec_.check) {
      row.errors = static_cast<uint64_t>(sums[1]);
    }
    if (row.time.p50 > 0) {
      const double ranks = world_.size();
      row.algbw_GBps = static_cast<double>(row.bytes) / row.time.p50 / 1e3;
      row.busbw_GBps = row.algbw_GBps * 2 * (ranks - 1) / ranks;
      if (row.compact) {
        row.speedup = rows[0].time.p50 / row.time.p50;
      }
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace prunex::tools
