// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl_check/standin/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::host::standin {
namespace {

constexpr int kVersion = 12;  // of the plugin's tables

template <class T>
void add_as(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T x{}, y{};
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    x += y;
    std::memcpy(to + i, &x, sizeof x);
  }
}
}  // namespace

const prunex::cuda::Table& cuda() {
  static const prunex::cuda::Table* const table = [] {
    void* const library = ::dlopen("libprunex-cuda.so", RTLD_NOW);
    const auto entry = reinterpret_cast<decltype(&prunex_cuda_table)>(
        library != nullptr ? ::dlsym(library, "prunex_cuda_table") : nullptr);
    PRUNEX_MUST(entry != nullptr, "no stand-in for CUDA");
    return entry(sizeof(prunex::cuda::Table), prunex::cuda::kTableVersion);
  }();
  return *table;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool fault(const char* kind) {
  const std::string wanted = variable("STANDIN_FAULT"), file = variable("NCCL_DEBUG_FILE");
  const size_t colon = wanted.find(':');
  return wanted.substr(0, colon) == kind &&
         (colon == std::string::npos ||
          std::string_view(file).ends_with(std::string_view(wanted).substr(colon + 1)));
}

void add(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes, int type) {
  type == kUint64 ? add_as<uint64_t>(to, a, b, bytes) : add_as<float>(to, a, b, bytes);
}

void Plugin::sum(const std::byte* send, std::byte* recv, size_t at, size_t bytes) {
  if (coll_ != nullptr) {
    by_coll(send + at, recv + at, bytes);
  } else {
    by_net(send, recv, at, bytes);
  }
}

void Plugin::use(void* data, size_t bytes) {
  void *send = nullptr, *recv = nullptr;
  if (takes_device_ && !fault("staged")) {
    PRUNEX_MUST(net_->reg_mr(send_, data, bytes, kPtrCuda, &send) == kSuccess);
    PRUNEX_MUST(net_->reg_mr(recv_, data, bytes, kPtrCuda, &recv) == kSuccess);
    registered_[data] = {send, recv};
  }
}

Plugin::Plugin(Rank& rank) : rank_(rank) {
  void* const library = load_plugin("libnccl-net-" + variable("NCCL_NET_PLUGIN") + ".so");
  net_ = open_net(library, kVersion);
  PRUNEX_MUST(net_->init(1, abi::kTrafficClassUnset, log_from_plugin) == kSuccess);
  Properties properties;
  PRUNEX_MUST(net_->properties(0, &properties) == kSuccess);
  takes_device_ = (properties.ptr_support & kPtrCuda) != 0;
  connect();
  void *out = nullptr, *in = nullptr;
  PRUNEX_MUST(cuda().allocate(&out, kChunk) == 0 && cuda().allocate(&in, kChunk) == 0);
  out_ = static_cast<std::byte*>(out);
  in_ = static_cast<std::byte*>(in);
  const int kind = takes_device_ ? kPtrCuda : kPtrHost;
  PRUNEX_MUST(net_->reg_mr(send_, out_, kChunk, kind, &out_mr_) == kSuccess);
  PRUNEX_MUST(net_->reg_mr(recv_, in_, kChunk, kind, &in_mr_) == kSuccess);
  if (variable("NCCL_ALGO") == "CollNetChain" && !fault("no-coll")) {
    open_chain(library);
  }
}

void Plugin::connect() {
  Handle mine{}, theirs{};
  void* listening = nullptr;
  const int peer = 1 - rank_.rank();
  PRUNEX_MUST(net_->listen(0, mine, &listening) == kSuccess);
  rank_.post(peer, 0, mine);
  rank_.take(peer, 0, theirs);
  wait_for("connections", [&] {
    PRUNEX_MUST(send_ != nullptr || net_->connect(0, theirs, &send_) == kSuccess);
    PRUNEX_MUST(recv_ != nullptr || net_->accept(listening, &recv_) == kSuccess);
    return send_ != nullptr && recv_ != nullptr;
  });
  PRUNEX_MUST(net_->close_listen(listening) == kSuccess);
}

void Plugin::open_chain(void* library) {
  coll_ = open_coll(library, kVersion);
  PRUNEX_MUST(coll_->init(1, log_from_plugin) == kSuccess);
  Handle handles[2]{};
  void* listening = nullptr;
  const int self = rank_.rank();
  PRUNEX_MUST(coll_->listen(0, handles[self], &listening) == kSuccess);
  rank_.post(1 - self, 1, handles[self]);
  rank_.take(1 - self, 1, handles[1 - self]);
  void* both[2] = {handles[0], handles[1]};
  PRUNEX_MUST(coll_->connect(both, 2, self, listening, &chain_) == kSuccess);
  PRUNEX_MUST(coll_->close_listen(listening) == kSuccess);
  chain_out_.resize(kChunk);
  chain_in_.resize(kChunk);
  const auto use = [&](std::vector<std::byte>& memory, void** mr) {
    PRUNEX_MUST(coll_->reg_mr(chain_, memory.data(), kChunk, kPtrHost, mr) == kSuccess);
  };
  use(chain_out_, &chain_out_mr_);
  use(chain_in_, &chain_in_mr_);
}

void Plugin::by_net(const std::byte* send, std::byte* recv, size_t at, size_t bytes) {
  const auto mine = registered_.find(send);
  const auto target = registered_.find(recv);
  const bool direct = mine != registered_.end() && target != registered_.end();
  auto* const from = const_cast<std::byte*>(send) + at;
  std::byte* const result = recv + at;
  if (!direct) {
    std::memcpy(out_, from, bytes);
  }
  std::byte* const out = direct ? from : out_;
  std::byte* const in = direct ? result : in_;
  move(out, in, bytes, direct ? mine->second.first : out_mr_,
       direct ? target->second.second : in_mr_);
  add(result, from, in, bytes);
}

void Plugin::move(std::byte* out, std::byte* in, size_t bytes, void* out_mr, void* in_mr) {
  void *sending = nullptr, *receiving = nullptr, *data = in;
  size_t size = bytes;
  int tag = 0, sent = 0, received = 0, got = 0;
  wait_for("a message", [&] {
    if (sending == nullptr) {
      PRUNEX_MUST(net_->isend(send_, out, bytes, 0, out_mr, &sending) == kSuccess);
    }
    if (receiving == nullptr) {
      PRUNEX_MUST(net_->irecv(recv_, 1, &data, &size, &tag, &in_mr, false, &receiving) == kSuccess);
    }
    if (sending != nullptr && sent == 0) {
      PRUNEX_MUST(net_->test(sending, &sent, nullptr) == kSuccess);
    }
    if (receiving != nullptr && received == 0) {
      PRUNEX_MUST(net_->test(receiving, &received, &got) == kSuccess);
    }
    return sent != 0 && received != 0;
  });
  PRUNEX_MUST(static_cast<size_t>(got) == bytes, "%d bytes came", got);
}

void Plugin::by_coll(const std::byte* from, std::byte* to, size_t bytes) {
  std::memcpy(chain_out_.data(), from, bytes);
  void* request = nullptr;
  int done = 0, size = 0;
  wait_for("a collective", [&] {
    if (request == nullptr) {
      PRUNEX_MUST(coll_->iallreduce(chain_, chain_out_.data(), chain_in_.data(), bytes / 4,
                                    static_cast<abi::DataType>(kFloat), static_cast<abi::RedOp>(0),
                                    chain_out_mr_, chain_in_mr_, &request) == kSuccess);
    }
    if (request != nullptr) {
      PRUNEX_MUST(coll_->test(request, &done, &size) == kSuccess);
    }
    return done != 0;
  });
  std::memcpy(to, chain_in_.data(), bytes);
}

void Plugin::close() {
  for (const auto& [data, mrs] : registered_) {
    PRUNEX_MUST(net_->dereg_mr(send_, mrs.first) == kSuccess);
    PRUNEX_MUST(net_->dereg_mr(recv_, mrs.second) == kSuccess);
  }
  PRUNEX_MUST(net_->dereg_mr(send_, out_mr_) == kSuccess);
  PRUNEX_MUST(net_->dereg_mr(recv_, in_mr_) == kSuccess);
  if (coll_ != nullptr) {
    PRUNEX_MUST(coll_->dereg_mr(chain_, chain_out_mr_) == kSuccess);
    PRUNEX_MUST(coll_->dereg_mr(chain_, chain_in_mr_) == kSuccess);
    PRUNEX_MUST(coll_->close_coll(chain_) == kSuccess && coll_->finalize() == kSuccess);
  }
  PRUNEX_MUST(net_->close_send(send_) == kSuccess && net_->close_recv(recv_) == kSuccess);
  PRUNEX_MUST(net_->finalize() == kSuccess);
}

}  // namespace prunex::nccl::host::standin
