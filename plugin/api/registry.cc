// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/registry.h"

#include <utility>

namespace prunex::api {
namespace {

std::string range_text(const MaskEntry& e) {
  const std::string& name = e.version->name;
  return strf("[%#zx, %#zx) %llu x %s%s%s", static_cast<size_t>(e.base),
              static_cast<size_t>(e.end()), static_cast<unsigned long long>(e.count),
              name_of(e.type), name.empty() ? "" : " ", name.c_str());
}

tl::unexpected<Error> unknown(const char* what, uint64_t id) {
  return fail(Code::invalid_handle, strf("%s handle %llu is unknown or was destroyed", what,
                                         static_cast<unsigned long long>(id)));
}

}  // namespace

// Never destroyed: whoever still calls during exit finds it alive.
Registry& Registry::instance() {
  static Registry* const registry = new Registry;
  return *registry;
}

Result<uint64_t> Registry::add(std::shared_ptr<MaskEntry> entry) {
  const std::unique_lock lock(mutex_);
  if (entry->addressed()) {
    if (const auto same = by_address_.find(entry->base); same != by_address_.end()) {
      if (same->second->count != entry->count || same->second->type != entry->type) {
        return fail(Code::invalid_argument,
                    strf("%s is registered with another length than the existing %s; unregister "
                         "that mask first",
                         range_text(*entry).c_str(), range_text(*same->second).c_str()));
      }
      masks_.erase(same->second->id);
      by_address_.erase(same);
    }
    const auto above = by_address_.lower_bound(entry->base);
    const MaskEntry* overlap = nullptr;
    if (above != by_address_.end() && above->second->base < entry->end()) {
      overlap = above->second.get();
    }
    if (overlap == nullptr && above != by_address_.begin() &&
        std::prev(above)->second->end() > entry->base) {
      overlap = std::prev(above)->second.get();
    }
    if (overlap != nullptr) {
      return fail(Code::invalid_argument,
                  strf("%s overlaps the registered %s; unregister that mask first",
                       range_text(*entry).c_str(), range_text(*overlap).c_str()));
    }
    by_address_.emplace(entry->base, entry);
    addressed_ = by_address_.size();
  }
  entry->id = next_id_++;
  masks_.emplace(entry->id, entry);
  ++generation_;
  return entry->id;
}

Result<> Registry::update(uint64_t id, std::shared_ptr<const MaskVersion> version) {
  const std::unique_lock lock(mutex_);
  const auto found = masks_.find(id);
  if (found == masks_.end()) {
    return unknown("mask", id);
  }
  found->second->version = std::move(version);
  ++generation_;
  return {};
}

Result<> Registry::remove(uint64_t id) {
  const std::unique_lock lock(mutex_);
  const auto found = masks_.find(id);
  if (found == masks_.end()) {
    return unknown("mask", id);
  }
  if (found->second->addressed()) {
    by_address_.erase(found->second->base);
    addressed_ = by_address_.size();
  }
  masks_.erase(found);
  return {};
}

Result<std::shared_ptr<MaskEntry>> Registry::find(uint64_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = masks_.find(id);
  if (found == masks_.end()) {
    return unknown("mask", id);
  }
  return found->second;
}

std::shared_ptr<const MaskVersion> Registry::version_of(const MaskEntry& entry) const {
  const std::shared_lock lock(mutex_);
  return entry.version;
}

Lookup Registry::find(const void* base, uint64_t count, DType type,
                      std::shared_ptr<const collective::MaskedLayout>* out) const {
  const std::shared_lock lock(mutex_);
  if (by_address_.empty()) {
    return Lookup::none;
  }
  const auto at = reinterpret_cast<uintptr_t>(base);
  const auto after = by_address_.upper_bound(at);
  if (after != by_address_.begin()) {
    MaskEntry& entry = *std::prev(after)->second;
    if (entry.base == at && entry.count == count && entry.type == type) {
      ++entry.hits;
      *out = entry.version->alone;
      return Lookup::hit;
    }
    if (entry.end() > at) {
      ++entry.stale;
      return Lookup::stale;
    }
  }
  if (after != by_address_.end() && after->second->base < at + count * size_of(type)) {
    ++after->second->stale;
    return Lookup::stale;
  }
  return Lookup::miss;
}

Lookup Registry::find_range(const void* ptr, uint64_t bytes, RangeHit* out) const {
  if (!has_addressed()) {
    return Lookup::none;
  }
  const std::shared_lock lock(mutex_);
  const auto at = reinterpret_cast<uintptr_t>(ptr);
  if (bytes == 0 || bytes > UINTPTR_MAX - at) {
    return Lookup::miss;
  }
  const auto after = by_address_.upper_bound(at);
  if (after != by_address_.begin()) {
    MaskEntry& entry = *std::prev(after)->second;
    if (at < entry.end()) {
      if (bytes > entry.end() - at) {
        ++entry.stale;
        return Lookup::stale;
      }
      ++entry.hits;
      *out = {entry.version,       entry.violations, entry.type,
              size_of(entry.type), at - entry.base,  entry.count};
      return Lookup::hit;
    }
  }
  if (after != by_address_.end() && after->second->base < at + bytes) {
    ++after->second->stale;
    return Lookup::stale;
  }
  return Lookup::miss;
}

std::shared_ptr<const CompiledMask> Registry::find_digest(uint64_t digest) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [id, entry] : masks_) {
    if (entry->version->mask->digest == digest) {
      return entry->version->mask;
    }
  }
  return nullptr;
}

std::vector<Registry::Addressed> Registry::addressed() const {
  const std::shared_lock lock(mutex_);
  std::vector<Addressed> out;
  out.reserve(by_address_.size());
  for (const auto& [base, entry] : by_address_) {
    out.push_back({reinterpret_cast<const void*>(base), entry->version, size_of(entry->type)});
  }
  return out;
}

void Registry::tell(const MaskVersion& version) const {
  if (const Watcher watcher = watcher_.load(std::memory_order_acquire)) {
    watcher(version);
  }
}

Result<uint64_t> Registry::add_layout(std::vector<LayoutSegment> segments, uint64_t count) {
  const std::unique_lock lock(mutex_);
  LayoutEntry entry;
  entry.segments = std::move(segments);
  entry.count = count;
  auto built = build(entry);
  if (!built) {
    return tl::unexpected(built.error());
  }
  entry.current = std::move(*built);
  entry.generation = generation_;
  const uint64_t id = next_id_++;
  layouts_.emplace(id, std::move(entry));
  return id;
}

Result<> Registry::remove_layout(uint64_t id) {
  const std::unique_lock lock(mutex_);
  if (layouts_.erase(id) == 0) {
    return unknown("layout", id);
  }
  return {};
}

Result<std::shared_ptr<const collective::MaskedLayout>> Registry::build(
    const LayoutEntry& entry) const {
  std::vector<Segment> segments;
  for (const LayoutSegment& s : entry.segments) {
    Segment out{s.offset, s.count, nullptr, {}};
    if (s.mask != nullptr) {
      out.mask = s.mask->version->mask;
      out.name = s.mask->version->name;
    }
    segments.push_back(std::move(out));
  }
  auto layout = make_layout(std::move(segments), entry.count);
  if (!layout) {
    return tl::unexpected(layout.error());
  }
  // make_layout sorts and fills gaps: find each segment's contract again by its offset.
  std::map<uint64_t, const MaskEntry*> by_offset;
  for (const LayoutSegment& s : entry.segments) {
    if (s.mask != nullptr && s.count > 0) {
      by_offset.emplace(s.offset, s.mask.get());
    }
  }
  std::vector<collective::Contract> contracts(layout->segments.size(),
                                              collective::Contract::lossless);
  std::vector<std::shared_ptr<std::atomic<uint64_t>>> violations(contracts.size());
  for (size_t i = 0; i < contracts.size(); ++i) {
    if (layout->segments[i].mask != nullptr && layout->segments[i].count > 0) {
      const MaskEntry& mask = *by_offset.at(layout->segments[i].offset);
      contracts[i] = mask.version->contract;
      violations[i] = mask.violations;
    }
  }
  auto masked = std::make_shared<collective::MaskedLayout>(
      collective::make_masked_layout(std::move(*layout), std::move(contracts)));
  masked->violations = std::move(violations);
  return std::shared_ptr<const collective::MaskedLayout>(std::move(masked));
}

Result<std::shared_ptr<const collective::MaskedLayout>> Registry::layout(uint64_t id) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = layouts_.find(id);
    if (found == layouts_.end()) {
      return unknown("layout", id);
    }
    if (found->second.generation == generation_) {
      return found->second.current;
    }
  }
  const std::unique_lock lock(mutex_);
  const auto found = layouts_.find(id);
  if (found == layouts_.end()) {
    return unknown("layout", id);
  }
  auto built = build(found->second);
  if (!built) {
    return tl::unexpected(built.error());
  }
  found->second.current = std::move(*built);
  found->second.generation = generation_;
  return found->second.current;
}

}  // namespace prunex::api
