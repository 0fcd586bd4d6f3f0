// SPDX-License-Identifier: Apache-2.0
// Where a document goes: stdout ("-"), or a file that appears whole or not at all.
#pragma once
#include <string>
#include <string_view>

#include "plugin/base/fd.h"
#include "plugin/base/result.h"

namespace prunex::tools {

class OutputFile {
 public:
  // Fails now, before any work, if the path cannot be written. Nothing at `path` changes yet.
  [[nodiscard]] static Result<OutputFile> open(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // Once: writes all of `text`; a file then takes its name.
  [[nodiscard]] Result<> commit(std::string_view text);

 private:
  OutputFile() = default;

  std::string path_, temporary_;  // temporary_ empty: fd_ is the destination itself
  Fd fd_;                         // none: stdout
};

// Only whether open() would succeed.
[[nodiscard]] Result<> check_writable(const std::string& path);

}  // namespace prunex::tools
