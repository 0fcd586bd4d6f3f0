// SPDX-License-Identifier: Apache-2.0
// Which devices, ports, GIDs and keys to use: pure functions of what the devices say, so that tests
// bring their own machines. Knows nothing of libibverbs.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/result.h"

namespace prunex::transport::verbs {

enum class Link : uint8_t { other = 0, infiniband, ethernet };
enum class GidType : uint8_t { unknown = 0, infiniband, roce_v1, roce_v2 };
using GidBytes = std::array<uint8_t, 16>;

struct Gid {
  int index = 0;
  GidBytes bytes{};
  GidType type = GidType::unknown;
  int network_bits = 0;  // of its address; 0: not known
};

struct PortInfo {
  std::string device;   // mlx5_0
  int port = 1;         // counted from 1
  std::string trouble;  // why it cannot be used; empty: it can
  std::string pci;      // its PCI function; empty: none, as for Soft-RoCE
  Link link = Link::other;
  uint16_t lid = 0;
  int mtu = 1024;            // bytes, active
  uint64_t max_message = 0;  // bytes of one work request
  uint32_t speed = 0;        // Gb/s; 0: it does not say
  bool grh_required = false;
  std::vector<Gid> gids;        // the filled entries of the table
  std::vector<uint16_t> pkeys;  // the whole table
  int max_queue_pairs = 0, max_work_requests = 0, max_completions = 0;

  [[nodiscard]] std::string name() const { return device + ":" + std::to_string(port); }
  // What tells two ports apart: not the GUID, which functions of one card may share.
  [[nodiscard]] std::string identity() const {
    return (pci.empty() ? device : pci) + ":" + std::to_string(port);
  }
};

struct Selection {
  std::vector<size_t> ports;       // indices of the usable ones, in the devices' order
  std::vector<std::string> notes;  // an item that matches nothing; a port left out, and why
};
// `filter`: as parse_hca_filter() reads it. Nothing left is an error that says what there is, and
// why each is not used.
[[nodiscard]] Result<Selection> select_ports(std::span<const PortInfo> have,
                                             std::string_view filter);

[[nodiscard]] std::string to_text(const GidBytes& gid);  // as an IPv6 address, or ::ffff:10.0.0.1
[[nodiscard]] const char* to_text(GidType type);

// Of RoCE, where no index is given.
struct GidWishes {
  Family family = Family::any;  // first of all
  std::string range;            // a network, 10.0.0.0/8: no others; empty: all
  int version = 2;              // of RoCE
};
// index >= 0: that one, if it is filled. Else what was wished for, RoCE v2 before v1, then routable
// before link-local, IPv4 before IPv6, lowest index. InfiniBand: the first.
[[nodiscard]] Result<Gid> choose_gid(const PortInfo& port, int index, const GidWishes& wishes = {});

// Index into the table. wanted: the index of a filled entry, else a key in the table (0x8001); -1:
// the first valid one. Ethernet ports have a table as well, mostly of one entry, 0xFFFF; where it
// is empty, nothing asked for is index 0.
[[nodiscard]] Result<uint16_t> choose_pkey(const PortInfo& port, int wanted);

// Whether packets need a global route header: Ethernet always, InfiniBand when the port says so or
// the other end is in another subnet.
[[nodiscard]] bool needs_global_route(const PortInfo& port, const GidBytes& own,
                                      const GidBytes& peer);

}  // namespace prunex::transport::verbs
