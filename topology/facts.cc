// SPDX-License-Identifier: Apache-2.0
// Record: magic, version, total length, then the fields in declaration order. Integers are little
// endian of fixed width; a string is a u16 length and its bytes; a list is a u16 count and its
// items.
#include "topology/facts.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace prunex::topo {
namespace {

constexpr uint32_t kMagic = 0x46525850;  // "PXRF"
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 12;
constexpr int kMaxNuma = 1 << 16;
constexpr uint32_t kAllTransports = kTransportSocket | kTransportShm | kTransportVerbs;

class Writer {
 public:
  template <class T>
  void integer(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<char>(bits & 0xff));
      bits = static_cast<decltype(bits)>(uint64_t{bits} >> 8);
    }
  }
  void text(std::string_view s) {
    s = s.substr(0, kMaxFactsString);
    integer(static_cast<uint16_t>(s.size()));
    out_.append(s);
  }
  // The total length is known only at the end.
  std::string finish() {
    const auto total = static_cast<uint32_t>(out_.size());
    for (size_t i = 0; i < 4; ++i) {
      out_[8 + i] = static_cast<char>((total >> (8 * i)) & 0xff);
    }
    return std::move(out_);
  }

 private:
  std::string out_;
};

// Reads past the end or outside a range turn the reader bad; it then yields zeros, and the caller
// asks once at the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T integer() {
    std::make_unsigned_t<T> bits = 0;
    if (!take(sizeof(T))) {
      return 0;
    }
    for (size_t i = sizeof(T); i-- > 0;) {
      bits = static_cast<decltype(bits)>((uint64_t{bits} << 8) |
                                         std::to_integer<uint64_t>(bytes_[at_ - sizeof(T) + i]));
    }
    return static_cast<T>(bits);
  }
  template <class T>
  T ranged(const char* field, T low, T high) {
    const T value = integer<T>();
    if (value < low || value > high) {
      flaw(strf("%s is %lld, outside %lld to %lld", field, static_cast<long long>(value),
                static_cast<long long>(low), static_cast<long long>(high)));
      return low;
    }
    return value;
  }
  std::string text(const char* field) {
    const size_t length = ranged<uint16_t>(field, 0, uint16_t{kMaxFactsString});
    if (!take(length)) {
      return {};
    }
    std::string out(length, '\0');
    if (length > 0) {
      std::memcpy(out.data(), bytes_.data() + (at_ - length), length);
    }
    return out;
  }
  size_t count(const char* field, size_t limit) {
    return ranged<uint16_t>(field, 0, static_cast<uint16_t>(limit));
  }

  [[nodiscard]] bool good() const { return flaw_.empty(); }
  [[nodiscard]] const std::string& what() const { return flaw_; }
  [[nodiscard]] size_t left() const { return bytes_.size() - at_; }

 private:
  bool take(size_t n) {
    if (good() && left() < n) {
      flaw(strf("it ends after %zu bytes, %zu more are needed", bytes_.size(), n - left()));
    }
    if (!good()) {
      return false;
    }
    at_ += n;
    return true;
  }
  void flaw(std::string text) {
    if (flaw_.empty()) {
      flaw_ = std::move(text);
    }
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::string flaw_;
};

void write(Writer& w, const NicFacts& nic) {
  w.text(nic.name);
  w.text(nic.address);
  w.integer(static_cast<int32_t>(nic.prefix));
  w.integer(static_cast<int32_t>(nic.speed_mbps));
  w.integer(static_cast<int32_t>(nic.numa));
  w.integer(static_cast<uint8_t>(nic.distance));
  w.integer(static_cast<uint8_t>(nic.rdma ? 1 : 0));
}

NicFacts read_nic(Reader& r) {
  NicFacts nic;
  nic.name = r.text("NIC name length");
  nic.address = r.text("NIC address length");
  nic.prefix = r.ranged<int32_t>("NIC network prefix", 0, 128);
  nic.speed_mbps = r.ranged<int32_t>("NIC speed", 0, INT32_MAX);
  nic.numa = r.ranged<int32_t>("NIC NUMA node", -1, kMaxNuma);
  nic.distance = static_cast<Distance>(
      r.ranged<uint8_t>("NIC distance", 0, static_cast<uint8_t>(Distance::unknown)));
  nic.rdma = r.ranged<uint8_t>("NIC RDMA flag", 0, 1) != 0;
  return nic;
}

void write(Writer& w, const GpuFacts& gpu) {
  w.text(gpu.bus_id);
  w.text(gpu.uuid);
  w.integer(static_cast<int32_t>(gpu.numa));
}

GpuFacts read_gpu(Reader& r) {
  GpuFacts gpu;
  gpu.bus_id = r.text("GPU bus id length");
  gpu.uuid = r.text("GPU uuid length");
  gpu.numa = r.ranged<int32_t>("GPU NUMA node", -1, kMaxNuma);
  return gpu;
}

tl::unexpected<Error> bad(const std::string& why) {
  return fail(Code::mismatch, "a rank's topology record cannot be read: " + why);
}

}  // namespace

const char* name_of(Distance distance) {
  switch (distance) {
    case Distance::same_switch:
      return "same switch";
    case Distance::same_root:
      return "same PCI root";
    case Distance::same_numa:
      return "same NUMA node";
    case Distance::same_machine:
      return "other NUMA node";
    case Distance::unknown:
      break;
  }
  return "locality unknown";
}

std::string speed_text(int mbps) {
  if (mbps <= 0) {
    return "speed unknown";
  }
  return mbps < 1000 ? strf("%d Mb/s", mbps) : strf("%.4g Gb/s", mbps / 1000.0);
}

std::string encode(const RankFacts& facts) {
  Writer w;
  w.integer(kMagic);
  w.integer(kVersion);
  w.integer(uint16_t{0});
  w.integer(uint32_t{0});
  w.integer(static_cast<int32_t>(facts.rank));
  w.text(facts.node_id);
  w.text(facts.host);
  w.integer(static_cast<int32_t>(facts.numa));
  const size_t gpus = std::min(facts.gpus.size(), kMaxFactsGpus);
  w.integer(static_cast<uint16_t>(gpus));
  for (size_t i = 0; i < gpus; ++i) {
    write(w, facts.gpus[i]);
  }
  const size_t nics = std::min(facts.nics.size(), kMaxFactsNics);
  w.integer(static_cast<uint16_t>(nics));
  for (size_t i = 0; i < nics; ++i) {
    write(w, facts.nics[i]);
  }
  w.integer(facts.transports);
  w.text(facts.note);
  return w.finish();
}

Result<RankFacts> decode_facts(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes || bytes.size() > kMaxFactsBytes) {
    return bad(strf("%zu bytes, expected %zu to %zu", bytes.size(), kHeaderBytes, kMaxFactsBytes));
  }
  Reader r(bytes);
  if (const uint32_t magic = r.integer<uint32_t>(); magic != kMagic) {
    return bad(strf("it starts with 0x%08x, expected 0x%08x", magic, kMagic));
  }
  if (const uint16_t version = r.integer<uint16_t>(); version != kVersion) {
    return bad(strf("it has format %u, this library reads %u: run the same PruneX on all ranks",
                    unsigned{version}, unsigned{kVersion}));
  }
  (void)r.ranged<uint16_t>("the reserved field", 0, 0);
  if (const uint32_t total = r.integer<uint32_t>(); total != bytes.size()) {
    return bad(strf("it claims %u bytes but has %zu", total, bytes.size()));
  }
  RankFacts facts;
  facts.rank = r.ranged<int32_t>("rank", -1, INT32_MAX);
  facts.node_id = r.text("node id length");
  facts.host = r.text("host name length");
  facts.numa = r.ranged<int32_t>("NUMA node", -1, kMaxNuma);
  for (size_t n = r.count("number of GPUs", kMaxFactsGpus); n > 0 && r.good(); --n) {
    facts.gpus.push_back(read_gpu(r));
  }
  for (size_t n = r.count("number of NICs", kMaxFactsNics); n > 0 && r.good(); --n) {
    facts.nics.push_back(read_nic(r));
  }
  facts.transports = r.ranged<uint32_t>("transport set", 0, kAllTransports);
  facts.note = r.text("note length");
  if (!r.good()) {
    return bad(r.what());
  }
  if (r.left() != 0) {
    return bad(strf("%zu bytes follow its end", r.left()));
  }
  return facts;
}

}  // namespace prunex::topo
