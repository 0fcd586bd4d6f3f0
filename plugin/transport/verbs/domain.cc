// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/domain.h"

#include <unistd.h>

#include <algorithm>

namespace prunex::transport::verbs {
namespace {

struct Pages {
  std::byte* begin;
  size_t bytes;
};

// Neighbours in a page then find it too, and the device maps whole pages anyway.
Pages pages_of(void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(data);
  const uintptr_t before = at & (page - 1);
  return {static_cast<std::byte*>(data) - before, (before + bytes + page - 1) & ~(page - 1)};
}

}  // namespace

Result<std::unique_ptr<Region>> Domain::add(void* data, size_t bytes, Order order) {
  if (data == nullptr || bytes == 0) {
    return fail(Code::invalid_argument, strf("%zu bytes at %p cannot be registered", bytes, data));
  }
  const Pages pages = pages_of(data, bytes);
  const std::lock_guard lock(mutex_);  // kept over the call: two must not register the same
  for (Entry& e : entries_) {
    const bool orders = order == Order::relaxed || e.memory->order() == Order::strict;
    if (orders && !e.memory->on_device() && e.memory->holds(pages.begin, pages.bytes)) {
      ++e.users;
      return std::make_unique<VerbsRegion>(shared_from_this(), e.memory);
    }
  }
  auto memory = Memory::open(rails_, pages.begin, pages.bytes, order, bytes);
  if (!memory) {
    return tl::unexpected<Error>(memory.error());
  }
  entries_.push_back({*memory, 1});
  return std::make_unique<VerbsRegion>(shared_from_this(), *std::move(memory));
}

Result<std::unique_ptr<Region>> Domain::add(const DmaBuf& buffer, void* data, size_t bytes) {
  if (buffer.fd < 0 || data == nullptr || bytes == 0) {
    return fail(
        Code::invalid_argument,
        strf("%zu bytes at %p of descriptor %d cannot be registered", bytes, data, buffer.fd));
  }
  auto memory = Memory::open(rails_, buffer, data, bytes);
  if (!memory) {
    return tl::unexpected<Error>(memory.error());
  }
  const std::lock_guard lock(mutex_);
  entries_.push_back({*memory, 1});
  return std::make_unique<VerbsRegion>(shared_from_this(), *std::move(memory));
}

void Domain::remove(const Memory& memory) {
  std::shared_ptr<const Memory> last;  // deregistered without the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.memory.get() == &memory; });
  if (found != entries_.end() && --found->users == 0) {
    last = std::move(found->memory);
    entries_.erase(found);
  }
}

}  // namespace prunex::transport::verbs
