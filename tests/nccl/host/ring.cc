// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/ring.h"

#include <algorithm>
#include <cstring>

#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::host {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// How each protocol lays elements out in a message. LL: {data, flag} of four bytes each; LL128: 120
// bytes of data and 8 of flag in a line.
struct Format {
  abi::Proto proto;
  uint64_t flag;

  [[nodiscard]] size_t capacity(size_t slot) const {
    switch (proto) {
      case abi::kLl:
        return slot / 8;
      case abi::kLl128:
        return slot / 128 * 30;
      default:
        return slot / 4;
    }
  }

  size_t write(std::byte* slot, const int32_t* from, size_t n) const {
    if (n == 0) {
      return 0;
    }
    if (proto == abi::kSimple) {
      std::memcpy(slot, from, n * 4);
      return n * 4;
    }
    if (proto == abi::kLl) {
      const size_t lines = (n + 1) / 2 * 2;  // 16 bytes at a time
      for (size_t i = 0; i < lines; ++i) {
        const int32_t value = i < n ? from[i] : 0;
        const auto mark = static_cast<uint32_t>(flag);
        std::memcpy(slot + i * 8, &value, 4);
        std::memcpy(slot + i * 8 + 4, &mark, 4);
      }
      return lines * 8;
    }
    const size_t lines = (n + 29) / 30;
    for (size_t line = 0; line < lines; ++line) {
      int32_t data[30] = {};
      std::copy_n(from + line * 30, std::min<size_t>(30, n - line * 30), data);
      std::memcpy(slot + line * 128, data, 120);
      std::memcpy(slot + line * 128 + 120, &flag, 8);
    }
    return lines * 128;
  }

  void read(const std::byte* slot, size_t bytes, int32_t* to, size_t n) const {
    if (proto == abi::kSimple) {
      PRUNEX_MUST(bytes == n * 4, "%zu bytes arrived, %zu elements were due", bytes, n);
      std::copy(slot, slot + bytes, reinterpret_cast<std::byte*>(to));
      return;
    }
    const size_t per_line = proto == abi::kLl ? 2 : 30, line_bytes = proto == abi::kLl ? 16 : 128;
    const size_t lines = (n + per_line - 1) / per_line;
    PRUNEX_MUST(bytes == lines * line_bytes, "%zu bytes arrived for %zu elements", bytes, n);
    for (size_t i = 0; i < n; ++i) {
      const std::byte* const line = slot + i / per_line * line_bytes;
      if (proto == abi::kLl) {
        uint32_t mark = 0;
        std::memcpy(&mark, line + i % 2 * 8 + 4, 4);
        PRUNEX_MUST(mark == static_cast<uint32_t>(flag), "an old flag in element %zu", i);
        std::memcpy(&to[i], line + i % 2 * 8, 4);
      } else {
        uint64_t mark = 0;
        std::memcpy(&mark, line + 120, 8);
        PRUNEX_MUST(mark == flag, "an old flag in line %zu", i / 30);
        std::memcpy(&to[i], line + i % 30 * 4, 4);
      }
    }
  }
};

}  // namespace

int32_t element(uint64_t seed, int rank, size_t index, unsigned zeros) {
  const uint64_t block = mix(seed * 1315423911 + index / 64);
  if (block % 5 < zeros) {
    return 0;
  }
  return static_cast<int32_t>(mix(seed + static_cast<uint64_t>(rank) * 977 + index) % 2001) - 1000;
}

std::vector<int32_t> elements(uint64_t seed, int rank, size_t count, unsigned zeros) {
  std::vector<int32_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = element(seed, rank, i, zeros);
  }
  return out;
}

Ring::Ring(Rank& rank, int version, uint64_t comm_id, int channel) : rank_(rank) {
  net_ = open_net(load_plugin(plugin_path()), version);
  const Status status = net_->init(comm_id, abi::kTrafficClassUnset, log_from_plugin);
  PRUNEX_MUST(status == kSuccess, "init answers %d", status);
  int devices = 0;
  PRUNEX_MUST(net_->devices(&devices) == kSuccess && devices > 0, "%d devices", devices);
  proxy_ = std::make_unique<Proxy>(*net_, rank_);
  const int n = rank.size();
  proxy_->connect((rank.rank() + 1) % n, (rank.rank() + n - 1) % n, channel, send_, recv_);
}

Ring::~Ring() = default;

void Ring::close() {
  proxy_->join_progress();
  proxy_->release(send_);
  proxy_->release(recv_);
  proxy_.reset();
  PRUNEX_MUST(net_->finalize() == kSuccess);
}

std::vector<int32_t> Ring::all_reduce(const std::vector<int32_t>& mine, abi::Proto proto,
                                      size_t slice) {
  const auto n = static_cast<size_t>(rank_.size()), self = static_cast<size_t>(rank_.rank());
  const Format plain{proto, 0};
  const size_t chunk = plain.capacity(kBufferBytes[proto] / kSteps * slice);
  const size_t loops = std::max<size_t>(1, (mine.size() + n * chunk - 1) / (n * chunk));
  const uint64_t messages = loops * 2 * (n - 1);
  Transfer send(send_, abi::kAllReduce, proto, messages, slice);
  Transfer recv(recv_, abi::kAllReduce, proto, messages, slice);
  proxy_->start(send);
  proxy_->start(recv);

  std::vector<int32_t> out(mine.size()), scratch(chunk);
  uint64_t sent = 0, received = 0;
  for (size_t loop = 0; loop < loops; ++loop) {
    const auto begin = [&](size_t c) { return std::min(mine.size(), (loop * n + c) * chunk); };
    const auto length = [&](size_t c) { return std::min(mine.size() - begin(c), chunk); };
    const auto put = [&](size_t c, const int32_t* from) {
      send.sent(Format{proto, ++sent}.write(send.room(), from, length(c)));
    };
    const auto get = [&](size_t c, bool add) {
      size_t bytes = 0;
      const std::byte* const slot = recv.next(&bytes);
      Format{proto, ++received}.read(slot, bytes, scratch.data(), length(c));
      recv.consumed();
      for (size_t i = 0; add && i < length(c); ++i) {
        scratch[i] += mine[begin(c) + i];
      }
    };
    const auto keep = [&](size_t c) {
      std::copy_n(scratch.data(), length(c), out.data() + begin(c));
    };
    put((self + n - 1) % n, mine.data() + begin((self + n - 1) % n));
    for (size_t j = 2; j < n; ++j) {
      get((self + n - j) % n, true);
      put((self + n - j) % n, scratch.data());
    }
    get(self, true);
    keep(self);
    put(self, scratch.data());
    for (size_t j = 1; j + 1 < n; ++j) {
      get((self + n - j) % n, false);
      keep((self + n - j) % n);
      put((self + n - j) % n, scratch.data());
    }
    get((self + 1) % n, false);
    keep((self + 1) % n);
  }
  send.wait_done();
  recv.wait_done();
  return out;
}

void Ring::check_all_reduce(uint64_t seed, size_t count, abi::Proto proto, size_t slice) {
  const std::vector<int32_t> sum = all_reduce(elements(seed, rank_.rank(), count), proto, slice);
  for (size_t i = 0; i < count; ++i) {
    int32_t wanted = 0;
    for (int rank = 0; rank < rank_.size(); ++rank) {
      wanted += element(seed, rank, i);
    }
    PRUNEX_MUST(sum[i] == wanted, "element %zu of %zu is %d, not %d", i, count, sum[i], wanted);
  }
}

std::vector<std::vector<std::byte>> Ring::shift(
    const std::vector<std::vector<std::byte>>& messages) {
  Transfer send(send_, static_cast<abi::Func>(6), abi::kSimple, messages.size());
  Transfer recv(recv_, static_cast<abi::Func>(6), abi::kSimple, messages.size());
  proxy_->start(send);
  proxy_->start(recv);
  std::vector<std::vector<std::byte>> got;
  size_t out = 0;
  while (got.size() < messages.size()) {
    // As many as there are slots before the first is taken: no rank waits for another here.
    for (; out < messages.size() && out < got.size() + kSteps; ++out) {
      PRUNEX_MUST(messages[out].size() <= send.slot_bytes());
      std::byte* const slot = send.room();
      std::copy(messages[out].begin(), messages[out].end(), slot);
      send.sent(messages[out].size());
    }
    size_t bytes = 0;
    const std::byte* const slot = recv.next(&bytes);
    got.emplace_back(slot, slot + bytes);
    recv.consumed();
  }
  send.wait_done();
  recv.wait_done();
  return got;
}

}  // namespace prunex::nccl::host
