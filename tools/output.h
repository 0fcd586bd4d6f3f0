// SPDX-License-Identifier: Apache-2.0
// Where a document goes: stdout ("-"), or a file that appears whole or not at all.
#pragma once
#include <string>
#include <string_view>

#include "plugin/base/result.h"

namespace prunex::tools {

// Whether write_document would find a way, for asking before the work. Leaves nothing behind.
[[nodiscard]] Result<> check_writable(const std::string& path);

// A file is written under another name beside it and then takes its name; what is no regular file
// (a pipe, /dev/null) is written as it is.
[[nodiscard]] Result<> write_document(const std::string& path, std::string_view text);

}  // namespace prunex::tools
