// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/cuda/reduce.h"
#include "tests/device/standin/clique.h"

namespace prunex::test::standin {
namespace {

constexpr int kInvalidUsage = 5;

DType type_of(int type) {
  for (int t = 0; t < kNumDTypes; ++t) {
    if (device::nccl::type_of(static_cast<DType>(t)) == type) {
      return static_cast<DType>(t);
    }
  }
  return DType::u8;
}

Op op_of(int op) {
  constexpr Op kOps[] = {Op::sum, Op::prod, Op::max, Op::min};
  return kOps[op];
}

// All contributions, added in the order of ranks.
std::vector<std::byte> added(const std::map<int, Work>& works, size_t count) {
  const Work& any = works.begin()->second;
  const DType type = type_of(any.type);
  std::vector<std::byte> out(count * size_of(type));
  cuda::Reduction r{};
  for (const auto& [rank, work] : works) {
    r.source[r.sources++] = static_cast<const std::byte*>(work.send);
  }
  r.out = out.data();
  r.divisor = 1;
  r.own = -1;
  r.in = r.out_type = type;
  r.op = op_of(any.op);
  cuda::with_accumulator(type, [&](auto a) { cuda::reduce_flat<decltype(a)>(r, count, 0, 1); });
  return out;
}

// NCCL would hang or write rubbish; the stand-in says so.
int check(const std::map<int, Work>& works) {
  const Work& first = works.begin()->second;
  for (const auto& [rank, w] : works) {
    if (w.verb != first.verb || w.count != first.count || w.type != first.type ||
        w.op != first.op || w.root != first.root) {
      return kInvalidUsage;
    }
  }
  return 0;
}

int perform(const std::map<int, Work>& works) {
  if (const int bad = check(works); bad != 0) {
    return bad;
  }
  const Work& first = works.begin()->second;
  const size_t size = size_of(type_of(first.type));
  const size_t ranks = works.size();
  const size_t part = first.count * size;
  std::vector<std::byte> all;
  switch (first.verb) {
    case Verb::all_reduce:
    case Verb::reduce:
      all = added(works, first.count);
      break;
    case Verb::reduce_scatter:
      all = added(works, first.count * ranks);
      break;
    case Verb::all_gather:
      for (const auto& [rank, w] : works) {
        const auto* from = static_cast<const std::byte*>(w.send);
        all.insert(all.end(), from, from + part);
      }
      break;
    case Verb::broadcast:
      all.resize(part);
      std::memcpy(all.data(), works.at(first.root).send, part);
      break;
  }
  for (const auto& [rank, w] : works) {
    if (w.verb == Verb::reduce && rank != w.root) {
      continue;
    }
    const bool scattered = w.verb == Verb::reduce_scatter;
    std::memcpy(w.recv, all.data() + (scattered ? static_cast<size_t>(rank) * part : 0),
                scattered ? part : all.size());
  }
  return 0;
}

}  // namespace

int meet(const MemberPtr& member, const Work& work) {
  Clique& c = *member->clique;
  const uint64_t turn = member->met++;
  std::unique_lock lock(c.mutex);
  if (member->aborted) {
    return 0;
  }
  Clique::Round& round = c.rounds[turn];
  round.works[member->rank] = work;
  if (static_cast<int>(round.works.size()) == c.size) {
    round.error = perform(round.works);
    round.done = true;
    c.changed.notify_all();
  }
  c.changed.wait(lock, [&] { return round.done || member->aborted; });
  if (!round.done) {
    round.works.erase(member->rank);  // its buffers may go now; the round never ends
    return 0;
  }
  const int error = round.error;
  if (++round.left == c.size) {
    c.rounds.erase(turn);
  }
  return error;
}

std::mutex& split_mutex() {
  static std::mutex mutex;
  return mutex;
}

MemberPtr split(const MemberPtr& member, int color, int key) {
  const std::lock_guard lock(split_mutex());
  auto& parts = member->clique->splits[member->splits++].parts;
  MemberPtr child = color >= 0 ? std::make_shared<Member>() : nullptr;
  member->splitting = true;
  parts[member->rank] = {color, key, member, child};
  if (static_cast<int>(parts.size()) < member->clique->size) {
    return child;
  }
  std::map<int, std::map<std::pair<int, int>, MemberPtr>> groups;  // color: (key, rank): child
  for (const auto& [rank, part] : parts) {
    if (part.color >= 0) {
      groups[part.color][{part.key, rank}] = part.child;
    }
  }
  for (auto& [of, members] : groups) {
    auto clique = std::make_shared<Clique>(static_cast<int>(members.size()));
    clique->joined = clique->size;
    int at = 0;
    for (auto& [place, one] : members) {
      one->rank = at++;
      one->clique = clique;
    }
  }
  for (const auto& [rank, part] : parts) {
    if (const MemberPtr parent = part.parent.lock()) {
      parent->splitting = false;
    }
  }
  return child;
}

}  // namespace prunex::test::standin
