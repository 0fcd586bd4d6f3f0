// SPDX-License-Identifier: Apache-2.0
#include "topology/discover.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "topology/files.h"

namespace prunex::topo {
namespace {

constexpr size_t kMaxXmlBytes = 64 << 20;

constinit std::mutex cache_lock;
// By hwloc library. Lives as long as the process on purpose: threads may look while it exits.
constinit std::map<std::string, Machine>* cache = nullptr;

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

CpuSet allowed_cpus() {
  CpuSet set;
  // The kernel refuses a mask smaller than its own, whose size it does not tell.
  for (size_t words = 16; words <= CpuSet::kLimit / 64; words *= 2) {
    std::vector<unsigned long> mask(words);
    if (sched_getaffinity(0, words * sizeof(unsigned long),
                          reinterpret_cast<cpu_set_t*>(mask.data())) == 0) {
      for (size_t cpu = 0; cpu < words * 64; ++cpu) {
        if ((mask[cpu / 64] >> (cpu % 64) & 1) != 0) {
          set.add(cpu);
        }
      }
      break;
    }
  }
  return set;
}

int mask_bits(const sockaddr* mask) {
  const unsigned char* bytes = nullptr;
  size_t n = 0;
  if (mask->sa_family == AF_INET) {
    bytes = reinterpret_cast<const unsigned char*>(
        &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
    n = 4;
  } else if (mask->sa_family == AF_INET6) {
    bytes = reinterpret_cast<const unsigned char*>(
        &reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr);
    n = 16;
  }
  int bits = 0;
  for (size_t i = 0; i < n; ++i) {
    bits += std::popcount(bytes[i]);
  }
  return bits;
}

std::string numeric(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes =
      address->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text.data(), text.size()) ? text.data() : "";
}

struct FreeAddresses {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

// Looks up the network of each address whose prefix the caller did not know.
void fill_prefixes(std::vector<NicFacts>& nics) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return;
  }
  const std::unique_ptr<ifaddrs, FreeAddresses> list(raw);
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr ||
        (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6)) {
      continue;
    }
    const std::string address = numeric(entry->ifa_addr);
    for (NicFacts& nic : nics) {
      if (nic.prefix == 0 && nic.address.substr(0, nic.address.find('%')) == address) {
        nic.prefix = mask_bits(entry->ifa_netmask);
      }
    }
  }
}

}  // namespace

Machine discover_afresh(const DiscoverOptions& options) {
  const bool live = options.sysfs == "/sys";
  Machine machine = discover_sysfs(options.sysfs);
  machine.source = live ? "sysfs" : "sysfs at " + options.sysfs;
  if (options.hwloc && live) {
    if (const auto hwloc = discover_hwloc(options.hwloc_library)) {
      machine = merge(std::move(machine), *hwloc);
    } else {
      machine.notes.push_back(hwloc.error().text);
    }
  }
  machine.host = host_name();
  return machine;
}

Machine discover(const DiscoverOptions& options) {
  if (options.sysfs != "/sys") {
    return discover_afresh(options);
  }
  const std::lock_guard lock(cache_lock);
  if (cache == nullptr) {
    cache = new std::map<std::string, Machine>;
  }
  const std::string key = options.hwloc ? options.hwloc_library : "";
  auto it = cache->find(key);
  if (it == cache->end()) {
    it = cache->emplace(key, discover_afresh(options)).first;
  }
  return it->second;
}

Result<Machine> load_machine(const std::string& path, const std::string& hwloc_library) {
  const auto xml = read_file(path, kMaxXmlBytes);
  if (!xml) {
    return tl::unexpected(xml.error());
  }
  return parse_hwloc_xml(hwloc_library, *xml, path);
}

Result<std::string> node_identity(const std::string& shm_dir) {
  const std::string host = host_name();
  const auto boot = read_line("/proc/sys/kernel/random/boot_id");
  const auto machine = boot ? boot : read_line("/etc/machine-id");
  if (!machine || machine->empty()) {
    // Two hosts of one name must never be taken for one.
    return fail(Code::unsupported,
                "cannot tell which node this is: neither /proc/sys/kernel/random/boot_id nor "
                "/etc/machine-id can be read; set PRUNEX_NODE_ID to a name of this node");
  }
  struct stat shm {};
  const bool has_shm = ::stat(shm_dir.c_str(), &shm) == 0;
  return host + " " + *machine + " " +
         (has_shm ? strf("shm %u:%u/%llu", major(shm.st_dev), minor(shm.st_dev),
                         static_cast<unsigned long long>(shm.st_ino))
                  : "no shm");
}

Result<RankFacts> local_facts(const FactsOptions& options) {
  std::string node_id = options.node_id;
  if (node_id.empty()) {
    auto found = node_identity(options.shm_dir);
    if (!found) {
      return tl::unexpected(found.error());
    }
    node_id = std::move(*found);
  } else if (node_id.size() > kMaxFactsString) {
    return fail(Code::config, strf("PRUNEX_NODE_ID has %zu characters, at most %zu are allowed",
                                   node_id.size(), kMaxFactsString));
  }
  if (options.nics.size() > kMaxFactsNics || options.gpus.size() > kMaxFactsGpus) {
    return fail(
        Code::invalid_argument,
        strf("%zu NICs and %zu GPUs for one rank, at most %zu and %zu are supported; name fewer "
             "interfaces with PRUNEX_SOCKET_IFNAME",
             options.nics.size(), options.gpus.size(), kMaxFactsNics, kMaxFactsGpus));
  }
  Seat seat{options.rank, allowed_cpus(), options.gpus, options.nics};
  fill_prefixes(seat.nics);
  RankFacts facts = facts_at(discover(options.discover), seat);
  facts.node_id = std::move(node_id);
  facts.transports = options.transports;
  return facts;
}

}  // namespace prunex::topo
