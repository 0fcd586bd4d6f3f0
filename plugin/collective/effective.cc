// SPDX-License-Identifier: Apache-2.0
// Which masks a call really uses, and whether their promise is checked: from what all ranks share,
// so that all decide alike.
#include "plugin/base/digest.h"
#include "plugin/collective/comm.h"

namespace prunex::collective {
namespace {

constexpr size_t kCacheLimit = 256;     // effective layouts; then the cache starts afresh
constexpr size_t kSampledLimit = 4096;  // masks whose calls are counted; then the count does
constexpr uint64_t kSampleFirst = 10, kSampleEvery = 64;

}  // namespace

uint64_t Comm::parameter_key(const Layout& layout, size_t segment) {
  return Digest().add(layout.shape_digest).add(segment).value();
}

// Segments whose mask is the one that broke its promise. A parameter with another mask by now is
// forgiven.
std::vector<uint8_t> Comm::broken_segments(const CallSpec& spec) {
  const Layout& layout = spec.masked->layout;
  Lessons& known = lessons(spec.scope);
  std::vector<uint8_t> broken(layout.segments.size(), 0);
  for (size_t i = 0; i < broken.size() && !known.broken.empty(); ++i) {
    const auto found = known.broken.find(parameter_key(layout, i));
    if (found == known.broken.end() || layout.segments[i].mask == nullptr) {
      continue;
    }
    broken[i] = found->second == layout.segments[i].mask->digest ? 1 : 0;
    if (broken[i] == 0) {
      known.broken.erase(found);
      ++known.version;
    }
  }
  return broken;
}

// Masks that the operation cannot use, that would not pay, or that broke their promise are left
// out: decided from what all ranks share, so that all decide alike.
const Comm::Effective& Comm::effective(const CallSpec& spec) {
  const bool additive = spec.op == Op::sum || spec.op == Op::avg;
  const uint64_t shape = spec.masked ? spec.masked->layout.shape_digest : 0;
  const auto key_now = [&] {
    return Digest()
        .add(spec.masked ? spec.masked->digest : 0)
        .add(shape)
        .add(spec.count)
        .add(additive)
        .add(size_of(spec.type))
        .add(spec.scope == Scope::node)
        .add(lessons(spec.scope).version)
        .value();
  };
  if (const auto found = effective_.find(key_now()); found != effective_.end()) {
    return found->second;
  }
  const std::vector<uint8_t> broken = spec.masked ? broken_segments(spec) : std::vector<uint8_t>();
  const uint64_t key = key_now();
  if (effective_.size() >= kCacheLimit) {
    effective_.clear();
  }
  Effective e;
  if (spec.masked == nullptr) {
    e.masked = std::make_shared<MaskedLayout>(
        make_masked_layout(dense_layout(spec.count), {Contract::lossless}));
    return effective_.emplace(key, std::move(e)).first->second;
  }
  const MaskedLayout& all = *spec.masked;
  const size_t n = all.layout.segments.size();
  std::vector<uint8_t> drop(n, 0);
  bool any = false;
  for (size_t i = 0; i < n; ++i) {
    const bool optional =
        all.layout.segments[i].mask != nullptr && all.contracts[i] != Contract::project;
    drop[i] = optional && (!additive || broken[i] != 0);
    any = any || drop[i] != 0;
  }
  e.masked = spec.masked;
  if (any) {
    e.masked = std::make_shared<MaskedLayout>(
        make_masked_layout(without_masks(all.layout, drop), all.contracts));
  }
  if (!compaction_pays(context_.tuning, spec.count, e.masked->layout.kept, size_of(spec.type))) {
    for (size_t i = 0; i < n; ++i) {
      drop[i] = all.layout.segments[i].mask != nullptr && all.contracts[i] != Contract::project;
    }
    e.masked = std::make_shared<MaskedLayout>(
        make_masked_layout(without_masks(all.layout, drop), all.contracts));
  }
  for (size_t i = 0; i < n; ++i) {
    if (e.masked->layout.segments[i].mask != nullptr) {
      e.lossless = e.lossless || all.contracts[i] == Contract::lossless;
      e.sampled = e.sampled || all.contracts[i] == Contract::sampled;
      e.projected = e.projected || all.contracts[i] == Contract::project;
    }
  }
  e.compact = !e.masked->layout.dense();
  return effective_.emplace(key, std::move(e)).first->second;
}

bool Comm::sample_due(const CallSpec& spec, const Effective& e) {
  if (!e.sampled) {
    return false;
  }
  auto& counts = lessons(spec.scope).sampled;
  if (counts.size() >= kSampledLimit) {
    counts.clear();
  }
  const uint64_t calls = counts[e.masked->digest ^ e.masked->layout.shape_digest]++;
  return calls < kSampleFirst || calls % kSampleEvery == 0;
}

}  // namespace prunex::collective
