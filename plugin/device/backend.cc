// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/backend.h"

#include <atomic>
#include <mutex>

#include "plugin/base/process.h"
#include "plugin/device/architectures.h"
#include "plugin/device/cuda_library.h"

namespace prunex::device {
namespace {

constexpr int kNoMemory = 2;        // cudaErrorMemoryAllocation
constexpr int kNotInitialised = 3;  // cudaErrorInitializationError

constinit std::atomic<const cuda::Table*> other_table{nullptr};
constinit std::atomic<const NcclApi*> other_nccl{nullptr};

// What was opened stays; what failed is tried again, for a path may be set or a framework imported
// meanwhile.
constinit std::mutex opening;
constinit std::atomic<const cuda::Table*> opened_table{nullptr};
constinit std::atomic<uint32_t> table_forks{0};
constinit std::atomic<bool> table_failed{false};
constinit std::atomic<const NcclApi*> opened_nccl{nullptr};

Error used_before_fork() {
  return {Code::unsupported,
          "this process was forked from one that had used CUDA, and CUDA cannot be used in such a "
          "child: start it by 'spawn' or 'forkserver' (torch.multiprocessing), or use CUDA for the "
          "first time after the fork"};
}

// Before a fork the library's word was the parent's.
Result<> check_after_fork(const cuda::Table& table) {
  const uint32_t now = forks();
  if (table_forks == now) {
    return {};
  }
  cuda::Probe probe;
  (void)table.probe(&probe);
  if (probe.status != 0) {
    return tl::unexpected(used_before_fork());
  }
  table_forks = now;
  return {};
}

}  // namespace

void replace_backend(const cuda::Table* table, const NcclApi* nccl) {
  other_table = table;
  other_nccl = nccl;
}

Result<const cuda::Table*> cuda_table() {
  if (const cuda::Table* other = other_table) {
    return other;
  }
  if (const cuda::Table* known = opened_table) {
    auto good = check_after_fork(*known);
    return good ? Result<const cuda::Table*>(known) : tl::unexpected(good.error());
  }
  const std::lock_guard lock(opening);
  if (opened_table == nullptr) {
    auto opened = open_cuda({});
    table_failed = !opened;
    if (!opened) {
      return opened;
    }
    table_forks = forks();
    opened_table = *opened;
  }
  return opened_table.load();
}

Result<const NcclApi*> nccl_api() {
  if (const NcclApi* other = other_nccl) {
    return other;
  }
  if (const NcclApi* known = opened_nccl) {
    return known;
  }
  const std::lock_guard lock(opening);
  if (opened_nccl == nullptr) {
    auto opened = open_nccl();
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    opened_nccl = new NcclApi(*std::move(opened));  // it stays open
  }
  return opened_nccl.load();
}

Result<> device_ready() {
  auto table = cuda_table();
  if (!table) {
    return tl::unexpected(table.error());
  }
  int device = 0;
  if (auto known = check_cuda(**table, (*table)->get_device(&device), "the current device");
      !known) {
    return known;
  }
  if (auto runs = check_architecture(**table, device); !runs) {
    return runs;
  }
  auto nccl = nccl_api();
  return nccl ? Result<>() : tl::unexpected(nccl.error());
}

Result<Place> place_of_one(const void* p, const char* name) {
  if (p == nullptr || (other_table == nullptr && !driver_present())) {
    return Place{};
  }
  // To try anew with every buffer of the host would be slow.
  if (other_table == nullptr && table_failed && !driver_says_device(p)) {
    return Place{};
  }
  auto table = cuda_table();
  if (!table) {
    if (!driver_says_device(p)) {
      return Place{};
    }
    return fail(Code::unsupported,
                strf("%s is device memory, and %s", name, table.error().text.c_str()));
  }
  cuda::PointerFacts facts{};
  if (auto known = check_cuda(**table, (*table)->pointer_facts(p, &facts), name); !known) {
    return tl::unexpected(known.error());
  }
  const bool device =
      facts.kind == cuda::PointerKind::device || facts.kind == cuda::PointerKind::managed;
  return device ? Place{Memory::device, facts.device} : Place{};
}

Result<Place> place_of(const void* send, const void* recv) {
  auto from = place_of_one(send, "send");
  if (!from || recv == send || recv == nullptr) {
    return from;
  }
  auto to = place_of_one(recv, "recv");
  if (!to || send == nullptr) {
    return to;
  }
  if (from->memory != to->memory || from->device != to->device) {
    const auto text = [](const Place& p) {
      return p.memory == Memory::host ? std::string("host memory") : strf("device %d", p.device);
    };
    return fail(Code::invalid_argument, strf("send is in %s, recv in %s: both must be in one place",
                                             text(*from).c_str(), text(*to).c_str()));
  }
  return from;
}

Result<> check_cuda(const cuda::Table& table, int error, const char* what) {
  if (error == 0) {
    return {};
  }
  if (error == kNotInitialised && forks() > 0) {
    return tl::unexpected(used_before_fork());
  }
  return fail(error == kNoMemory ? Code::memory : Code::system,
              strf("CUDA: %s: error %d, %s", what, error, table.error_text(error)));
}

}  // namespace prunex::device
