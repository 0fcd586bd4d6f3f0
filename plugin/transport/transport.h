// SPDX-License-Identifier: Apache-2.0
// The one run-time boundary between whoever moves bytes and how they move. Non-blocking throughout:
// calls post or poll and return; there are no threads in here. A connection is used by one thread
// at a time. Messages are delivered whole and in order, per connection and direction.
#pragma once
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"

namespace prunex::transport {

// done: it happened. again: not yet, call again. failed: the connection is broken, see error().
enum class Io : uint8_t { done, again, failed };

// Names a posted operation: index and generation, so that a stale one is recognised. 0: none.
using Ticket = uint64_t;
inline constexpr int kMaxInFlight = 64;  // per connection and direction; more is Io::again

// Memory that was registered with a transport; kept by the caller, freed before its transport and
// before the memory itself.
class Region {
 public:
  // owner: what its transport knows its own regions by.
  explicit Region(const void* owner = nullptr) : owner_(owner) {}
  virtual ~Region() = default;
  [[nodiscard]] const void* owner() const { return owner_; }

 private:
  const void* owner_;
};

// Travels with a message from isend() to test() at the other end. Those below concern the
// transport; the other bits are the caller's.
using Mark = uint8_t;
inline constexpr Mark kAside =
    1;  // for the memory that the receive's Aside gives, not for its data

// Where a receive puts a message that is marked kAside; whoever posts it learns from the mark which
// of the two it was.
class Aside {
 public:
  struct Room {
    void* memory = nullptr;          // nullptr: too long, which breaks the connection
    const Region* region = nullptr;  // of that memory, if it was registered
  };
  virtual ~Aside() = default;
  // At least `bytes` of memory until the receive is answered. At most once per receive.
  virtual Room room(size_t bytes) = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;  // closes; what was handed over by test() == done is still sent

  // Posts a send or receive. `data` stays the caller's and must not change (send) or be read
  // (receive) until test() says done. Zero bytes are a message too. A message longer than
  // `capacity` breaks the connection with an error naming both sizes.
  virtual Io isend(const void* data, size_t bytes, const Region* region, Ticket* out,
                   Mark mark = 0) = 0;
  // aside: outlives the receive; without one a message marked kAside breaks the connection.
  virtual Io irecv(void* data, size_t capacity, const Region* region, Ticket* out,
                   Aside* aside = nullptr) = 0;

  // Progresses the connection; done at most once per ticket, which then is free. `bytes`: message
  // size. `mark`: what the sender gave.
  virtual Io test(Ticket ticket, size_t* bytes, Mark* mark = nullptr) = 0;
  virtual Io progress() = 0;

  // Adds what to poll() for before calling progress() again. Ask after progress() or test() said
  // again for all that was posted: what has come already shows on no descriptor.
  virtual void poll_fds(std::vector<pollfd>& out) const = 0;

  [[nodiscard]] virtual const Error& error() const = 0;      // after failed
  [[nodiscard]] virtual std::string_view hello() const = 0;  // what the other end said at connect
  [[nodiscard]] virtual std::string describe()
      const = 0;  // "10.0.0.1:4711 -> 10.0.0.2:4711 (socket)"
};

// A connection in the making. step() until it is done.
class Connecting {
 public:
  virtual ~Connecting() = default;
  // nullptr: not yet.
  virtual Result<std::unique_ptr<Connection>> step() = 0;
  virtual void poll_fds(std::vector<pollfd>& out) const = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  // An opaque address, at most 128 bytes, to be carried to the connecting side by the caller. It
  // holds a random cookie: whoever does not know it is dropped.
  [[nodiscard]] virtual std::string handle() const = 0;
  // nullptr: nobody yet. A stray or malformed caller is dropped and never an error.
  virtual Result<std::unique_ptr<Connection>> accept() = 0;
  virtual void poll_fds(std::vector<pollfd>& out) const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  virtual Result<std::unique_ptr<Listener>> listen() = 0;
  // `hello` (at most 256 bytes) reaches the accepting side. Retries with back-off until
  // `timeout_s`.
  virtual Result<std::unique_ptr<Connecting>> connect(std::string_view handle,
                                                      std::string_view hello, double timeout_s) = 0;
  // Memory that is in no Region works as well: it is copied on its way where the transport needs
  // registered memory. What is registered already costs nothing to register again.
  virtual Result<std::unique_ptr<Region>> register_memory(void* data, size_t bytes) = 0;
  // The same, for memory that nobody watches while a message arrives: its bytes may come in any
  // order, which some machines do faster.
  virtual Result<std::unique_ptr<Region>> register_relaxed(void* data, size_t bytes) {
    return register_memory(data, bytes);
  }
  // A device's memory, by the descriptor that its driver gave for it (dmabuf): `bytes` from
  // `offset` on, which the device knows as `data`. The caller keeps `fd`.
  virtual Result<std::unique_ptr<Region>> register_dmabuf(int fd, uint64_t offset, void* data,
                                                          size_t bytes) {
    (void)fd, (void)offset, (void)data, (void)bytes;
    return fail(Code::unsupported,
                strf("%s moves no device memory (dmabuf)", std::string(name()).c_str()));
  }
};

}  // namespace prunex::transport
