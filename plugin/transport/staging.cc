// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "plugin/base/log.h"

namespace prunex::transport {
namespace {

// Devices map whole pages; a page of one's own is no one else's that is registered by the way.
constexpr size_t kPage = 4096;
// Up to here sizes are powers of two, so that a row of growing messages registers seldom.
constexpr size_t kDoubledTo = size_t{16} << 20;

size_t rounded(size_t bytes) {
  return bytes <= kDoubledTo ? std::bit_ceil(std::max(bytes, kPage))
                             : (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

void Staging::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Staging::Staging(Staging&& other) noexcept
    : transport_(other.transport_),
      memory_(std::move(other.memory_)),
      size_(std::exchange(other.size_, 0)),
      region_(std::move(other.region_)) {}

Staging& Staging::operator=(Staging&& other) noexcept {
  region_.reset();
  transport_ = other.transport_;
  memory_ = std::move(other.memory_);
  size_ = std::exchange(other.size_, 0);
  region_ = std::move(other.region_);
  return *this;
}

void Staging::reserve(size_t bytes) {
  if (bytes <= size_) {
    return;
  }
  region_.reset();
  memory_.reset();
  size_ = 0;
  const size_t room = rounded(bytes);
  void* const pages =
      ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::bad_alloc();
  }
  memory_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(pages), Unmap{room});
  size_ = room;
  if (transport_ != nullptr) {
    region_ = try_register(*transport_, memory_.get(), room);
  }
}

std::unique_ptr<Region> try_register(Transport& transport, void* data, size_t bytes) {
  auto region = transport.register_relaxed(data, bytes);
  if (region) {
    return *std::move(region);
  }
  PRUNEX_LOG(info, "%s; messages are copied instead", region.error().text.c_str());
  return nullptr;
}

}  // namespace prunex::transport
