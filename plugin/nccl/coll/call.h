// SPDX-License-Identifier: Apache-2.0
// A call as it was posted. NCCL holds a pointer to it until test() says done.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/api/registry.h"
#include "plugin/base/dtype.h"
#include "plugin/nccl/coll/head.h"
#include "plugin/nccl/internal_table.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl::coll {

class CollComm;

// What the caller has registered of its buffers; kept until the call is done.
struct Regions {
  std::shared_ptr<const transport::Region> send, recv;
};

struct AllReduce {
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;
  DType type = DType::f32;
  Op op = Op::sum;
  Regions regions = {};
};

struct Window {  // of the buffer of all nodes' segments, bytes
  size_t bytes_per_rank = 0, offset = 0, bytes = 0;
};

struct Request {
  CollComm* comm = nullptr;
  bool used = false;
  size_t pieces_left = 0;  // not finished
  size_t bytes = 0;

  Function function = Function::all_reduce;
  const std::byte* send = nullptr;  // nullptr: `parts`, of a reduce-scatter
  std::byte* recv = nullptr;        // nullptr: `parts`, of an all-gather
  Regions regions;
  DType type = DType::i8;
  Op op = Op::sum;
  uint64_t count = 0;
  Window window;
  std::vector<CollPart> parts;       // where a window's buffer is not in one part
  std::optional<api::RangeHit> hit;  // all-reduce: the mask, as it was when this was posted
  uint64_t pieces = 1, opened = 0;   // of at most CollComm::kPieceBytes
};

}  // namespace prunex::nccl::coll
