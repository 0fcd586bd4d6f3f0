// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/verdict.h"

#include <algorithm>

#include "plugin/base/digest.h"
#include "plugin/base/dtype.h"
#include "plugin/collective/masked_layout.h"

namespace prunex::nccl::coll {
namespace {

using collective::Contract;

// What must be equal or there is no common result.
bool same_call(const CollMessage& a, const CollMessage& b) {
  return a.header.sequence == b.header.sequence && a.header.count == b.header.count &&
         a.header.op == b.header.op && a.header.dtype == b.header.dtype &&
         a.header.shape_digest == b.header.shape_digest && a.head.function == b.head.function &&
         a.head.piece == b.head.piece && a.head.bytes_per_rank == b.head.bytes_per_rank &&
         a.head.window_offset == b.head.window_offset && a.head.window_bytes == b.head.window_bytes;
}

std::string describe(const CollMessage& m) {
  constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter"};
  const auto number = [](uint64_t v) { return static_cast<unsigned long long>(v); };
  std::string out = strf("%s number %llu", kNames[static_cast<size_t>(m.head.function)],
                         number(m.header.sequence));
  if (m.head.function != Function::all_gather) {
    out += strf(" (%s) of %s", name_of(static_cast<Op>(m.header.op)),
                name_of(static_cast<DType>(m.header.dtype)));
  }
  if (m.head.function == Function::all_reduce) {
    return out + strf(", %llu elements, part %llu", number(m.header.count), number(m.head.piece));
  }
  return out + strf(", %llu bytes per rank, window %llu+%llu", number(m.head.bytes_per_rank),
                    number(m.head.window_offset), number(m.head.window_bytes));
}

std::string describe_mask(const CollMessage& m) {
  constexpr const char* kContracts[] = {"lossless", "project", "sampled"};
  return m.head.wish == Wish::masked
             ? strf("mask %016llx (%s)", static_cast<unsigned long long>(m.header.mask_digest),
                    kContracts[m.head.contract])
             : "no mask";
}

bool projects(const CollMessage& m) {
  return m.head.wish == Wish::masked && m.head.contract == static_cast<uint8_t>(Contract::project);
}

bool same_data(const CollMessage& a, const CollMessage& b) {
  return a.head.wish == b.head.wish && a.header.mask_digest == b.header.mask_digest &&
         a.head.contract == b.head.contract && a.header.wire_kept == b.header.wire_kept &&
         a.map.size() == b.map.size();
}

}  // namespace

std::string describe_difference(std::span<const CollMessage> messages, size_t other) {
  const CollMessage& first = messages[0];
  return strf("node 0 has %s and node %zu has %s for the same call (%llu x %s, part %llu)",
              describe_mask(first).c_str(), other, describe_mask(messages[other]).c_str(),
              static_cast<unsigned long long>(first.header.count),
              name_of(static_cast<DType>(first.header.dtype)),
              static_cast<unsigned long long>(first.head.piece));
}

uint64_t difference_digest(std::span<const CollMessage> messages, size_t other) {
  Digest digest(other);
  for (const size_t n : {size_t{0}, other}) {
    const CollMessage& m = messages[n];
    digest.add(m.head.wish).add(m.header.mask_digest).add(m.head.contract);
  }
  const CollMessage& first = messages[0];
  return digest.add(first.header.count).add(first.header.dtype).add(first.head.piece).value();
}

Verdict decide(std::span<const CollMessage> messages) {
  Verdict v;
  const CollMessage& first = messages[0];
  size_t other = messages.size();  // the first node whose masks differ from node 0's
  bool strict = false, project = false, masked = false;
  v.inlined = true;
  for (size_t n = 0; n < messages.size(); ++n) {
    const CollMessage& m = messages[n];
    if (!same_call(first, m)) {
      v.error = Error{Code::mismatch,
                      strf("nodes disagree about a call: node 0 makes %s, node %zu makes %s; all "
                           "nodes must make the same calls in the same order",
                           describe(first).c_str(), n, describe(m).c_str()),
                      0, static_cast<int>(n)};
      return v;
    }
    if (m.header.extra_digest != first.header.extra_digest) {
      v.error = Error{Code::mismatch,
                      strf("node 0 and node %zu are configured differently (PRUNEX_CHUNK_BYTES, "
                           "PRUNEX_ALGORITHM, or another version of this library)",
                           n),
                      0, static_cast<int>(n)};
      return v;
    }
    if (other == messages.size() && !same_data(first, m)) {
      other = n;
    }
    v.inlined = v.inlined && m.head.inlined != 0 && m.data.size() == first.data.size();
    strict = strict || m.head.strict != 0;
    project = project || projects(m);
    masked = masked || m.head.wish == Wish::masked;
  }
  if (other < messages.size()) {
    v.inlined = false;
    v.differing = static_cast<int>(other);
    if (project || (strict && masked)) {
      v.error = Error{Code::mismatch,
                      describe_difference(messages, other) +
                          (project ? ": the 'project' contract has no result then"
                                   : " (PRUNEX_ON_MISMATCH=error)") +
                          "; register the same mask on all nodes (prunex_agree_mask makes them so)",
                      0, static_cast<int>(other)};
    }
    v.mismatched = masked;
    return v;
  }
  if (first.head.wish == Wish::dense) {
    return v;
  }
  v.way = first.head.wish == Wish::masked ? Verdict::Way::masked : Verdict::Way::mapped;
  for (size_t n = 0; n < messages.size() && v.way == Verdict::Way::masked && !project; ++n) {
    if (messages[n].header.audit == collective::Audit::violated) {
      v = Verdict{};
      v.violated = true;
      v.offender = static_cast<int>(n);
      break;
    }
  }
  return v;
}

}  // namespace prunex::nccl::coll
