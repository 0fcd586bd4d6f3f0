// SPDX-License-Identifier: Apache-2.0
// A CUDA stream over host memory, as the stand-ins for the CUDA library and for NCCL share it.
#pragma once
#include <functional>

namespace prunex::test {

class StreamLike {
 public:
  virtual ~StreamLike() = default;
  // Runs after what was enqueued before; under capture it is only written down.
  virtual void enqueue(std::function<void()> work) = 0;
};

// The default stream runs at once.
inline void enqueue_on(void* stream, std::function<void()> work) {
  if (stream == nullptr) {
    work();
  } else {
    static_cast<StreamLike*>(stream)->enqueue(std::move(work));
  }
}

}  // namespace prunex::test
