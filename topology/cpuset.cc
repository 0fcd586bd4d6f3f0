// SPDX-License-Identifier: Apache-2.0
#include "topology/cpuset.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "plugin/base/result.h"

namespace prunex::topo {
namespace {

std::optional<size_t> number(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::optional<CpuSet> CpuSet::parse(std::string_view list) {
  CpuSet set;
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) {
    list.remove_suffix(1);
  }
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    const size_t dash = item.find('-');
    const auto first = number(item.substr(0, dash));
    const auto last = dash == item.npos ? first : number(item.substr(dash + 1));
    if (!first || !last || *last < *first) {
      return std::nullopt;
    }
    for (size_t cpu = *first; cpu <= *last && cpu < kLimit; ++cpu) {
      set.add(cpu);
    }
  }
  return set;
}

void CpuSet::add(size_t cpu) {
  if (cpu >= kLimit) {
    return;
  }
  if (words_.size() <= cpu / 64) {
    words_.resize(cpu / 64 + 1);
  }
  words_[cpu / 64] |= uint64_t{1} << (cpu % 64);
}

void CpuSet::add(const CpuSet& other) {
  words_.resize(std::max(words_.size(), other.words_.size()));
  for (size_t i = 0; i < other.words_.size(); ++i) {
    words_[i] |= other.words_[i];
  }
}

bool CpuSet::contains(size_t cpu) const {
  return cpu / 64 < words_.size() && (words_[cpu / 64] >> (cpu % 64) & 1) != 0;
}

bool CpuSet::contains(const CpuSet& other) const {
  for (size_t i = 0; i < other.words_.size(); ++i) {
    if ((other.words_[i] & ~(i < words_.size() ? words_[i] : 0)) != 0) {
      return false;
    }
  }
  return true;
}

bool CpuSet::empty() const {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
}

size_t CpuSet::count() const {
  size_t n = 0;
  for (const uint64_t word : words_) {
    n += static_cast<size_t>(std::popcount(word));
  }
  return n;
}

std::string CpuSet::text() const {
  std::string out;
  for (size_t cpu = 0; cpu < 64 * words_.size(); ++cpu) {
    if (!contains(cpu)) {
      continue;
    }
    size_t last = cpu;
    while (contains(last + 1)) {
      ++last;
    }
    out += out.empty() ? "" : ",";
    out += last == cpu ? strf("%zu", cpu) : strf("%zu-%zu", cpu, last);
    cpu = last;
  }
  return out;
}

}  // namespace prunex::topo
