// SPDX-License-Identifier: Apache-2.0
// prunex_all_reduce, requests and prunex_agree_mask.
#include <chrono>
#include <limits>

#include "plugin/api/comms.h"
#include "plugin/api/error.h"
#include "plugin/api/registry.h"
#include "plugin/base/log.h"
#include "plugin/base/text.h"
#include "plugin/collective/agree.h"
#include "plugin/device/architectures.h"
#include "plugin/device/backend.h"
#include "plugin/device/refuse.h"

namespace prunex::api {
namespace {

using collective::CallSpec;
using collective::Scope;

Result<> check_buffers(const CallSpec& s, bool contributes) {
  if (s.count > std::numeric_limits<size_t>::max() / size_of(s.type)) {
    return fail(Code::invalid_argument,
                strf("count %llu x %s does not fit an address space",
                     static_cast<unsigned long long>(s.count), name_of(s.type)));
  }
  if (s.count == 0) {
    return {};
  }
  if (s.recv == nullptr) {
    return null_argument("recv");
  }
  if (s.send == nullptr) {
    return contributes ? Result<>(null_argument("send")) : Result<>();
  }
  const auto a = reinterpret_cast<uintptr_t>(s.send), b = reinterpret_cast<uintptr_t>(s.recv);
  const size_t bytes = s.count * size_of(s.type);
  if (bytes > UINTPTR_MAX - a || bytes > UINTPTR_MAX - b) {
    return fail(Code::invalid_argument,
                strf("%llu x %s from send %#zx or recv %#zx on do not fit an address space",
                     static_cast<unsigned long long>(s.count), name_of(s.type),
                     static_cast<size_t>(a), static_cast<size_t>(b)));
  }
  if (a != b && a < b + bytes && b < a + bytes) {
    return fail(Code::invalid_argument,
                strf("send [%#zx, +%zu) and recv [%#zx, +%zu) overlap in part; pass equal pointers "
                     "for in place",
                     static_cast<size_t>(a), bytes, static_cast<size_t>(b), bytes));
  }
  return {};
}

// A buffer with no layout finds its mask by address. A miss while masks exist is worth one warning:
// a registration that never takes effect is a common and silent mistake.
void look_up(CommEntry& entry, CallSpec& spec) {
  const void* at = spec.send != nullptr ? spec.send : spec.recv;
  switch (Registry::instance().find(at, spec.count, spec.type, &spec.masked)) {
    case Lookup::none:
      return;
    case Lookup::hit:
      ++entry.hits;
      return;
    case Lookup::miss:
      ++entry.misses;
      break;
    case Lookup::stale:
      ++entry.stale;
      break;
  }
  if (!entry.warned_miss.exchange(true)) {
    PRUNEX_LOG(
        warn,
        "all_reduce of %llu x %s at %p goes dense: masks are registered, but none for exactly "
        "this pointer, length and type; register this buffer or pass a layout (said once)",
        static_cast<unsigned long long>(spec.count), name_of(spec.type), at);
  }
}

// On the caller's stream: a request is complete once the call is enqueued.
Result<> start_on_device(CommEntry& entry, const CallSpec& spec, int at, void* stream,
                         prunex_request_t* request) {
  auto table = device::cuda_table();
  if (!table) {
    return tl::unexpected(table.error());
  }
  const std::lock_guard lock(entry.device_mutex);
  if (entry.device == nullptr) {
    if (auto runs = device::check_architecture(**table, at); !runs) {
      auto aligned = device::check_alignment(spec);
      return aligned ? device::refuse_call(*entry.comm, spec, runs.error()) : aligned;
    }
    entry.device = std::make_unique<device::DeviceComm>(*entry.comm, **table, at);
  }
  Result<> result = entry.device->all_reduce(spec, at, stream);
  if (request == nullptr || !result) {
    return result;
  }
  auto done = std::make_shared<collective::Request>();
  done->complete({});
  *request = requests().add({std::move(done)});
  return {};
}

// Device memory that this rank cannot use, or a device that is broken: the others, who are about to
// make the same call, are told.
Result<> without_place(CommEntry& entry, const CallSpec& spec, const Error& why) {
  if (why.code == Code::unsupported) {
    return device::refuse_call(*entry.comm, spec, why);
  }
  const std::lock_guard lock(entry.device_mutex);
  if (why.code != Code::invalid_argument && entry.device != nullptr) {
    (void)entry.device->give_up(why);  // others may only know that this rank is lost
  }
  return tl::unexpected(why);
}

Result<> start(prunex_comm_t comm, CallSpec spec, prunex_layout_t layout, void* stream,
               prunex_request_t* request) {
  auto entry = find_own_comm(comm);
  if (!entry) {
    return tl::unexpected(entry.error());
  }
  collective::Comm& c = *(*entry)->comm;
  const topo::World& world = c.world();
  const int leader = world.nodes[static_cast<size_t>(world.node_of[static_cast<size_t>(c.rank())])]
                         .leaders[0]
                         .rank;
  if (auto good = check_buffers(spec, spec.scope != Scope::leaders || leader == c.rank()); !good) {
    return good;
  }
  if (layout != 0) {
    auto masked = Registry::instance().layout(layout);
    if (!masked) {
      return tl::unexpected(masked.error());
    }
    if ((*masked)->layout.count != spec.count) {
      return fail(Code::invalid_argument, strf("the layout has %s, the call %llu",
                                               counted((*masked)->layout.count, "element").c_str(),
                                               static_cast<unsigned long long>(spec.count)));
    }
    spec.masked = std::move(*masked);
  } else {
    look_up(**entry, spec);
  }
  auto place = spec.count > 0 ? device::place_of(spec.send, spec.recv) : device::Place{};
  if (!place) {
    return without_place(**entry, spec, place.error());
  }
  if (place->memory == device::Memory::device) {
    return start_on_device(**entry, spec, place->device, stream, request);
  }
  if (stream != nullptr && spec.count > 0) {
    auto table = device::cuda_table();
    return table ? fail(Code::invalid_argument,
                        "stream is given, yet the buffers are host memory: pass NULL, or device "
                        "buffers")
                 : fail(Code::unsupported,
                        "stream: device buffers cannot be used: " + table.error().text);
  }
  if (request == nullptr) {
    return c.all_reduce(spec);
  }
  *request = requests().add({c.submit(spec)});
  return {};
}

}  // namespace
}  // namespace prunex::api

using prunex::Result;

extern "C" {

prunex_result_t prunex_all_reduce(prunex_comm_t comm, const void* send, void* recv, size_t count,
                                  prunex_dtype_t dtype, prunex_op_t op, prunex_layout_t layout,
                                  const prunex_call_t* call) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    const prunex_call_t defaults = PRUNEX_CALL_INIT;
    if (call == nullptr) {
      call = &defaults;
    }
    if (auto sized = check_size(call, "call"); !sized) {
      return sized;
    }
    if (call->request != nullptr) {
      *call->request = 0;
    }
    for (const Result<>& good :
         {check_enum(dtype, prunex::kNumDTypes, "dtype"), check_enum(op, prunex::kNumOps, "op"),
          check_enum(call->scope, 3, "scope")}) {
      if (!good) {
        return good;
      }
    }
    CallSpec spec;
    spec.send = send;
    spec.recv = recv;
    spec.count = count;
    spec.type = static_cast<prunex::DType>(dtype);
    spec.op = static_cast<prunex::Op>(op);
    spec.scope = static_cast<Scope>(call->scope);
    return start(comm, std::move(spec), layout, call->stream, call->request);
  });
}

prunex_result_t prunex_device_ready(void) {
  return prunex::api::guard([]() -> Result<> { return prunex::device::device_ready(); });
}

prunex_result_t prunex_request_test(prunex_request_t request, int* done) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (done == nullptr) {
      return null_argument("done");
    }
    *done = 0;
    auto entry = requests().find(request);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    if (!entry->request->done()) {
      return {};
    }
    *done = 1;
    (void)requests().take(request);
    return entry->request->wait();
  });
}

prunex_result_t prunex_request_wait_for(prunex_request_t request, uint32_t milliseconds,
                                        int* done) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (done == nullptr) {
      return null_argument("done");
    }
    *done = 0;
    auto entry = requests().find(request);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    if (!entry->request->wait_for(std::chrono::milliseconds(milliseconds))) {
      return {};
    }
    if (auto taken = requests().take(request); !taken) {
      return tl::unexpected(taken.error());  // another thread has the result
    }
    *done = 1;
    return entry->request->wait();
  });
}

prunex_result_t prunex_request_wait(prunex_request_t request) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto entry = requests().take(request);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    return entry->request->wait();
  });
}

prunex_result_t prunex_agree_mask(prunex_comm_t comm, const float* scores, size_t groups,
                                  const prunex_agree_t* agree, uint8_t* keep_out) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (auto sized = check_size(agree, "agree"); !sized) {
      return sized;
    }
    if (scores == nullptr && groups > 0) {
      return null_argument("scores");
    }
    if (keep_out == nullptr && groups > 0) {
      return null_argument("keep_out");
    }
    if (agree->num_layers > 0 && (agree->layer_groups == nullptr || agree->layer_keep == nullptr)) {
      return null_argument("agree.layer_groups or layer_keep");
    }
    for (const Result<>& good :
         {check_enum(agree->mode, 3, "mode"), check_enum(agree->scope, 3, "scope")}) {
      if (!good) {
        return good;
      }
    }
    auto entry = find_own_comm(comm);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    prunex::collective::AgreeSpec spec;
    spec.mode = static_cast<prunex::collective::AgreeMode>(agree->mode);
    spec.scope = static_cast<Scope>(agree->scope);
    spec.weight = agree->weight;
    spec.scores = std::span(scores, groups);
    if (agree->num_layers > 0) {
      spec.layer_groups = std::span(agree->layer_groups, agree->num_layers);
      spec.layer_keep = std::span(agree->layer_keep, agree->num_layers);
    } else {
      spec.layer_groups = std::span(&groups, 1);
      spec.layer_keep = std::span(&agree->keep, 1);
    }
    if (agree->incumbents != nullptr) {
      spec.incumbents = std::span(agree->incumbents, groups);
    }
    spec.hysteresis = agree->hysteresis;
    return prunex::collective::agree_mask(*(*entry)->comm, spec, std::span(keep_out, groups));
  });
}
}
