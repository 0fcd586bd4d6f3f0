// SPDX-License-Identifier: Apache-2.0
// The table behind config.h: each variable with its parser.
#pragma once
#include <span>
#include <string_view>

#include "plugin/base/config.h"

namespace prunex {

// A parser stores the value and answers nullptr, or says what is wrong beyond "not in range".
inline constexpr const char* kOk = nullptr;
inline constexpr const char* kNotInRange = "";
using Parse = const char* (*)(std::string_view text, Config& out);

struct ParsedRow {
  ConfigRow doc;
  Parse parse;
  Parse parse_twin = nullptr;  // where NCCL's values differ from ours
};

[[nodiscard]] std::span<const ParsedRow> config_rows();  // in the order of the documentation

}  // namespace prunex
