// SPDX-License-Identifier: Apache-2.0
// CollNet as NCCL drives it: one rank per node, connected by a service thread, up to eight calls in
// flight from a progress thread, results taken in order.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tests/nccl/host/proxy.h"

namespace prunex::nccl::host {

// An element type by integer-valued numbers, which every type of four bits and more holds.
struct Type {
  abi::DataType id;
  size_t bytes;
  void (*put)(void* at, int value);
  int (*get)(const void* at);
  bool is_signed;
};
const std::vector<Type>& all_types();
const Type& type_of(abi::DataType id);

int reduce(abi::RedOp op, int a, int b);

class Chain {
 public:
  Chain(Rank& rank, int version, uint64_t comm_id = 1);
  ~Chain();
  void close();

  struct Call {  // whole or a chunk
    void *send, *recv;
    size_t count;
    void *send_mr, *recv_mr;
  };
  // Up to eight in flight; `done(i)` in order, after which the slot is used again. `fill(i)`
  // before.
  void all_reduce(size_t calls, const std::function<Call(size_t)>& fill,
                  const std::function<void(size_t)>& done, abi::DataType type, abi::RedOp op);

  // Through the region, in full chunks with what happens to lie behind the tail.
  std::vector<std::byte> staged(const std::vector<std::byte>& mine, const Type& type, abi::RedOp op,
                                size_t chunk_bytes);
  // User buffers, cut at the device's maxCollBytes. `mine` and the result may be one buffer.
  void registered(void* send, void* recv, size_t count, const Type& type, abi::RedOp op);

  void all_gather(void* send, void* window, size_t bytes_per_rank, size_t offset, size_t bytes);
  void reduce_scatter(void* window, void* recv, size_t bytes_per_rank, size_t offset, size_t bytes,
                      const Type& type, abi::RedOp op);

  [[nodiscard]] HostColl& coll() { return *coll_; }
  [[nodiscard]] void* comm() { return comm_; }
  [[nodiscard]] size_t max_bytes() const { return max_bytes_; }

 private:
  void finish(void* request);

  Rank& rank_;
  std::unique_ptr<HostNet> net_;  // NCCL initialises the network of the same plugin first
  std::unique_ptr<HostColl> coll_;
  void* comm_ = nullptr;
  size_t max_bytes_ = 0;
  std::vector<std::byte> send_region_, recv_region_;
  void *send_mr_ = nullptr, *recv_mr_ = nullptr;
};

// On a thread of its own; waits, and throws what it throws.
void on_thread(const std::function<void()>& task);

}  // namespace prunex::nccl::host
