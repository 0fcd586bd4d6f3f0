// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/chain.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::host {
namespace {

constexpr size_t kRegionBytes = size_t{4} << 20;
constexpr size_t kOldMaxCollBytes = size_t{512} << 20;  // before v9 NCCL's own bound
constexpr int kChannel = 7;                             // of the board, for CollNet's handles

}  // namespace

void on_thread(const std::function<void()>& task) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      task();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

Chain::Chain(Rank& rank, int version, uint64_t comm_id)
    : rank_(rank),
      net_(open_net(load_plugin(plugin_path()), version)),
      coll_(open_coll(load_plugin(plugin_path()), version)),
      send_region_(kRegionBytes, std::byte{0x33}),
      recv_region_(kRegionBytes, std::byte{0x66}) {
  PRUNEX_MUST(net_->init(comm_id, -1, log_from_plugin) == kSuccess);
  PRUNEX_MUST(coll_->init(comm_id, log_from_plugin) == kSuccess);
  int devices = 0;
  PRUNEX_MUST(coll_->devices(&devices) == kSuccess && devices > 0);
  Properties properties;
  PRUNEX_MUST(coll_->properties(0, &properties) == kSuccess);
  max_bytes_ = version >= 9 ? properties.max_coll_bytes : kOldMaxCollBytes;
  on_thread([&] {
    std::vector<std::array<unsigned char, kHandleBytes>> all(static_cast<size_t>(rank.size()));
    void* listening = nullptr;
    Handle mine{};
    PRUNEX_MUST(coll_->listen(0, mine, &listening) == kSuccess && listening != nullptr);
    for (int peer = 0; peer < rank.size(); ++peer) {
      rank.post(peer, kChannel, mine);
    }
    std::vector<void*> handles;
    for (int peer = 0; peer < rank.size(); ++peer) {
      Handle theirs;
      rank.take(peer, kChannel, theirs);
      std::memcpy(all[static_cast<size_t>(peer)].data(), theirs, sizeof theirs);
      handles.push_back(all[static_cast<size_t>(peer)].data());
    }
    const Status status =
        coll_->connect(handles.data(), rank.size(), rank.rank(), listening, &comm_);
    PRUNEX_MUST(status == kSuccess && comm_ != nullptr, "connect is called once: %d", status);
    PRUNEX_MUST(coll_->close_listen(listening) == kSuccess);
    PRUNEX_MUST(coll_->reg_mr(comm_, send_region_.data(), kRegionBytes, kPtrHost, &send_mr_) ==
                kSuccess);
    PRUNEX_MUST(coll_->reg_mr(comm_, recv_region_.data(), kRegionBytes, kPtrHost, &recv_mr_) ==
                kSuccess);
  });
}

Chain::~Chain() = default;

void Chain::close() {
  on_thread([&] {
    PRUNEX_MUST(coll_->dereg_mr(comm_, send_mr_) == kSuccess);
    PRUNEX_MUST(coll_->dereg_mr(comm_, recv_mr_) == kSuccess);
    PRUNEX_MUST(coll_->close_coll(comm_) == kSuccess);
    PRUNEX_MUST(coll_->finalize() == kSuccess && net_->finalize() == kSuccess);
  });
}

void Chain::all_reduce(size_t calls, const std::function<Call(size_t)>& fill,
                       const std::function<void(size_t)>& done, abi::DataType type, abi::RedOp op) {
  on_thread([&] {
    std::array<void*, kSteps> requests{};
    std::array<Call, kSteps> given{};
    size_t filled = 0, posted = 0, finished = 0;
    wait_for(
        "all-reduces",
        [&] {
          if (filled < calls && filled < finished + kSteps) {
            given[filled % kSteps] = fill(filled);
            ++filled;
          }
          if (posted < filled) {
            const Call& c = given[posted % kSteps];
            void*& request = requests[posted % kSteps];
            const Status status = coll_->iallreduce(comm_, c.send, c.recv, c.count, type, op,
                                                    c.send_mr, c.recv_mr, &request);
            PRUNEX_MUST(status == kSuccess, "iallreduce answers %d", status);
            posted += request != nullptr ? 1 : 0;
          }
          if (finished < posted) {
            int is_done = 0, size = 0;
            const Status status = coll_->test(requests[finished % kSteps], &is_done, &size);
            PRUNEX_MUST(status == kSuccess, "test answers %d", status);
            if (is_done != 0) {
              done(finished++);
            }
          }
          return finished == calls;
        },
        &rank_.board());
  });
}

std::vector<std::byte> Chain::staged(const std::vector<std::byte>& mine, const Type& type,
                                     abi::RedOp op, size_t chunk_bytes) {
  PRUNEX_MUST(chunk_bytes * kSteps <= kRegionBytes);
  const size_t chunks = (mine.size() + chunk_bytes - 1) / chunk_bytes;
  std::vector<std::byte> out(mine.size());
  const auto begin = [&](size_t i) { return i * chunk_bytes; };
  const auto length = [&](size_t i) { return std::min(chunk_bytes, mine.size() - begin(i)); };
  all_reduce(
      chunks,
      [&](size_t i) {
        std::byte* const slot = send_region_.data() + i % kSteps * chunk_bytes;
        std::copy_n(mine.data() + begin(i), length(i), slot);
        return Call{slot, recv_region_.data() + i % kSteps * chunk_bytes, chunk_bytes / type.bytes,
                    send_mr_, recv_mr_};
      },
      [&](size_t i) {
        std::copy_n(recv_region_.data() + i % kSteps * chunk_bytes, length(i),
                    out.data() + begin(i));
      },
      type.id, op);
  return out;
}

void Chain::registered(void* send, void* recv, size_t count, const Type& type, abi::RedOp op) {
  const size_t most = max_bytes_ / type.bytes;
  void *from_mr = nullptr, *to_mr = nullptr;
  const auto use = [&](void* data, void** mr) {
    return coll_->reg_mr(comm_, data, count * type.bytes, kPtrHost, mr);
  };
  on_thread([&] { PRUNEX_MUST(use(send, &from_mr) == kSuccess && use(recv, &to_mr) == kSuccess); });
  all_reduce((count + most - 1) / most,
             [&](size_t i) {
               const size_t skip = i * most * type.bytes;
               return Call{static_cast<std::byte*>(send) + skip,
                           static_cast<std::byte*>(recv) + skip, std::min(most, count - i * most),
                           from_mr, to_mr};
             },
             [](size_t) {}, type.id, op);
  on_thread([&] {
    PRUNEX_MUST(coll_->dereg_mr(comm_, from_mr) == kSuccess);
    PRUNEX_MUST(coll_->dereg_mr(comm_, to_mr) == kSuccess);
  });
}

void Chain::finish(void* request) {
  int done = 0, size = -1;
  wait_for(
      "a collective",
      [&] {
        const Status status = coll_->test(request, &done, &size);
        PRUNEX_MUST(status == kSuccess, "test answers %d", status);
        return done != 0;
      },
      &rank_.board());
}

void Chain::all_gather(void* send, void* window, size_t bytes_per_rank, size_t offset,
                       size_t bytes) {
  on_thread([&] {
    void* request = nullptr;
    wait_for("a request", [&] {
      PRUNEX_MUST(coll_->iallgather(comm_, send, window, bytes_per_rank, offset, bytes, send_mr_,
                                    recv_mr_, &request) == kSuccess);
      return request != nullptr;
    });
    finish(request);
  });
}

void Chain::reduce_scatter(void* window, void* recv, size_t bytes_per_rank, size_t offset,
                           size_t bytes, const Type& type, abi::RedOp op) {
  on_thread([&] {
    void* request = nullptr;
    wait_for("a request", [&] {
      PRUNEX_MUST(coll_->ireducescatter(comm_, window, recv, bytes_per_rank, offset, bytes, type.id,
                                        op, send_mr_, recv_mr_, &request) == kSuccess);
      return request != nullptr;
    });
    finish(request);
  });
}

}  // namespace prunex::nccl::host
