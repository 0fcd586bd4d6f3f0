// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/rails.h"

#include <algorithm>
#include <numeric>

namespace prunex::transport::verbs {
namespace {

constexpr uint64_t kGrain = 128;  // bytes: a cache line pair, and whole elements of any kind
constexpr int kIpv4Bits = 96;     // of an IPv4 address in a GID: what is before it

bool is_ipv4(const GidBytes& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         gid[10] == 0xFF && gid[11] == 0xFF;
}

// Where nobody knows the network's size, the usual one.
int network_bits(const RailEnd& a, const RailEnd& b) {
  const int said = std::max(a.network_bits, b.network_bits);
  return a.link == Link::ethernet && said > 0 ? said : is_ipv4(a.gid) ? kIpv4Bits + 24 : 64;
}

bool of_one_kind(const RailEnd& a, const RailEnd& b) {
  const auto unknown = static_cast<uint8_t>(GidType::unknown);
  return a.link == b.link && (a.link != Link::ethernet || a.gid_type == b.gid_type ||
                              a.gid_type == unknown || b.gid_type == unknown);
}

std::string list_of(std::span<const RailEnd> rails) {
  std::string out;
  for (const RailEnd& r : rails) {
    out += strf("%s%s (%s)", out.empty() ? "" : ", ", r.device.c_str(), to_text(r.gid).c_str());
  }
  return out;
}

}  // namespace

bool in_one_network(const RailEnd& a, const RailEnd& b) {
  const int bits = network_bits(a, b);
  const int whole = bits / 8, rest = bits % 8;
  if (!std::equal(a.gid.begin(), a.gid.begin() + whole, b.gid.begin())) {
    return false;
  }
  const auto i = static_cast<size_t>(whole);
  return rest == 0 || ((a.gid[i] ^ b.gid[i]) >> (8 - rest)) == 0;
}

Result<RailPairs> pair_rails(std::span<const RailEnd> caller, std::span<const RailEnd> own) {
  RailPairs out;
  std::vector<bool> used(own.size());
  for (size_t i = 0; i < caller.size(); ++i) {
    for (size_t k = 0; k < own.size(); ++k) {
      if (!used[k] && of_one_kind(caller[i], own[k]) && in_one_network(caller[i], own[k])) {
        used[k] = true;
        out.emplace_back(i, k);
        break;
      }
    }
  }
  if (out.empty() && caller.size() == 1 && own.size() == 1) {
    out.emplace_back(0, 0);
  }
  if (out.empty()) {
    return fail(Code::mismatch,
                strf("no RDMA port of one end is in the network of a port of the other: there are "
                     "%s there and %s here; choose ports of one network with PRUNEX_IB_HCA, or one "
                     "port on each node if a router joins them",
                     list_of(caller).c_str(), list_of(own).c_str()));
  }
  return out;
}

uint64_t stripe_begin(uint64_t bytes, std::span<const uint32_t> weights, size_t lane) {
  if (lane >= weights.size()) {
    return bytes;
  }
  const uint64_t all = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  const auto middle = weights.begin() + static_cast<std::ptrdiff_t>(lane);
  const uint64_t before = std::accumulate(weights.begin(), middle, uint64_t{0});
  // In grains: no product comes near 2^64.
  const uint64_t grains = (bytes + kGrain - 1) / kGrain;
  return std::min(bytes, (grains * before + all - 1) / all * kGrain);
}

}  // namespace prunex::transport::verbs
