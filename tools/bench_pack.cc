// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_pack.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/pack.h"
#include "plugin/base/clock.h"
#include "tools/bench_pack_shapes.h"

namespace prunex {
namespace {

constexpr size_t kSources = 4;  // of a reduction: the ranks of one node
constexpr size_t kLine = 64;
// Buffers are worked through in pieces of this size, as the engine does, and each piece alternates
// with its copy: on a machine that others use, too, a reading of about a millisecond is often
// undisturbed.
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr uint64_t kReadingBytes = uint64_t{2} << 20;  // small buffers repeat up to this

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::automatic:
      return "auto";
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

// Whatever happens, the process goes on with the instruction set it had.
class KeepIsa {
 public:
  KeepIsa() : isa_(active_isa()) {}
  ~KeepIsa() { (void)select_isa(isa_).has_value(); }
  KeepIsa(const KeepIsa&) = delete;
  KeepIsa& operator=(const KeepIsa&) = delete;

 private:
  Isa isa_;
};

size_t cache_bytes(int name, size_t fallback) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<size_t>(bytes) : fallback;
}

size_t l2_bytes() { return cache_bytes(_SC_LEVEL2_CACHE_SIZE, size_t{1} << 20); }

// Twice one core's share of the last cache, from 64 to 256 MiB; and what fits into L2 several
// times.
std::vector<size_t> default_sizes() {
  const auto cores = static_cast<size_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  const size_t share = cache_bytes(_SC_LEVEL3_CACHE_SIZE, size_t{32} << 20) / cores;
  return {std::clamp(2 * share, size_t{64} << 20, size_t{256} << 20), l2_bytes() / 8};
}

struct Free {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

// Page-aligned and written once, so that no page fault is measured.
Memory allocate(size_t bytes, int fill) {
  const size_t rounded = std::max(bytes, kLine);
  Memory memory(static_cast<std::byte*>(::operator new[](rounded, std::align_val_t{4096})));
  std::memset(memory.get(), fill, rounded);
  return memory;
}

// Everything that one shape's measurements use.
struct Arena {
  const PackShape& shape;
  DType type;
  size_t buffer_bytes, packed_bytes;
  Memory buffer, spread, copy;           // logical size: source, target of unpack, of memcpy
  std::array<Memory, kSources> sources;  // packed size
  Memory result;

  Arena(const PackShape& s, DType t)
      : shape(s),
        type(t),
        buffer_bytes(s.layout.count * size_of(t)),
        packed_bytes(s.layout.kept * size_of(t)),
        buffer(allocate(buffer_bytes, 0)),
        spread(allocate(buffer_bytes, 0)),
        copy(allocate(buffer_bytes, 0)),
        result(allocate(packed_bytes, 0)) {
    // Kept elements are 1 as a pattern of bytes, a small normal number in every type; dropped ones
    // 0.
    for (Memory& m : sources) {
      m = allocate(packed_bytes, 1);
    }
    unpack(s.layout, t, sources[0].get(), whole(), buffer.get());
  }
  [[nodiscard]] Slice whole() const { return {0, shape.layout.kept, 0, shape.layout.count}; }
};

struct Kernel {
  const char* name;
  uint64_t touched;  // bytes, in the whole buffer
  std::function<void(const Slice&)> run;
};

std::vector<Kernel> kernels_of(Arena& a) {
  const uint64_t lines = a.shape.kept_lines * kLine;
  const uint64_t packed = a.packed_bytes;
  const uint64_t all = a.buffer_bytes;
  const size_t size = size_of(a.type);
  const auto sources = [&a, size](const Slice& s) {
    std::array<const void*, kSources> p{};
    for (size_t i = 0; i < kSources; ++i) {
      p[i] = a.sources[i].get() + s.kept_begin * size;
    }
    return p;
  };
  const auto result = [&a, size](const Slice& s) { return a.result.get() + s.kept_begin * size; };
  const Layout& layout = a.shape.layout;
  return {
      {"pack", lines + packed,
       [&a, &layout, result](const Slice& s) {
         pack(layout, a.type, a.buffer.get(), s, result(s));
       }},
      {"pack_audit", all + packed,
       [&a, &layout, result](const Slice& s) {
         AuditCount nonzero;
         pack(layout, a.type, a.buffer.get(), s, result(s), &nonzero);
       }},
      {"unpack", packed + all,
       [&a, &layout, sources](const Slice& s) {
         unpack(layout, a.type, sources(s)[0], s, a.spread.get());
       }},
      {"reduce", (kSources + 1) * packed,
       [&a, result, sources](const Slice& s) {
         reduce(result(s), a.type, sources(s), a.type, s.kept_end - s.kept_begin, Op::sum);
       }},
      {"reduce_pack", all + kSources * packed,
       [&a, &layout, result, sources](const Slice& s) {
         AuditCount nonzero;
         reduce_pack(result(s), a.type, sources(s), 0, layout, a.type, a.buffer.get(), s, Op::sum,
                     1, &nonzero);
       }},
  };
}

// Copies `bytes` bytes from around the middle of the buffer as seen from `at`, where the kernels
// are not at work and nothing is in the cache that would not be there for them.
void copy_apart(Arena& a, uint64_t at, uint64_t bytes) {
  uint64_t from = (at + a.buffer_bytes / 2) % std::max<uint64_t>(a.buffer_bytes, 1);
  while (bytes > 0) {
    const uint64_t piece = std::min<uint64_t>(bytes, a.buffer_bytes - from);
    std::memcpy(a.copy.get() + from, a.buffer.get() + from, piece);
    bytes -= piece;
    from = 0;
  }
}

template <class Run>
double microseconds(const Run& run, int repeats) {
  const int64_t begin = now_ns();
  for (int i = 0; i < repeats; ++i) {
    run();
  }
  return static_cast<double>(now_ns() - begin) / 1e3 / repeats;
}

// Readings of one piece, and what they say.
struct Readings {
  double min, p50, max;
};
Readings summary(std::vector<double>& v) {
  std::sort(v.begin(), v.end());
  const size_t n = v.size();
  return {v.front(), n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v.back()};
}

nlohmann::json measure(Arena& a, const Kernel& kernel, int iterations, int warmup) {
  const uint64_t pieces = std::max<uint64_t>(a.buffer_bytes / kPieceBytes, 1);
  const uint64_t kept = a.shape.layout.kept;
  const auto repeats = static_cast<int>(std::clamp<uint64_t>(
      kReadingBytes / std::max<uint64_t>(kernel.touched / pieces, 1), 1, 10000));
  std::vector<std::vector<double>> times(pieces), copies(pieces);
  for (int i = 0; i < warmup + iterations; ++i) {
    for (uint64_t p = 0; p < pieces; ++p) {
      const Slice s = slice(a.shape.layout, kept * p / pieces, kept * (p + 1) / pieces);
      const double time = microseconds([&] { kernel.run(s); }, repeats);
      const double copy = microseconds(
          [&] { copy_apart(a, a.buffer_bytes / pieces * p, kernel.touched / pieces / 2); },
          repeats);
      if (i >= warmup) {
        times[p].push_back(time);
        copies[p].push_back(copy);
      }
    }
  }
  Readings time{}, copy{};
  for (uint64_t p = 0; p < pieces; ++p) {
    const Readings t = summary(times[p]);
    time = {time.min + t.min, time.p50 + t.p50, time.max + t.max};
    copy.p50 += summary(copies[p]).p50;
  }
  const auto touched = static_cast<double>(kernel.touched);
  constexpr double kLeast = 1e-3;  // nothing kept, nothing done
  return {{"op", kernel.name},
          {"touched_bytes", kernel.touched},
          {"time_us", {{"min", time.min}, {"p50", time.p50}, {"max", time.max}}},
          {"GBps", touched / std::max(time.p50, kLeast) / 1e3},
          {"memcpy_us", copy.p50},
          {"memcpy_GBps", touched / std::max(copy.p50, kLeast) / 1e3},
          {"ratio", copy.p50 / std::max(time.p50, kLeast)}};
}

Result<BenchPackOptions> with_defaults(BenchPackOptions o) {
  if (o.isas.empty()) {
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
      if (isa_available(isa)) {
        o.isas.push_back(isa);
      }
    }
  }
  if (o.dtypes.empty()) {
    o.dtypes = {DType::f32, DType::bf16};
  }
  if (o.patterns.empty()) {
    o.patterns = bench_pack_patterns();
  }
  if (o.bytes.empty()) {
    o.bytes = default_sizes();
  }
  for (const std::string& p : o.patterns) {
    const auto& known = bench_pack_patterns();
    if (std::find(known.begin(), known.end(), p) == known.end()) {
      std::string all;
      for (const std::string& k : known) {
        all += (all.empty() ? "" : ", ") + k;
      }
      return fail(Code::invalid_argument,
                  strf("pattern \"%s\" is unknown; there are %s", p.c_str(), all.c_str()));
    }
  }
  for (const Isa isa : o.isas) {
    if (!isa_available(isa)) {
      return fail(Code::unsupported, strf("this CPU cannot run the %s kernels", name_of(isa)));
    }
  }
  if (!(o.keep >= 0 && o.keep <= 1)) {
    return fail(Code::invalid_argument, strf("keep is %g; it must be from 0 to 1", o.keep));
  }
  if (o.iterations < 1 || o.warmup < 0) {
    return fail(Code::invalid_argument,
                strf("%d iterations, %d before; at least 1 and 0", o.iterations, o.warmup));
  }
  return o;
}

Result<> bench_shape(const BenchPackOptions& o, const std::string& pattern, DType type,
                     size_t bytes, nlohmann::json& results) {
  const Result<PackShape> shape = make_pack_shape(pattern, type, bytes, o.keep, o.seed);
  if (!shape) {
    return tl::unexpected(shape.error());
  }
  Arena arena(*shape, type);
  const auto density = static_cast<double>(shape->layout.kept) /
                       static_cast<double>(std::max<uint64_t>(shape->layout.count, 1));
  for (const Isa isa : o.isas) {
    if (o.progress) {
      o.progress(strf("%s, %s, %zu bytes, %s", pattern.c_str(), prunex::name_of(type),
                      arena.buffer_bytes, name_of(isa)));
    }
    if (Result<> selected = select_isa(isa); !selected) {
      return selected;
    }
    for (const Kernel& kernel : kernels_of(arena)) {
      nlohmann::json row = measure(arena, kernel, o.iterations, o.warmup);
      row["isa"] = name_of(active_isa());
      row["dtype"] = prunex::name_of(type);
      row["pattern"] = pattern;
      row["bytes"] = arena.buffer_bytes;
      row["density"] = density;
      row["run_bytes"] = static_cast<double>(arena.packed_bytes) /
                         static_cast<double>(std::max<uint64_t>(shape->runs, 1));
      results.push_back(std::move(row));
    }
  }
  return {};
}

}  // namespace

const std::vector<std::string>& bench_pack_patterns() {
  static const std::vector<std::string> patterns = {
      "filters3x3", "channels3x3", "filters_channels3x3", "channels1x1", "blocks32",
      "nm24",       "dense"};
  return patterns;
}

Result<> run_bench_pack(const BenchPackOptions& options, nlohmann::json& out) {
  const Result<BenchPackOptions> ready = with_defaults(options);
  if (!ready) {
    return tl::unexpected(ready.error());
  }
  const KeepIsa keep;
  if (Result<> best = select_isa(Isa::automatic); !best) {
    return best;
  }
  out["schema"] = "prunex.bench.pack.1";
  out["isa_best"] = name_of(active_isa());
  out["l2_bytes"] = l2_bytes();
  nlohmann::json& results = out["results"];
  if (!results.is_array()) {
    results = nlohmann::json::array();
  }
  for (const size_t bytes : ready->bytes) {
    for (const std::string& pattern : ready->patterns) {
      for (const DType type : ready->dtypes) {
        if (Result<> r = bench_shape(*ready, pattern, type, bytes, results); !r) {
          return r;
        }
      }
    }
  }
  return {};
}

}  // namespace prunex
