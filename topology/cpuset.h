// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prunex::topo {

// A set of the kernel's CPU numbers.
class CpuSet {
 public:
  static constexpr size_t kLimit = 65536;  // numbers beyond are ignored

  // The kernel's list format, "0-3,8"; nullopt if it is not.
  [[nodiscard]] static std::optional<CpuSet> parse(std::string_view list);

  void add(size_t cpu);
  void add(const CpuSet& other);
  [[nodiscard]] bool contains(size_t cpu) const;
  [[nodiscard]] bool contains(const CpuSet& other) const;
  [[nodiscard]] bool empty() const;
  [[nodiscard]] size_t count() const;
  [[nodiscard]] std::string text() const;  // "0-3,8"

  bool operator==(const CpuSet& other) const { return contains(other) && other.contains(*this); }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace prunex::topo
