// SPDX-License-Identifier: Apache-2.0
#include <cinttypes>
#include <cstdlib>
#include <fstream>

#include "bench/nccl_check.h"
#include "plugin/base/result.h"

namespace prunex::check {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string number(const char* name, uint64_t value) {
  return strf("%s: %" PRIu64, quoted(name).c_str(), value);
}

}  // namespace

const char* name_of(Way way) {
  switch (way) {
    case Way::net:
      return "net";
    case Way::zero_block:
      return "zero_block";
    case Way::masked:
      return "masked";
    case Way::coll:
      return "coll";
    case Way::compact:
      return "compact";
    case Way::device:
      return "device";
    case Way::device_compact:
      return "device_compact";
    case Way::violated:
      return "violated";
  }
  return "?";
}

void Counts::add(const Counts& o) {
  raw += o.raw;
  zero_block += o.zero_block;
  masked += o.masked;
  net_bytes += o.net_bytes;
  net_wire += o.net_wire;
  coll += o.coll;
  coll_dense += o.coll_dense;
  coll_masked += o.coll_masked;
  coll_union += o.coll_union;
  coll_bytes += o.coll_bytes;
  coll_wire += o.coll_wire;
  device += o.device;
  device_compact += o.device_compact;
  device_violated += o.device_violated;
}

std::string file_of(const Places& places, const Case& one, int rank, const char* suffix) {
  return strf("%s/nccl-%s-%d.%s", places.out.c_str(), one.name, rank, suffix);
}

Counts read_counts(const std::string& metrics_file) {
  Counts c;
  const std::string sent = "{direction=\"sent\",kind=\"";
  const struct {
    std::string key;
    uint64_t* into;
  } fields[] = {
      {"prunex_net_messages_total" + sent + "raw\"}", &c.raw},
      {"prunex_net_messages_total" + sent + "zero_block\"}", &c.zero_block},
      {"prunex_net_messages_total" + sent + "masked\"}", &c.masked},
      {"prunex_net_logical_bytes_total" + sent, &c.net_bytes},
      {"prunex_net_wire_bytes_total" + sent, &c.net_wire},
      {"prunex_coll_calls_total ", &c.coll},
      {"prunex_coll_dense_total ", &c.coll_dense},
      {"prunex_coll_masked_total ", &c.coll_masked},
      {"prunex_coll_union_total ", &c.coll_union},
      {"prunex_coll_logical_bytes_total ", &c.coll_bytes},
      {"prunex_coll_wire_bytes_total ", &c.coll_wire},
      {"prunex_device_calls_total ", &c.device},
      {"prunex_device_compact_total ", &c.device_compact},
      {"prunex_device_violations_total ", &c.device_violated},
  };
  std::ifstream file(metrics_file);
  for (std::string line; std::getline(file, line);) {
    for (const auto& f : fields) {
      if (line.starts_with(f.key)) {
        *f.into += std::strtoull(line.c_str() + line.rfind(' '), nullptr, 10);
      }
    }
  }
  return c;
}

namespace {

std::string fault_of_device(const Case& one, const Counts& c) {
  const bool taken = one.way == Way::device_compact ? c.device_compact == kRounds
                     : one.way == Way::violated     ? c.device_violated > 0 && c.device_compact == 0
                                                    : c.device_compact == 0;
  if (c.device == kRounds && taken) {
    return "";
  }
  return strf("nothing travelled as %s (%" PRIu64 " calls: %" PRIu64 " compact, %" PRIu64
              " violations)",
              name_of(one.way), c.device, c.device_compact, c.device_violated);
}

}  // namespace

std::string fault_of(const Case& one, const Counts& c) {
  if (one.device_ranks > 0) {
    return fault_of_device(one, c);
  }
  // A ring of two sends a buffer's worth from each rank; half of it leaves room for other shapes.
  constexpr uint64_t kLeast = kRounds * kBytes / 2;
  const uint64_t carried = one.collnet ? c.coll_bytes : c.net_bytes;
  if (carried < kLeast) {
    return strf("PruneX's %s has carried %" PRIu64 " bytes, at least %" PRIu64
                " were due: NCCL used another way",
                one.collnet ? "CollNet" : "Net", carried, kLeast);
  }
  const std::string counted =
      one.collnet
          ? strf("%" PRIu64 " calls: %" PRIu64 " dense, %" PRIu64 " union, %" PRIu64 " masked",
                 c.coll, c.coll_dense, c.coll_union, c.coll_masked)
          : strf("messages sent: %" PRIu64 " raw, %" PRIu64 " zero-block, %" PRIu64 " masked",
                 c.raw, c.zero_block, c.masked);
  const bool taken = one.way == Way::zero_block ? c.zero_block > 0
                     : one.way == Way::masked   ? c.masked > 0
                     : one.way == Way::compact  ? c.coll_masked + c.coll_union > 0
                                                : true;
  if (!taken) {
    return strf("nothing travelled as %s (%s)", name_of(one.way), counted.c_str());
  }
  const uint64_t wire = one.collnet ? c.coll_wire : c.net_wire;
  if (one.masked && wire >= carried) {
    return strf("%" PRIu64 " bytes crossed for %" PRIu64 ": nothing was left out (%s)", wire,
                carried, counted.c_str());
  }
  return "";
}

std::string json_of(const Outcome& o) {
  const Counts& c = o.counted;
  std::string out =
      strf("{\"case\": %s, \"result\": %s, \"seconds\": %.1f, \"way\": %s, \"fault\": %s, ",
           quoted(o.of->name).c_str(), quoted(o.result).c_str(), o.seconds,
           quoted(name_of(o.of->way)).c_str(), quoted(o.fault).c_str());
  out += "\"counted\": {" + number("raw", c.raw) + ", " + number("zero_block", c.zero_block) +
         ", " + number("masked", c.masked) + ", " + number("net_bytes", c.net_bytes) + ", " +
         number("net_wire", c.net_wire) + ", ";
  out += number("coll", c.coll) + ", " + number("coll_dense", c.coll_dense) + ", " +
         number("coll_union", c.coll_union) + ", " + number("coll_masked", c.coll_masked) + ", " +
         number("coll_bytes", c.coll_bytes) + ", " + number("coll_wire", c.coll_wire) + ", ";
  out += number("device", c.device) + ", " + number("device_compact", c.device_compact) + ", " +
         number("device_violated", c.device_violated) + "}}";
  return out;
}

}  // namespace prunex::check
