// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace prunex::tools {

[[nodiscard]] inline std::string join(const std::vector<std::string>& parts, std::string_view by) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != parts.data()) {
      text.append(by);
    }
    text.append(part);
  }
  return text;
}

}  // namespace prunex::tools
