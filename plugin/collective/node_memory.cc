// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/node_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "plugin/transport/shm/futex.h"

namespace prunex::collective {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::string fifo_name(const std::string& segment, size_t local) {
  return strf("%s.wake%zu", segment.c_str(), local);
}

}  // namespace

struct NodeMemory::Head {
  alignas(64) transport::shm::SharedWord bell{0};
  alignas(64) std::atomic<uint32_t> sleepers{0};
  alignas(64) std::atomic<int32_t> culprit{-1};
};

namespace {

struct Offsets {
  size_t ranks, leaders, input, sum, output, end;
};

Offsets offsets_of(const NodeShape& s, size_t head_bytes) {
  Offsets o{};
  o.ranks = round_up(head_bytes, 64);
  o.leaders = o.ranks + s.local_size * sizeof(RankBlock);
  o.input = round_up(o.leaders + s.rails * sizeof(LeaderBlock), kPage);
  o.sum = o.input + s.local_size * s.slots * s.slot_bytes;
  o.output = o.sum + s.slots * s.slot_bytes;
  o.end = o.output + s.slots * s.slot_bytes;
  return o;
}

}  // namespace

size_t NodeShape::bytes() const { return offsets_of(*this, 3 * 64).end; }

Result<NodeMemory> NodeMemory::create(const NodeShape& shape) {
  static_assert(sizeof(Head) == 3 * 64);
  auto segment = transport::shm::Segment::create(shape.bytes());
  if (!segment) {
    return tl::unexpected(segment.error());
  }
  NodeMemory memory;
  memory.shape_ = shape;
  memory.segment_ = std::move(*segment);
  memory.fifos_.resize(shape.local_size);
  const Offsets o = offsets_of(shape, sizeof(Head));
  new (memory.at(0)) Head;
  for (size_t i = 0; i < shape.local_size; ++i) {
    new (memory.at(o.ranks + i * sizeof(RankBlock))) RankBlock;
  }
  for (size_t i = 0; i < shape.rails; ++i) {
    new (memory.at(o.leaders + i * sizeof(LeaderBlock))) LeaderBlock;
  }
  return memory;
}

Result<NodeMemory> NodeMemory::attach(const std::string& name, const NodeShape& shape) {
  auto segment = transport::shm::Segment::attach(name, shape.bytes());
  if (!segment) {
    return tl::unexpected(segment.error());
  }
  NodeMemory memory;
  memory.shape_ = shape;
  memory.segment_ = std::move(*segment);
  memory.fifos_.resize(shape.local_size);
  return memory;
}

Result<> NodeMemory::make_fifo(size_t local) {
  const std::string name = fifo_name(segment_.name(), local);
  if (::mkfifo(name.c_str(), 0600) != 0) {
    return fail(Code::system, strf("mkfifo %s: %s", name.c_str(), std::strerror(errno)), errno);
  }
  return {};
}

Result<> NodeMemory::open_fifos(const std::vector<size_t>& leaders) {
  for (const size_t local : leaders) {
    const std::string name = fifo_name(segment_.name(), local);
    // Read-write: opening never blocks, and the pipe outlives whoever dies.
    const int fd = ::open(name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
      return fail(Code::system, strf("open %s: %s", name.c_str(), std::strerror(errno)), errno);
    }
    fifos_[local].reset(fd);
  }
  return {};
}

void NodeMemory::unlink_names(size_t local) {
  ::unlink(fifo_name(segment_.name(), local).c_str());
  segment_.unlink();
}

NodeMemory::Head& NodeMemory::head() const { return *std::launder(reinterpret_cast<Head*>(at(0))); }

RankBlock& NodeMemory::rank(size_t local) const {
  const Offsets o = offsets_of(shape_, sizeof(Head));
  return *std::launder(reinterpret_cast<RankBlock*>(at(o.ranks + local * sizeof(RankBlock))));
}

LeaderBlock& NodeMemory::leader(size_t rail) const {
  const Offsets o = offsets_of(shape_, sizeof(Head));
  return *std::launder(reinterpret_cast<LeaderBlock*>(at(o.leaders + rail * sizeof(LeaderBlock))));
}

std::byte* NodeMemory::input(size_t local, size_t slot) const {
  return at(offsets_of(shape_, sizeof(Head)).input +
            (local * shape_.slots + slot) * shape_.slot_bytes);
}

std::byte* NodeMemory::sum(size_t slot) const {
  return at(offsets_of(shape_, sizeof(Head)).sum + slot * shape_.slot_bytes);
}

std::byte* NodeMemory::output(size_t slot) const {
  return at(offsets_of(shape_, sizeof(Head)).output + slot * shape_.slot_bytes);
}

std::span<std::byte> NodeMemory::exchanged() const { return {sum(0), output(shape_.slots)}; }

// The bell moves before the sleepers are looked at, and a sleeper counts itself before the kernel
// compares the bell: one of the two always sees the other (all sequentially consistent).
void NodeMemory::ring() {
  Head& h = head();
  h.bell.fetch_add(1);
  if (h.sleepers.load() > 0) {
    transport::shm::futex_wake_all(h.bell);
  }
  for (size_t i = 0; i < fifos_.size(); ++i) {
    if (fifos_[i] && rank(i).polling.load() != 0 && rank(i).polling.exchange(0) != 0) {
      const char byte = 1;
      // A full pipe already wakes its reader.
      [[maybe_unused]] const ssize_t n = ::write(fifos_[i].get(), &byte, 1);
    }
  }
}

uint32_t NodeMemory::bell() const { return head().bell.load(); }

void NodeMemory::sleep(uint32_t seen, int64_t ns) {
  Head& h = head();
  h.sleepers.fetch_add(1);
  (void)transport::shm::futex_wait(h.bell, seen, Deadline::after(static_cast<double>(ns) * 1e-9));
  h.sleepers.fetch_sub(1);
}

void NodeMemory::poll(size_t local, uint32_t seen, std::vector<pollfd>& fds, int64_t ns) {
  RankBlock& self = rank(local);
  const bool others = fifos_[local] && shape_.local_size > 1;
  if (others) {
    self.polling.store(1);
    if (bell() != seen) {
      self.polling.store(0);
      return;
    }
    fds.push_back({fifos_[local].get(), POLLIN, 0});
  }
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  const int n = ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  if (others) {
    self.polling.store(0);
    if (n > 0 && (fds.back().revents & POLLIN) != 0) {
      char drained[64];
      while (::read(fifos_[local].get(), drained, sizeof drained) == ssize_t{sizeof drained}) {
      }
    }
  }
}

NodeMemory::Culprit NodeMemory::culprit() const {
  const int32_t word = head().culprit.load();
  return word < 0 ? Culprit{} : Culprit{word >> 1, (word & 1) != 0};
}

void NodeMemory::set_culprit(Culprit culprit) {
  int32_t none = -1;
  head().culprit.compare_exchange_strong(none, culprit.rank << 1 | (culprit.late ? 1 : 0));
}

}  // namespace prunex::collective
