// SPDX-License-Identifier: Apache-2.0
// The fixed choices of design rule 2: pure functions of size, nodes and ranks, so that no two ranks
// ever choose differently. The numbers come from docs/measurements.md. Overrides (tests, tuning)
// are part of the digest that ranks compare when a communicator is created.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace prunex::collective {

enum class Algorithm : uint8_t {
  local = 0,  // one node: nothing crosses
  inlined,    // the call header carries each node's whole contribution; everybody adds all
  exchange,   // each node sends its whole contribution to every other; everybody adds all
  scatter,    // direct reduce-scatter, then direct all-gather: 2(K-1)/K of the bytes, the ring's
              // volume
  direct,     // nothing to add up: each node sends its part to every other
  chain,      // a broadcast handed on from node to node, chunk by chunk
};

[[nodiscard]] constexpr const char* name_of(Algorithm a) {
  constexpr const char* kNames[] = {"local", "inlined", "exchange", "scatter", "direct", "chain"};
  return kNames[static_cast<size_t>(a)];
}

struct Tuning {
  static constexpr size_t kInlineLimit = 32 * 1024;  // payload room of a call message

  size_t inline_bytes = 16 * 1024;    // of one contribution
  size_t exchange_bytes = 64 * 1024;  // of (K-1) contributions
  size_t chunk_bytes = 256 * 1024;    // of the pipeline
  size_t min_chunk_bytes = 64 * 1024;
  size_t alone_bytes = 16 * 1024;  // chunks up to this are reduced by the leader alone
  int forced = -1;                 // an Algorithm, for tests and benchmarks; -1: by size
  // Lossless masks that keep more than this, or buffers this small, are not worth compacting.
  double dense_above = 0.97;
  size_t dense_below_bytes = 2 * 1024;
};

// What crosses between nodes, per element.
struct Traffic {
  size_t nodes = 1;
  size_t partial_bytes = 4, result_bytes = 4;
};

// Payload that one leader sends.
[[nodiscard]] constexpr uint64_t wire_bytes(Algorithm a, const Traffic& t, uint64_t elements) {
  switch (a) {
    case Algorithm::local:
    case Algorithm::direct:  // the plan itself says it: sent_bytes()
    case Algorithm::chain:
      return 0;
    case Algorithm::inlined:
    case Algorithm::exchange:
      return elements * t.partial_bytes * (t.nodes - 1);
    case Algorithm::scatter:
      return elements * (t.nodes - 1) / t.nodes * (t.partial_bytes + t.result_bytes);
  }
  return 0;
}

[[nodiscard]] constexpr Algorithm choose_algorithm(const Tuning& t, const Traffic& traffic,
                                                   uint64_t elements) {
  const size_t nodes = traffic.nodes;
  const bool widened = traffic.partial_bytes != traffic.result_bytes;
  const size_t bytes = elements * std::max(traffic.partial_bytes, traffic.result_bytes);
  if (nodes <= 1) {
    return Algorithm::local;
  }
  if (t.forced > 0) {
    const auto forced = static_cast<Algorithm>(t.forced);
    const bool fits = forced != Algorithm::inlined || bytes <= Tuning::kInlineLimit;
    return fits ? forced : Algorithm::exchange;
  }
  if (bytes <= t.inline_bytes && bytes * (nodes - 1) <= 16 * t.inline_bytes) {
    return Algorithm::inlined;
  }
  // Two nodes move the same bytes either way and save a step; a widened type travels narrow in the
  // all-gather half, so there scatter moves less.
  if ((nodes == 2 && !widened) || bytes * (nodes - 1) <= t.exchange_bytes) {
    return Algorithm::exchange;
  }
  return Algorithm::scatter;
}

// Of a compacted call. Fewer elements may suit a quicker algorithm that sends more bytes for each:
// it is taken only if it sends no more than the dense call would (design rule 7).
[[nodiscard]] constexpr Algorithm choose_algorithm(const Tuning& t, const Traffic& traffic,
                                                   uint64_t elements, uint64_t dense_elements) {
  const Algorithm own = choose_algorithm(t, traffic, elements);
  const Algorithm dense = choose_algorithm(t, traffic, dense_elements);
  return wire_bytes(own, traffic, elements) <= wire_bytes(dense, traffic, dense_elements) ? own
                                                                                          : dense;
}

// Enough chunks to overlap the stages, none so small that its own latency shows.
[[nodiscard]] constexpr size_t choose_chunk_bytes(const Tuning& t, size_t bytes) {
  return std::clamp(bytes / 8, std::min(t.min_chunk_bytes, t.chunk_bytes), t.chunk_bytes);
}

[[nodiscard]] constexpr bool compaction_pays(const Tuning& t, uint64_t count, uint64_t kept,
                                             size_t element_bytes) {
  return count * element_bytes > t.dense_below_bytes &&
         static_cast<double>(kept) <= t.dense_above * static_cast<double>(count);
}

}  // namespace prunex::collective
