// SPDX-License-Identifier: Apache-2.0
// Transport between processes of one machine: a ring of shared memory per direction. A Unix socket
// next to it (its name works across network namespaces) introduces the two, wakes whoever sleeps,
// and tells when a process is gone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/base/result.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

struct ShmOptions {
  size_t ring_bytes =
      size_t{1} << 20;          // per direction, a power of two from 4 KiB; said by connect()
  double stray_timeout_s = 10;  // a caller that has not introduced itself by then is dropped
  uint32_t first_sequence = 0;  // tests start near the wrap; said by the connecting end
};

[[nodiscard]] Result<std::unique_ptr<Transport>> open_shm_transport(const ShmOptions& options);

}  // namespace prunex::transport
