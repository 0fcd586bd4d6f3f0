// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/choose.h"

#include <algorithm>
#include <tuple>

#include "plugin/base/address.h"
#include "plugin/base/hca_filter.h"
#include "plugin/base/log.h"
#include "plugin/transport/socket/wire.h"

namespace prunex::transport {
namespace {

// What a job locks at the least: a connection's own memory and two of NCCL's buffers. Less than
// that is found out here, where TCP is still a way.
constexpr size_t kTriedBytes = size_t{16} << 20;
constexpr size_t kMostQueuePairs = 16;  // of one connection
constexpr const char* kRemedy =
    "; unset PRUNEX_TRANSPORT to use TCP where RDMA cannot be used, or see what `prunex info` says "
    "of this node";

Result<Rdma> none(const Config& config, std::string why, Rdma found = {}) {
  if (config.transport == Choice::verbs) {
    for (const std::string& note : found.notes) {
      const std::string reason = note.substr(note.find(": ") + 2);
      why += why.find(reason) == std::string::npos ? "; " + note : "";
    }
    return fail(Code::unsupported, "PRUNEX_TRANSPORT=verbs: " + why + kRemedy);
  }
  found.ports.clear();
  found.named = !config.ib.hca.empty();
  found.why_not = std::move(why);
  return found;
}

// A fault of what was asked for, not of the machine.
bool names_nothing(std::span<const verbs::PortInfo> have, const std::string& hca) {
  const auto filter = parse_hca_filter(hca);
  if (!filter || filter->exclude || filter->items.empty()) {
    return false;
  }
  return std::none_of(have.begin(), have.end(), [&](const verbs::PortInfo& port) {
    verbs::PortInfo well = port;
    well.trouble.clear();
    return verbs::select_ports(std::span(&well, 1), hca).has_value();
  });
}

Result<> try_port(const VerbsOptions& options) {
  auto transport = open_verbs_transport(options);
  if (!transport) {
    return tl::unexpected(transport.error());
  }
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(kTriedBytes);
  auto region = (*transport)->register_memory(memory.get(), kTriedBytes);
  return region ? Result<>() : Result<>(tl::unexpected(region.error()));
}

auto order_of(const verbs::PortInfo& p) {
  return std::tuple(p.pci.empty(), p.pci, p.device, p.port);
}

std::string port_names(const Rdma& rdma) {
  std::string out;
  for (const RdmaPort& p : rdma.ports) {
    out += (out.empty() ? "" : ", ") + p.info.name();
  }
  return out;
}

}  // namespace

std::string device_name(const Rdma& rdma, const RdmaPort& port) {
  const auto ports =
      std::count_if(rdma.ports.begin(), rdma.ports.end(),
                    [&](const RdmaPort& other) { return other.info.device == port.info.device; });
  return ports > 1 ? port.info.name() : port.info.device;
}

const Interface& meeting_interface(const verbs::PortInfo& port, std::span<const Interface> chosen) {
  const auto is_own = [&](const Interface& i) {
    return std::any_of(port.gids.begin(), port.gids.end(), [&](const verbs::Gid& gid) {
      const auto own = parse_host(verbs::to_text(gid.bytes), 0);
      return own && same_host(*own, i.address);
    });
  };
  const auto own = std::find_if(chosen.begin(), chosen.end(), is_own);
  return own != chosen.end() ? *own : chosen.front();
}

VerbsOptions verbs_options(const IbConfig& ib, const SocketOptions& meeting, size_t rail,
                           int traffic_class) {
  const auto chosen = [&](int set, int most) {
    const int value = set >= 0 ? set : traffic_class;
    return static_cast<uint8_t>(value >= 0 && value <= most ? value : 0);
  };
  VerbsOptions o;
  o.socket = meeting;
  o.hca = ib.hca;
  o.rail = rail;
  o.gid_index = ib.gid_index;
  o.gid_wishes = {ib.gid_family, ib.gid_range, ib.roce_version};
  o.pkey = ib.pkey;
  o.traffic_class = chosen(ib.traffic_class, 255);
  o.service_level = chosen(ib.service_level, 15);
  o.timeout = static_cast<uint8_t>(ib.timeout);
  o.retry_count = static_cast<uint8_t>(ib.retry_count);
  // NCCL takes more of them; who asked for those wants many.
  o.queue_pairs = std::min<size_t>(static_cast<size_t>(ib.queue_pairs), kMostQueuePairs);
  o.relaxed_order = ib.relaxed_ordering != 0;
  o.stall_s = meeting.stall_s;
  return o;
}

Result<Rdma> find_rdma(const Config& config, const verbs::Api* api) {
  if (config.transport == Choice::socket) {
    return Rdma{};
  }
  if (config.ib.disable) {
    return none(config, "PRUNEX_IB_DISABLE (NCCL_IB_DISABLE) forbids RDMA");
  }
  VerbsOptions options = verbs_options(config.ib, {}, 0);
  options.api = api;
  const auto have = list_verbs_ports(options);
  if (!have) {
    return none(config, have.error().text);
  }
  if (have->empty()) {
    return none(config,
                "there is no RDMA device: is its driver loaded, and is /dev/infiniband in this "
                "container?");
  }
  auto selection = verbs::select_ports(*have, config.ib.hca);
  if (!selection) {
    return names_nothing(*have, config.ib.hca) || selection.error().code == Code::config
               ? Result<Rdma>(tl::unexpected(selection.error()))
               : none(config, selection.error().text);
  }
  Rdma found;
  for (std::string& note : selection->notes) {
    (note.starts_with("PRUNEX_IB_HCA") ? found.warnings : found.notes).push_back(std::move(note));
  }
  Error last;
  for (size_t rail = 0; rail < selection->ports.size(); ++rail) {
    options.rail = rail;
    const verbs::PortInfo& info = (*have)[selection->ports[rail]];
    if (auto tried = try_port(options); tried) {
      found.ports.push_back({info, rail});
    } else {
      // A setting may be for the other ports of a machine: InfiniBand and RoCE have tables of
      // their own.
      auto& list = tried.error().code == Code::config ? found.warnings : found.notes;
      list.push_back(strf("%s is not used: %s", info.name().c_str(), tried.error().text.c_str()));
      last = last.code == Code::config ? last : std::move(tried.error());
    }
  }
  if (found.ports.empty()) {
    return last.code == Code::config ? Result<Rdma>(tl::unexpected(last))
                                     : none(config, last.text, std::move(found));
  }
  std::sort(found.ports.begin(), found.ports.end(), [](const RdmaPort& a, const RdmaPort& b) {
    return order_of(a.info) < order_of(b.info);
  });
  return found;
}

Result<SocketAddress> meeting_address(std::string_view handle) {
  Reader in(std::as_bytes(std::span(handle)));
  if (get_handle_prefix(in, handle.size(), HandleKind::verbs)) {
    handle.remove_prefix(kHandlePrefixBytes);  // the listener over TCP is behind it
  }
  auto listener = decode_handle(handle);
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  return listener->address;
}

std::string summary(const Rdma& rdma) {
  if (rdma.usable()) {
    return "RDMA: " + port_names(rdma);
  }
  return rdma.why_not.empty() ? std::string() : "TCP sockets and no RDMA: " + rdma.why_not;
}

void tell(const Rdma& rdma) {
  for (const std::string& warning : rdma.warnings) {
    PRUNEX_LOG(warn, "%s", warning.c_str());
  }
  for (const std::string& note : rdma.notes) {
    if (rdma.why_not.find(note.substr(note.find(": ") + 2)) == std::string::npos) {
      PRUNEX_LOG(info, "%s", note.c_str());
    }
  }
  if (const std::string line = summary(rdma); rdma.named) {
    PRUNEX_LOG(warn, "%s", line.c_str());
  } else if (!line.empty()) {
    PRUNEX_LOG(info, "%s", line.c_str());
  }
}

}  // namespace prunex::transport
