// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/stats.h"

#include <cinttypes>

#include "plugin/api/registry.h"
#include "plugin/base/result.h"

namespace prunex::nccl {
namespace {

struct MaskSums {
  uint64_t messages = 0, logical = 0, wire = 0, violated = 0;
};
using MasksByName = std::map<std::string, MaskSums>;

void add_masks(MasksByName& sums, const ContextStats& stats) {
  for (const auto& [name, counts] : stats.masks()) {
    if (counts->messages.get() + counts->violated.get() == 0) {
      continue;
    }
    MaskSums& sum = sums[name];
    sum.messages += counts->messages.get();
    sum.logical += counts->logical.get();
    sum.wire += counts->wire.get();
    sum.violated += counts->violated.get();
  }
}

// Comms that are gone must not be forgotten, nor keep their memory: a counter never goes back.
struct All {
  std::mutex mutex;
  std::vector<std::shared_ptr<ContextStats>> living;
  Totals gone;
  MasksByName gone_masks;
};

All& all() {
  static All* const one = new All;  // never destroyed: see Host
  return *one;
}

std::string megabytes(uint64_t bytes) { return strf("%.2f MB", static_cast<double>(bytes) / 1e6); }

std::string direction_text(const char* verb, const std::array<Totals::Kind, kWireKinds>& kinds) {
  uint64_t messages = 0, logical = 0, wire = 0;
  for (const Totals::Kind& k : kinds) {
    messages += k.messages;
    logical += k.logical;
    wire += k.wire;
  }
  return strf("%s %" PRIu64 " message%s, %s as %s (raw %" PRIu64 ", zero-block %" PRIu64
              ", masked %" PRIu64 ")",
              verb, messages, messages == 1 ? "" : "s", megabytes(logical).c_str(),
              megabytes(wire).c_str(), kinds[0].messages, kinds[1].messages, kinds[2].messages);
}

void metric(std::string& out, const char* name, const char* help, uint64_t value) {
  out += strf("# HELP prunex_%s %s\n# TYPE prunex_%s counter\nprunex_%s %" PRIu64 "\n", name, help,
              name, name, value);
}

using Field = uint64_t Totals::Kind::*;
void metric_by_kind(std::string& out, const char* name, const char* help, const Totals& t,
                    Field field) {
  out += strf("# HELP prunex_%s %s\n# TYPE prunex_%s counter\n", name, help, name);
  for (size_t i = 0; i < kWireKinds; ++i) {
    const char* kind = name_of(static_cast<WireKind>(i));
    out += strf("prunex_%s{direction=\"sent\",kind=\"%s\"} %" PRIu64 "\n", name, kind,
                t.sent[i].*field);
    out += strf("prunex_%s{direction=\"received\",kind=\"%s\"} %" PRIu64 "\n", name, kind,
                t.received[i].*field);
  }
}

void metrics_of_device(std::string& out, const Totals& t) {
  const struct {
    const char* way;
    const Totals::Device& count;
  } ways[] = {
      {"packed", t.packed}, {"unpacked", t.unpacked}, {"direct", t.direct}, {"copied", t.staged}};
  out +=
      "# HELP prunex_net_device_messages_total Messages of device memory, by their way.\n"
      "# TYPE prunex_net_device_messages_total counter\n";
  for (const auto& [way, count] : ways) {
    out += strf("prunex_net_device_messages_total{way=\"%s\"} %" PRIu64 "\n", way, count.messages);
  }
  out +=
      "# HELP prunex_net_device_bytes_total Bytes of those messages, as NCCL counts them.\n"
      "# TYPE prunex_net_device_bytes_total counter\n";
  for (const auto& [way, count] : ways) {
    out += strf("prunex_net_device_bytes_total{way=\"%s\"} %" PRIu64 "\n", way, count.bytes);
  }
}

std::string label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
    }
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

MaskCounts& ContextStats::of_mask(uint64_t digest, const std::string& name) {
  const std::lock_guard lock(mutex_);
  MaskCounts& counts = name.empty() ? unnamed_[digest] : named_[name];
  if (counts.name != name) {
    counts.name = name;
  }
  return counts;
}

std::vector<std::pair<std::string, const MaskCounts*>> ContextStats::masks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, const MaskCounts*>> out;
  for (const auto& [name, counts] : named_) {
    out.emplace_back(name, &counts);
  }
  for (const auto& [digest, counts] : unnamed_) {
    out.emplace_back(strf("mask %#" PRIx64, digest), &counts);
  }
  return out;
}

void Totals::add(const ContextStats& stats) {
  const auto direction = [](std::array<Kind, kWireKinds>& into, const DirectionCounts& from) {
    for (size_t i = 0; i < kWireKinds; ++i) {
      into[i].messages += from.kind[i].messages.get();
      into[i].logical += from.kind[i].logical.get();
      into[i].wire += from.kind[i].wire.get();
    }
  };
  direction(sent, stats.sent);
  direction(received, stats.received);
  const auto way = [](Device& into, const DeviceCounts::Way& from) {
    into.messages += from.messages.get();
    into.bytes += from.bytes.get();
  };
  way(packed, stats.device.packed);
  way(unpacked, stats.device.unpacked);
  way(direct, stats.device.direct);
  way(staged, stats.device.staged);
  pack_ns += stats.sent.codec_ns.get();
  unpack_ns += stats.received.codec_ns.get();
  stale += stats.stale.get();
  violated += stats.violated.get();
  connects += stats.connects.get();
  failures += stats.failures.get();
  coll_calls += stats.coll.calls.get();
  coll_dense += stats.coll.dense.get();
  coll_masked += stats.coll.masked.get();
  coll_union += stats.coll.unioned.get();
  coll_mismatched += stats.coll.mismatched.get();
  coll_violated += stats.coll.violated.get();
  coll_logical += stats.coll.logical.get();
  coll_wire += stats.coll.wire.get();
  coll_ns += stats.coll.busy_ns.get();
}

namespace {

void take_the_gone() {
  std::erase_if(all().living, [](const auto& s) {
    const bool gone = s.use_count() == 1;
    if (gone) {
      all().gone.add(*s);
      add_masks(all().gone_masks, *s);
    }
    return gone;
  });
}

void prepare_counters(const api::MaskVersion& version) {
  const std::lock_guard lock(all().mutex);
  for (const auto& stats : all().living) {
    (void)stats->of_mask(version.mask->digest, version.name);
  }
}

}  // namespace

void register_stats(std::shared_ptr<ContextStats> stats) {
  {
    const std::lock_guard lock(all().mutex);
    take_the_gone();
    all().living.push_back(stats);
  }
  // In this order, and the other one where masks are registered: one of both sees each mask.
  api::Registry::instance().watch(&prepare_counters);
  for (const auto& mask : api::Registry::instance().addressed()) {
    (void)stats->of_mask(mask.version->mask->digest, mask.version->name);
  }
}

Totals all_totals() {
  const std::lock_guard lock(all().mutex);
  Totals out = all().gone;
  for (const auto& stats : all().living) {
    out.add(*stats);
  }
  return out;
}

std::string summary(const Totals& t) {
  std::string out = direction_text("sent", t.sent) + "; " + direction_text("received", t.received);
  if (t.coll_calls > 0) {
    out += strf("; %" PRIu64 " collectives, %s as %s (dense %" PRIu64 ", union %" PRIu64
                ", masked %" PRIu64 ")",
                t.coll_calls, megabytes(t.coll_logical).c_str(), megabytes(t.coll_wire).c_str(),
                t.coll_dense, t.coll_union, t.coll_masked);
  }
  if (t.packed.messages + t.unpacked.messages + t.direct.messages + t.staged.messages > 0) {
    out += strf("; device memory: packed %" PRIu64 ", unpacked %" PRIu64 ", direct %" PRIu64
                ", copied %" PRIu64,
                t.packed.messages, t.unpacked.messages, t.direct.messages, t.staged.messages);
  }
  const uint64_t violated = t.violated + t.coll_violated;
  if (t.stale + violated + t.coll_mismatched > 0) {
    out += strf("; stale %" PRIu64 ", violated %" PRIu64 ", mismatched %" PRIu64, t.stale, violated,
                t.coll_mismatched);
  }
  return out;
}

std::string metrics_text() {
  const Totals t = all_totals();
  std::string out;
  metric_by_kind(out, "net_messages_total", "Messages carried, by how they travelled.", t,
                 &Totals::Kind::messages);
  metric_by_kind(out, "net_logical_bytes_total", "Bytes that NCCL sent or received.", t,
                 &Totals::Kind::logical);
  metric_by_kind(out, "net_wire_bytes_total", "Bytes that crossed the network for them.", t,
                 &Totals::Kind::wire);
  metrics_of_device(out, t);
  metric(out, "net_pack_nanoseconds_total", "Time of scanning, testing and packing.", t.pack_ns);
  metric(out, "net_unpack_nanoseconds_total", "Time of expanding.", t.unpack_ns);
  metric(out, "net_stale_total", "Messages that reached past a registered tensor.", t.stale);
  metric(out, "net_violations_total", "Messages with data where the mask promised zeros.",
         t.violated);
  metric(out, "net_connects_total", "Connections that were made.", t.connects);
  metric(out, "net_failures_total", "Connections that broke.", t.failures);
  metric(out, "coll_calls_total", "CollNet calls.", t.coll_calls);
  metric(out, "coll_dense_total", "CollNet calls that travelled dense.", t.coll_dense);
  metric(out, "coll_masked_total", "CollNet calls packed by a mask.", t.coll_masked);
  metric(out, "coll_union_total", "CollNet calls packed by the union of non-zero blocks.",
         t.coll_union);
  metric(out, "coll_mismatches_total", "CollNet calls whose masks differed.", t.coll_mismatched);
  metric(out, "coll_violations_total", "CollNet calls that broke their mask.", t.coll_violated);
  metric(out, "coll_logical_bytes_total", "Bytes of CollNet calls.", t.coll_logical);
  metric(out, "coll_wire_bytes_total", "Bytes that crossed the network for them.", t.coll_wire);
  metric(out, "coll_busy_nanoseconds_total", "Time spent in CollNet calls.", t.coll_ns);
  MasksByName masks;
  {
    const std::lock_guard lock(all().mutex);
    masks = all().gone_masks;
    for (const auto& stats : all().living) {
      add_masks(masks, *stats);
    }
  }
  if (!masks.empty()) {
    out +=
        "# HELP prunex_mask_wire_bytes_total Bytes that crossed the network, by mask.\n"
        "# TYPE prunex_mask_wire_bytes_total counter\n";
    for (const auto& [name, sum] : masks) {
      out += strf("prunex_mask_wire_bytes_total{mask=\"%s\"} %" PRIu64 "\n", label(name).c_str(),
                  sum.wire);
    }
    out +=
        "# HELP prunex_mask_logical_bytes_total Bytes of a mask's messages.\n"
        "# TYPE prunex_mask_logical_bytes_total counter\n";
    for (const auto& [name, sum] : masks) {
      out += strf("prunex_mask_logical_bytes_total{mask=\"%s\"} %" PRIu64 "\n", label(name).c_str(),
                  sum.logical);
    }
    out +=
        "# HELP prunex_mask_violations_total Messages that broke the mask.\n"
        "# TYPE prunex_mask_violations_total counter\n";
    for (const auto& [name, sum] : masks) {
      out += strf("prunex_mask_violations_total{mask=\"%s\"} %" PRIu64 "\n", label(name).c_str(),
                  sum.violated);
    }
  }
  return out;
}

}  // namespace prunex::nccl
