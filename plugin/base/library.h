// SPDX-License-Identifier: Apache-2.0
// Libraries that are opened at run time.
#pragma once
#include <string>

#include "plugin/base/result.h"

namespace prunex {

// dlopen with RTLD_NOW and RTLD_LOCAL, of a path or of a name that the loader looks for. A file cut
// short is an error, where dlopen would end the process with SIGBUS. Else the error is the dynamic
// linker's own words. The caller closes it or leaves it open. `flags`: more of dlopen's.
[[nodiscard]] Result<void*> open_shared(const std::string& library, int flags = 0);

}  // namespace prunex
