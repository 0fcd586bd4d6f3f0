// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/architectures.h"

#include <charconv>

#include "plugin/device/backend.h"

namespace prunex::device {
namespace {

struct Arch {
  int number = 0;   // major * 10 + minor
  char suffix = 0;  // 'a', 'f', or 0
};

// The next of a list by spaces; the number is 0 where there is none.
Arch next_of(std::string_view& archs) {
  archs.remove_prefix(std::min(archs.find_first_not_of(' '), archs.size()));
  const std::string_view word = archs.substr(0, archs.find(' '));
  archs.remove_prefix(word.size());
  Arch out;
  const auto end = std::from_chars(word.data(), word.data() + word.size(), out.number).ptr;
  out.suffix = end != word.data() + word.size() ? *end : '\0';
  return out;
}

std::string version_text(int version) { return strf("%d.%d", version / 1000, version % 1000 / 10); }

}  // namespace

Coverage coverage_of(std::string_view archs, int arch) {
  Arch last;
  for (Arch one = next_of(archs); one.number > 0; one = next_of(archs)) {
    const bool same = one.number == arch;
    if (same || (one.suffix != 'a' && one.number / 10 == arch / 10 && one.number < arch)) {
      return Coverage::binary;
    }
    last = one;
  }
  if (last.number == 0) {
    return Coverage::binary;
  }
  return last.suffix == 0 && last.number < arch ? Coverage::intermediate : Coverage::none;
}

std::string covered_text(const cuda::Table& table) {
  std::string_view archs = table.archs != nullptr ? table.archs : "";
  std::string out;
  char suffix = 0;
  for (Arch one = next_of(archs); one.number > 0; one = next_of(archs)) {
    suffix = one.suffix;
    out += strf("%ssm_%d%s", out.empty() ? "" : " ", one.number,
                suffix != 0 ? std::string(1, suffix).c_str() : "");
  }
  return out.empty() ? "unknown" : out + (suffix == 0 ? " (and newer)" : "");
}

Result<> check_architecture(const cuda::Table& table, int device) {
  cuda::DeviceFacts facts{};
  if (auto known = check_cuda(table, table.device_facts(device, &facts), "device facts"); !known) {
    return known;
  }
  const Coverage coverage = coverage_of(table.archs != nullptr ? table.archs : "", facts.arch);
  const std::string gpu = strf("GPU %d (%s, sm_%d)", device,
                               facts.name[0] != 0 ? facts.name : "without a name", facts.arch);
  if (coverage == Coverage::none) {
    return fail(Code::unsupported,
                strf("%s: libprunex-cuda.so has kernels for %s and none for it: build with "
                     "scripts/build.sh --all-archs, or with -Dnvcc_archs=%d",
                     gpu.c_str(), covered_text(table).c_str(), facts.arch));
  }
  cuda::Probe probe;
  (void)table.probe(&probe);
  if (coverage == Coverage::intermediate && probe.driver > 0 && probe.runtime > probe.driver) {
    return fail(Code::unsupported,
                strf("%s: libprunex-cuda.so has kernels for %s, which for this GPU the driver must "
                     "compile, and a driver of CUDA %s does not compile what CUDA %s made: update "
                     "the driver, or build with -Dnvcc_archs=%d",
                     gpu.c_str(), covered_text(table).c_str(), version_text(probe.driver).c_str(),
                     version_text(probe.runtime).c_str(), facts.arch));
  }
  return {};
}

}  // namespace prunex::device
