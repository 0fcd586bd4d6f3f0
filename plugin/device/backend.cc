// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/backend.h"

#include <atomic>

#include "plugin/device/cuda_library.h"

namespace prunex::device {
namespace {

constinit std::atomic<const cuda::Table*> other_table{nullptr};
constinit std::atomic<const NcclApi*> other_nccl{nullptr};

Result<Place> place_of_one(const void* p, const char* name) {
  if (p == nullptr) {
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

}  // namespace

void replace_backend(const cuda::Table* table, const NcclApi* nccl) {
  other_table = table;
  other_nccl = nccl;
}

Result<const cuda::Table*> cuda_table() {
  if (const cuda::Table* other = other_table) {
    return other;
  }
  static const Result<const cuda::Table*> opened = open_cuda({});
  return opened;
}

Result<const NcclApi*> nccl_api() {
  if (const NcclApi* other = other_nccl) {
    return other;
  }
  static const Result<NcclApi> opened = open_nccl();
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  return &*opened;
}

Result<Place> place_of(const void* send, const void* recv) {
  if (other_table == nullptr && !driver_present()) {
    return Place{};
  }
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
  constexpr int kNoMemory = 2;  // cudaErrorMemoryAllocation
  return fail(error == kNoMemory ? Code::memory : Code::system,
              strf("CUDA: %s: error %d, %s", what, error, table.error_text(error)));
}

}  // namespace prunex::device
