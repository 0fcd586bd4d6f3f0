// SPDX-License-Identifier: Apache-2.0
// Which instruction set runs: asked of the CPU once, kept in one pointer.
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/host/table.h"
#include "kernels/pack.h"

namespace prunex {
namespace host {
namespace {

constinit std::atomic<const Table*> g_table{nullptr};
constinit std::atomic<size_t> g_stream_bytes{kStreamBytes};

#if defined(__x86_64__)
// __builtin_cpu_supports also asks whether the operating system saves the registers. Clang 14's
// does not know f16c, which uses the registers of AVX.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) == 1 && (c & bit_F16C) != 0;
}

bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && cpu_has_f16c() && __builtin_cpu_supports("popcnt");
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
#endif

const Table* best_table() {
  for (const Version v : {Version::avx512_vbmi2, Version::avx512, Version::avx2}) {
    if (const Table* t = table_of(v)) {
      return t;
    }
  }
  return &kScalarTable;
}

const Table* table_of_isa(Isa isa) {
  switch (isa) {
    case Isa::automatic:
      return best_table();
    case Isa::scalar:
      return &kScalarTable;
    case Isa::avx2:
      return table_of(Version::avx2);
    case Isa::avx512: {
      const Table* t = table_of(Version::avx512_vbmi2);
      return t != nullptr ? t : table_of(Version::avx512);
    }
  }
  return nullptr;
}

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

}  // namespace

const Table* table_of([[maybe_unused]] Version version) {
#if defined(__x86_64__)
  switch (version) {
    case Version::scalar:
      break;
    case Version::avx2:
      return cpu_has_avx2() ? &kAvx2Table : nullptr;
    case Version::avx512:
      return cpu_has_avx512() ? &kAvx512Table : nullptr;
    case Version::avx512_vbmi2:
      return cpu_has_avx512() && __builtin_cpu_supports("avx512vbmi2") ? &kAvx512Vbmi2Table
                                                                       : nullptr;
  }
  return &kScalarTable;
#else
  return version == Version::scalar ? &kScalarTable : nullptr;
#endif
}

const Table& active_table() {
  const Table* t = g_table.load(std::memory_order_relaxed);
  if (t == nullptr) [[unlikely]] {
    t = best_table();
    g_table.store(t, std::memory_order_relaxed);
  }
  return *t;
}

size_t stream_bytes() { return g_stream_bytes.load(std::memory_order_relaxed); }

void use_version(Version version, size_t stream_bytes) {
  if (const Table* t = table_of(version)) {
    g_table.store(t, std::memory_order_relaxed);
    g_stream_bytes.store(stream_bytes, std::memory_order_relaxed);
  }
}

}  // namespace host

Result<> select_isa(Isa isa) {
  const host::Table* t = host::table_of_isa(isa);
  if (t == nullptr) {
    const char* need = isa == Isa::avx2 ? "AVX2, BMI2, F16C" : "AVX-512 F, BW, VL, DQ";
    return fail(
        Code::unsupported,
        strf("PRUNEX_ISA=%s: this CPU (or its hypervisor or kernel) lacks one of %s; the best "
             "it has is %s. Unset PRUNEX_ISA or set it to auto",
             host::name_of(isa), need, isa_available(Isa::avx2) ? "avx2" : "scalar"));
  }
  host::g_table.store(t, std::memory_order_relaxed);
  host::g_stream_bytes.store(host::kStreamBytes, std::memory_order_relaxed);
  return {};
}

Isa active_isa() {
  const host::Table* t = &host::active_table();
  if (t == &host::kScalarTable) {
    return Isa::scalar;
  }
  return t == host::table_of(host::Version::avx2) ? Isa::avx2 : Isa::avx512;
}

bool isa_available(Isa isa) { return host::table_of_isa(isa) != nullptr; }

}  // namespace prunex
