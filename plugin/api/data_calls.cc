// SPDX-License-Identifier: Apache-2.0
// prunex_broadcast, prunex_all_gather, prunex_reduce_scatter, prunex_barrier, prunex_send,
// prunex_recv.
#include <limits>

#include "plugin/api/comms.h"
#include "plugin/api/error.h"
#include "plugin/device/backend.h"

namespace prunex::api {
namespace {

using collective::CallSpec;
using collective::Collective;

struct Opened {
  std::shared_ptr<CommEntry> entry;
  prunex_request_t* request = nullptr;  // null: blocking
  [[nodiscard]] size_t size() const { return static_cast<size_t>(entry->comm->world().size); }
  [[nodiscard]] size_t rank() const { return static_cast<size_t>(entry->comm->rank()); }
};

// What all these calls check first.
Result<Opened> open_call(prunex_comm_t comm, const prunex_call_t* call, const char* name) {
  Opened out;
  if (call != nullptr) {
    if (auto sized = check_size(call, "call"); !sized) {
      return tl::unexpected(sized.error());
    }
    out.request = call->request;
    if (out.request != nullptr) {
      *out.request = 0;
    }
    if (auto known = check_enum(call->scope, 3, "scope"); !known) {
      return tl::unexpected(known.error());
    }
    if (call->scope != PRUNEX_SCOPE_WORLD) {
      return fail(
          Code::unsupported,
          strf("%s over scope %s: it runs over PRUNEX_SCOPE_WORLD only; make a communicator "
               "of those ranks",
               name, call->scope == PRUNEX_SCOPE_NODE ? "NODE" : "LEADERS"));
    }
    if (call->stream != nullptr) {
      return fail(Code::unsupported,
                  strf("stream: %s takes host memory only; pass NULL, or call prunex_all_reduce "
                       "with device memory",
                       name));
    }
  }
  auto entry = find_own_comm(comm);
  if (!entry) {
    return tl::unexpected(entry.error());
  }
  out.entry = std::move(*entry);
  return out;
}

Result<> check_on_host(const CallSpec& spec) {
  const auto place = spec.count > 0 ? device::place_of(spec.send, spec.recv) : device::Place{};
  if (!place) {
    return tl::unexpected(place.error());
  }
  return place->memory == device::Memory::host
             ? Result<>()
             : fail(Code::unsupported,
                    strf("the buffers are memory of device %d: of the calls only "
                         "prunex_all_reduce takes such; copy them to host memory",
                         place->device));
}

Result<> start(const Opened& opened, const CallSpec& spec) {
  if (auto fine = check_on_host(spec); !fine) {
    return fine;
  }
  collective::Comm& c = *opened.entry->comm;
  if (opened.request == nullptr) {
    return c.call(spec);
  }
  *opened.request = requests().add({c.submit(spec)});
  return {};
}

struct Buffer {
  const char* name;
  const void* at;
  size_t bytes;
  [[nodiscard]] uintptr_t begin() const { return reinterpret_cast<uintptr_t>(at); }
};

Result<> check_buffer(const Buffer& b) {
  if (b.bytes == 0) {
    return {};
  }
  if (b.at == nullptr) {
    return null_argument(b.name);
  }
  if (b.bytes > UINTPTR_MAX - b.begin()) {
    return fail(Code::invalid_argument,
                strf("%zu bytes from %s %#zx on do not fit an address space", b.bytes, b.name,
                     static_cast<size_t>(b.begin())));
  }
  return {};
}

// `part` may lie in `whole` at the rank's own place only.
Result<> check_pair(const Buffer& part, const Buffer& whole, size_t rank) {
  for (const Buffer& b : {part, whole}) {
    if (auto good = check_buffer(b); !good) {
      return good;
    }
  }
  const bool apart =
      part.begin() + part.bytes <= whole.begin() || whole.begin() + whole.bytes <= part.begin();
  if (part.bytes == 0 || apart || part.begin() == whole.begin() + rank * part.bytes) {
    return {};
  }
  return fail(Code::invalid_argument,
              strf("%s [%#zx, +%zu) and %s [%#zx, +%zu) overlap; in place %s is %s + rank * %zu "
                   "bytes, that is %#zx on rank %zu",
                   part.name, static_cast<size_t>(part.begin()), part.bytes, whole.name,
                   static_cast<size_t>(whole.begin()), whole.bytes, part.name, whole.name,
                   part.bytes, static_cast<size_t>(whole.begin() + rank * part.bytes), rank));
}

Result<> message(prunex_comm_t comm, const Buffer& buffer, int peer, int tag, bool sends,
                 const prunex_call_t* call) {
  auto opened = open_call(comm, call, sends ? "prunex_send" : "prunex_recv");
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  if (peer < 0 || static_cast<size_t>(peer) >= opened->size()) {
    return fail(Code::invalid_argument,
                strf("peer %d is not a rank: there are 0 to %zu", peer, opened->size() - 1));
  }
  if (static_cast<size_t>(peer) == opened->rank()) {
    return fail(Code::invalid_argument,
                strf("peer %d is this rank itself: messages go to other ranks", peer));
  }
  if (auto good = check_buffer(buffer); !good) {
    return good;
  }
  collective::P2pSpec spec;
  spec.buffer = const_cast<void*>(buffer.at);  // only read by a send
  spec.bytes = buffer.bytes;
  spec.peer = peer;
  spec.tag = tag;
  spec.sends = sends;
  auto completion = opened->entry->comm->submit(spec);
  if (opened->request == nullptr) {
    return completion->wait();
  }
  *opened->request = requests().add({std::move(completion)});
  return {};
}

Result<> check_total(size_t each, size_t element, size_t ranks, const char* name) {
  if (each > std::numeric_limits<size_t>::max() / element / ranks) {
    return fail(Code::invalid_argument,
                strf("%s %zu on %zu ranks does not fit an address space", name, each, ranks));
  }
  return {};
}

}  // namespace
}  // namespace prunex::api

using prunex::Result;

extern "C" {

prunex_result_t prunex_broadcast(prunex_comm_t comm, void* buffer, size_t bytes, int root,
                                 const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto opened = open_call(comm, call, "prunex_broadcast");
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    if (root < 0 || static_cast<size_t>(root) >= opened->size()) {
      return prunex::fail(
          prunex::Code::invalid_argument,
          prunex::strf("root %d is not a rank: there are 0 to %zu", root, opened->size() - 1));
    }
    if (auto good = check_buffer({"buffer", buffer, bytes}); !good) {
      return good;
    }
    CallSpec spec;
    spec.collective = Collective::broadcast;
    spec.send = spec.recv = buffer;
    spec.count = bytes;
    spec.type = prunex::DType::u8;
    spec.root = root;
    return start(*opened, spec);
  });
}

prunex_result_t prunex_all_gather(prunex_comm_t comm, const void* send, void* recv,
                                  size_t bytes_per_rank, const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto opened = open_call(comm, call, "prunex_all_gather");
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    if (auto fits = check_total(bytes_per_rank, 1, opened->size(), "bytes_per_rank"); !fits) {
      return fits;
    }
    const size_t total = bytes_per_rank * opened->size();
    if (auto good =
            check_pair({"send", send, bytes_per_rank}, {"recv", recv, total}, opened->rank());
        !good) {
      return good;
    }
    CallSpec spec;
    spec.collective = Collective::all_gather;
    spec.send = send;
    spec.recv = recv;
    spec.count = total;
    spec.type = prunex::DType::u8;
    return start(*opened, spec);
  });
}

prunex_result_t prunex_reduce_scatter(prunex_comm_t comm, const void* send, void* recv,
                                      size_t count_per_rank, prunex_dtype_t dtype, prunex_op_t op,
                                      const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto opened = open_call(comm, call, "prunex_reduce_scatter");
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    for (const Result<>& good :
         {check_enum(dtype, prunex::kNumDTypes, "dtype"), check_enum(op, prunex::kNumOps, "op")}) {
      if (!good) {
        return good;
      }
    }
    const auto type = static_cast<prunex::DType>(dtype);
    const size_t element = prunex::size_of(type);
    if (auto fits = check_total(count_per_rank, element, opened->size(), "count_per_rank"); !fits) {
      return fits;
    }
    const size_t part = count_per_rank * element;
    if (auto good =
            check_pair({"recv", recv, part}, {"send", send, part * opened->size()}, opened->rank());
        !good) {
      return good;
    }
    CallSpec spec;
    spec.collective = Collective::reduce_scatter;
    spec.send = send;
    spec.recv = recv;
    spec.count = count_per_rank * opened->size();
    spec.type = type;
    spec.op = static_cast<prunex::Op>(op);
    return start(*opened, spec);
  });
}

prunex_result_t prunex_barrier(prunex_comm_t comm) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto opened = open_call(comm, nullptr, "prunex_barrier");
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    CallSpec spec;
    spec.collective = Collective::barrier;
    return start(*opened, spec);
  });
}

prunex_result_t prunex_send(prunex_comm_t comm, const void* buffer, size_t bytes, int peer, int tag,
                            const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&] { return message(comm, {"buffer", buffer, bytes}, peer, tag, true, call); });
}

prunex_result_t prunex_recv(prunex_comm_t comm, void* buffer, size_t bytes, int peer, int tag,
                            const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&] { return message(comm, {"buffer", buffer, bytes}, peer, tag, false, call); });
}
}
