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
    case Verb::split:
      return kInvalidUsage;
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

void make_children(Clique::Round& round) {
  std::map<int, std::vector<std::pair<int, int>>> groups;  // color: (key, rank)
  for (const auto& [rank, w] : round.works) {
    if (w.color >= 0) {
      groups[w.color].emplace_back(w.key, rank);
    }
  }
  for (auto& [color, ranks] : groups) {
    std::sort(ranks.begin(), ranks.end());
    auto clique = std::make_shared<Clique>(static_cast<int>(ranks.size()));
    clique->joined = clique->size;
    for (size_t i = 0; i < ranks.size(); ++i) {
      auto child = std::make_shared<Member>();
      child->clique = clique;
      child->rank = static_cast<int>(i);
      round.children[ranks[i].second] = std::move(child);
    }
  }
}

int meet_at(const MemberPtr& member, std::map<uint64_t, Clique::Round>& rounds, uint64_t turn,
            const Work& work, MemberPtr* child) {
  Clique& c = *member->clique;
  std::unique_lock lock(c.mutex);
  Clique::Round& round = rounds[turn];
  round.works[member->rank] = work;
  if (static_cast<int>(round.works.size()) == c.size) {
    if (child != nullptr) {
      make_children(round);
    } else {
      round.error = perform(round.works);
    }
    round.done = true;
    c.changed.notify_all();
  }
  c.changed.wait(lock, [&] { return round.done || member->aborted; });
  if (!round.done) {
    round.works.erase(member->rank);  // its buffers may go now; the round never ends
    return 0;
  }
  if (child != nullptr) {
    const auto found = round.children.find(member->rank);
    *child = found == round.children.end() ? nullptr : found->second;
  }
  const int error = round.error;
  if (++round.left == c.size) {
    rounds.erase(turn);
  }
  return error;
}

}  // namespace

int meet(const MemberPtr& member, const Work& work) {
  return meet_at(member, member->clique->rounds, member->met++, work, nullptr);
}

int split(const MemberPtr& member, const Work& work, MemberPtr* out) {
  return meet_at(member, member->clique->splits, member->splits++, work, out);
}

}  // namespace prunex::test::standin
