// SPDX-License-Identifier: Apache-2.0
// NCCL's own networks, inside libnccl.so.2: no function hands them out, so that they are found by
// the name of their table in the file's symbols.
#pragma once
#include <string>

#include "plugin/base/result.h"

namespace prunex::tools {

struct BuiltinNet {
  const void* table = nullptr;  // in the library, for as long as it stays loaded
  int api = 0;                  // version of the table, by that of the library
};

// `network`: "IB" or "Socket". `library` is dlopen's, of the libnccl that `path` names in errors.
[[nodiscard]] Result<BuiltinNet> find_builtin(void* library, const std::string& path,
                                              const std::string& network);

// Address of a symbol that the file at `path` lists in .symtab, exported or not, before the file's
// load address is added. Every table is checked against the file's length.
[[nodiscard]] Result<size_t> local_symbol(const std::string& path, const std::string& name);

}  // namespace prunex::tools
