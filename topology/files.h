// SPDX-License-Identifier: Apache-2.0
// Reads of the kernel's small files; what cannot be read is simply absent.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/result.h"

namespace prunex::topo {

// The whole file; more than `limit` bytes is an error.
[[nodiscard]] Result<std::string> read_file(const std::string& path, size_t limit);
// The first line of a file of at most 64 KiB, without its end.
[[nodiscard]] std::optional<std::string> read_line(const std::string& path);
[[nodiscard]] std::optional<long long> read_integer(const std::string& path);
[[nodiscard]] std::vector<std::string> list_directory(const std::string& path);  // sorted, no dots
[[nodiscard]] std::string real_path(const std::string& path);  // empty: no such thing

}  // namespace prunex::topo
