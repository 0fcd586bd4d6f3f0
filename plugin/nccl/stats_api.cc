// SPDX-License-Identifier: Apache-2.0
// The plugin's counters for C callers.
#include "plugin/api/error.h"
#include "plugin/nccl/stats.h"

namespace prunex::nccl {
namespace {

prunex_net_kind_t kind_of(const std::array<Totals::Kind, kWireKinds>& counts, WireKind kind) {
  const Totals::Kind& k = counts[static_cast<size_t>(kind)];
  return {k.messages, k.logical, k.wire};
}

prunex_net_stats_t net_stats(const Totals& t) {
  prunex_net_stats_t out{};
  out.struct_size = sizeof out;
  out.sent_raw = kind_of(t.sent, WireKind::raw);
  out.sent_zero_block = kind_of(t.sent, WireKind::zero_block);
  out.sent_masked = kind_of(t.sent, WireKind::masked);
  out.received_raw = kind_of(t.received, WireKind::raw);
  out.received_zero_block = kind_of(t.received, WireKind::zero_block);
  out.received_masked = kind_of(t.received, WireKind::masked);
  out.pack_ns = t.pack_ns;
  out.unpack_ns = t.unpack_ns;
  out.stale = t.stale;
  out.violated = t.violated;
  out.device_packed = t.packed.messages;
  out.device_unpacked = t.unpacked.messages;
  out.device_direct = t.direct.messages;
  out.device_copied = t.staged.messages;
  return out;
}

}  // namespace
}  // namespace prunex::nccl

prunex_result_t prunex_net_stats(prunex_net_stats_t* stats) {
  using namespace prunex;
  return api::guard([&]() -> Result<> {
    if (auto sized = api::check_size(stats, "stats"); !sized) {
      return sized;
    }
    *stats = nccl::net_stats(nccl::all_totals());
    return {};
  });
}
