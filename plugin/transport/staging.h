// SPDX-License-Identifier: Apache-2.0
// Memory of this library's own that messages are packed into, received into and sent from:
// registered once with the transport, when it is allocated, so that no message costs a copy or a
// registration.
#pragma once
#include <cstddef>
#include <memory>

#include "plugin/transport/transport.h"

namespace prunex::transport {

class Staging {
 public:
  // transport: outlives this; nullptr: nobody sends it.
  explicit Staging(Transport* transport = nullptr) : transport_(transport) {}
  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&& other) noexcept;

  // Room for that many bytes. When it has to grow, what it held is lost, so nothing of it may be
  // under way. New bytes have no value.
  void reserve(size_t bytes);
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] size_t size() const { return size_; }
  // nullptr: not registered; the transport copies.
  [[nodiscard]] const Region* region() const { return region_.get(); }

 private:
  // Pages of its own, which go back to the system: blocks of megabytes that come and go with
  // connections would leave holes in the heap of the process whose guest this is.
  struct Unmap {
    Unmap() : bytes(0) {}
    explicit Unmap(size_t n) : bytes(n) {}
    void operator()(std::byte* memory) const;
    size_t bytes;
  };
  Transport* transport_;
  std::unique_ptr<std::byte, Unmap> memory_;
  size_t size_ = 0;
  std::unique_ptr<Region> region_;  // given back before the memory
};

// For memory that is somebody else's: nullptr where it cannot be registered, which is said once per
// call at the level info; messages are copied then.
[[nodiscard]] std::unique_ptr<Region> try_register(Transport& transport, void* data, size_t bytes);

}  // namespace prunex::transport
