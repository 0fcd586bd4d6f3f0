// SPDX-License-Identifier: Apache-2.0
// How the stand-in for NCCL moves sums through a network plugin, between two processes.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/table.h"
#include "tests/nccl/host/world.h"

namespace prunex::nccl::host::standin {

inline constexpr int kFloat = 7, kUint64 = 5;  // of ncclDataType_t
inline constexpr size_t kChunk = size_t{1} << 20;

[[nodiscard]] const cuda::Table& cuda();
[[nodiscard]] std::string variable(const char* name);
// Is this to be done wrong? See nccl.cc.
[[nodiscard]] bool fault(const char* kind);
// to = a + b, elements of a type.
void add(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes, int type = kFloat);

class Plugin {
 public:
  explicit Plugin(Rank& rank);         // opens what NCCL_NET_PLUGIN names, and connects
  void use(void* data, size_t bytes);  // registers a buffer
  // The sum of `bytes` bytes of floats at an offset of the buffers, a chunk at most.
  void sum(const std::byte* send, std::byte* recv, size_t at, size_t bytes);
  void close();

 private:
  void connect();
  void open_chain(void* library);
  void by_net(const std::byte* send, std::byte* recv, size_t at, size_t bytes);
  void move(std::byte* out, std::byte* in, size_t bytes, void* out_mr, void* in_mr);
  void by_coll(const std::byte* from, std::byte* to, size_t bytes);

  Rank& rank_;
  std::unique_ptr<HostNet> net_;
  std::unique_ptr<HostColl> coll_;
  bool takes_device_ = false;
  void *send_ = nullptr, *recv_ = nullptr, *out_mr_ = nullptr, *in_mr_ = nullptr;
  void *chain_ = nullptr, *chain_out_mr_ = nullptr, *chain_in_mr_ = nullptr;
  std::byte *out_ = nullptr, *in_ = nullptr;
  std::vector<std::byte> chain_out_, chain_in_;
  std::map<const void*, std::pair<void*, void*>> registered_;
};

}  // namespace prunex::nccl::host::standin
