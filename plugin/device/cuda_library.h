// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda.so, opened at run time: nothing here is linked against CUDA.
#pragma once
#include <string>

#include "kernels/cuda/table.h"
#include "plugin/base/result.h"

namespace prunex::device {

struct CudaFiles {
  std::string driver = "libcuda.so.1";
  std::string library = {};  // empty: beside `owner`, else wherever the dynamic linker looks
  std::string owner = {};    // a libprunex.so; empty: the file of this code
};

// A look at the driver's version first, then the library, its table's size and version, and whether
// the driver serves the CUDA that it was built with. Errors name the files and what is missing.
[[nodiscard]] Result<const cuda::Table*> open_cuda(const CudaFiles& files);

// The release that the kernel library says it is of, and whether that is this code's own.
[[nodiscard]] const char* release_of(const cuda::Table& table);
[[nodiscard]] bool same_release(const cuda::Table& table);

// Is there a CUDA driver in this process? A process without one has no device memory. Opens
// nothing.
[[nodiscard]] bool driver_present();

// The kind of memory by the driver alone, for processes whose libprunex-cuda.so cannot be opened.
[[nodiscard]] bool driver_says_device(const void* p);

}  // namespace prunex::device
