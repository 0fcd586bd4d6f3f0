// SPDX-License-Identifier: Apache-2.0
// Parsers that the table in config.cc names.
#pragma once
#include <strings.h>

#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include "plugin/base/config_rows.h"

namespace prunex {

template <class Int>
[[nodiscard]] bool parse_int(std::string_view text, Int lo, Int hi, Int* out) {
  Int value{};
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value < lo || value > hi) {
    return false;
  }
  *out = value;
  return true;
}

template <class Value, size_t N>
[[nodiscard]] const char* parse_choice(
    std::string_view text, const std::array<std::pair<std::string_view, Value>, N>& choices,
    Value* out) {
  for (const auto& [name, value] : choices) {
    if (name.size() == text.size() && strncasecmp(name.data(), text.data(), name.size()) == 0) {
      *out = value;
      return kOk;
    }
  }
  return kNotInRange;
}

// config_ib.cc. Numbers as NCCL reads them: 0x in front is hexadecimal.
[[nodiscard]] const char* parse_transport(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_disable(std::string_view text, Config& out);
[[nodiscard]] const char* parse_nccl_ib_disable(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_hca(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_gid_index(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_gid_family(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_gid_range(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_roce_version(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_traffic_class(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_service_level(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_timeout(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_retry_count(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_pkey(std::string_view text, Config& out);
[[nodiscard]] const char* parse_nccl_ib_pkey(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_qps(std::string_view text, Config& out);
[[nodiscard]] const char* parse_ib_relaxed_ordering(std::string_view text, Config& out);

}  // namespace prunex
