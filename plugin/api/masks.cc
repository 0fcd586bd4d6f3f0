// SPDX-License-Identifier: Apache-2.0
// prunex_register_mask and its kin: from C descriptions to compiled masks in the registry.
#include <algorithm>
#include <cstring>

#include "plugin/api/error.h"
#include "plugin/api/mask_memory.h"
#include "plugin/api/registry.h"
#include "plugin/device/mask_plans.h"

namespace prunex::api {
namespace {

using collective::Contract;

Result<DType> dtype_of(prunex_dtype_t type) {
  if (static_cast<int>(type) < 0 || static_cast<int>(type) >= kNumDTypes) {
    return fail(Code::invalid_argument, strf("dtype %d is unknown", static_cast<int>(type)));
  }
  return static_cast<DType>(type);
}

std::span<const uint8_t> bytes_of(const uint8_t* data, size_t size) {
  return data == nullptr ? std::span<const uint8_t>{} : std::span(data, size);
}

Result<> fill_cells(const prunex_mask_desc_t& d, MaskSpec& spec) {
  if (d.cells == nullptr && d.cells_len > 0) {
    return null_argument("desc.cells");
  }
  spec.cells = bytes_of(d.cells, d.cells_len);
  return {};
}

Result<MaskSpec> spec_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                         const prunex_mask_desc_t& d, std::vector<KeptRange>& ranges) {
  MaskSpec spec;
  spec.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), spec.sizes.begin());
  std::copy(strides.begin(), strides.end(), spec.strides.begin());
  spec.declared_kept = d.declared_kept;
  switch (d.kind) {
    case PRUNEX_MASK_DIMS:
      spec.kind = MaskKind::dims;
      for (int i = 0; i < PRUNEX_MAX_DIMS; ++i) {
        if (d.keep[i] == nullptr) {
          continue;
        }
        if (i >= spec.ndim) {
          return fail(Code::invalid_argument,
                      strf("keep[%d] is given for a tensor of %d dimensions", i, spec.ndim));
        }
        spec.keep[static_cast<size_t>(i)] = std::span(d.keep[i], d.keep_len[i]);
        if (d.keep_len[i] != static_cast<size_t>(sizes[static_cast<size_t>(i)])) {
          return fail(Code::invalid_argument,
                      strf("keep[%d] has %zu entries, dimension %d has %lld", i, d.keep_len[i], i,
                           static_cast<long long>(sizes[static_cast<size_t>(i)])));
        }
      }
      return spec;
    case PRUNEX_MASK_BLOCKS:
      spec.kind = MaskKind::blocks;
      std::copy(std::begin(d.block), std::end(d.block), spec.block.begin());
      break;
    case PRUNEX_MASK_NM:
      spec.kind = MaskKind::nm;
      spec.n = d.nm_n;
      spec.m = d.nm_m;
      spec.nm_dim = d.nm_dim;
      break;
    case PRUNEX_MASK_RANGES:
      spec.kind = MaskKind::ranges;
      if (d.ranges == nullptr && d.num_ranges > 0) {
        return null_argument("desc.ranges");
      }
      for (size_t i = 0; i < d.num_ranges; ++i) {
        ranges.push_back({d.ranges[i].begin, d.ranges[i].count});
      }
      spec.ranges = ranges;
      return spec;
    case PRUNEX_MASK_BYTES:
      spec.kind = MaskKind::bytes;
      break;
    default:
      return fail(Code::invalid_argument,
                  strf("mask kind %d is unknown", static_cast<int>(d.kind)));
  }
  if (auto filled = fill_cells(d, spec); !filled) {
    return tl::unexpected(filled.error());
  }
  return spec;
}

Result<std::shared_ptr<const MaskVersion>> make_version(const MaskEntry& entry,
                                                        const prunex_mask_desc_t* desc) {
  if (auto sized = check_size(desc, "desc"); !sized) {
    return tl::unexpected(sized.error());
  }
  if (static_cast<int>(desc->contract) < 0 || static_cast<int>(desc->contract) > 2) {
    return fail(Code::invalid_argument,
                strf("contract %d is unknown", static_cast<int>(desc->contract)));
  }
  HostDescription host;
  if (auto read = host.read(*desc); !read) {
    return tl::unexpected(read.error());
  }
  std::vector<KeptRange> ranges;
  auto spec = spec_of(entry.sizes, entry.strides, host.get(), ranges);
  if (!spec) {
    return tl::unexpected(spec.error());
  }
  auto compiled = compile(*spec);
  if (!compiled) {
    Error e = compiled.error();
    if (desc->name != nullptr) {
      e.text = strf("mask of '%s': %s", desc->name, e.text.c_str());
    }
    return tl::unexpected(std::move(e));
  }
  auto version = std::make_shared<MaskVersion>();
  version->mask = std::make_shared<const CompiledMask>(std::move(*compiled));
  version->contract = static_cast<Contract>(desc->contract);
  version->epoch = desc->epoch;
  version->name = desc->name == nullptr ? "" : desc->name;
  const uint64_t count = version->mask->count;
  auto alone = make_layout({Segment{0, count, version->mask, version->name}}, count);
  if (!alone) {
    return tl::unexpected(alone.error());
  }
  auto masked = std::make_shared<collective::MaskedLayout>(
      collective::make_masked_layout(std::move(*alone), {version->contract}));
  masked->violations = {entry.violations};
  version->alone = std::move(masked);
  return std::shared_ptr<const MaskVersion>(std::move(version));
}

Result<> read_tensor(const prunex_tensor_t* tensor, MaskEntry& entry) {
  if (auto sized = check_size(tensor, "tensor"); !sized) {
    return sized;
  }
  auto type = dtype_of(tensor->dtype);
  if (!type) {
    return tl::unexpected(type.error());
  }
  if (tensor->ndim < 0 || tensor->ndim > PRUNEX_MAX_DIMS) {
    return fail(Code::invalid_argument,
                strf("ndim %d: 0 to %d dimensions are allowed", tensor->ndim, PRUNEX_MAX_DIMS));
  }
  if (tensor->sizes == nullptr && tensor->ndim > 0) {
    return null_argument("tensor.sizes");
  }
  entry.type = *type;
  if (tensor->ndim > 0) {
    entry.sizes.assign(tensor->sizes, tensor->sizes + tensor->ndim);
  }
  if (tensor->strides != nullptr && tensor->ndim > 0) {
    entry.strides.assign(tensor->strides, tensor->strides + tensor->ndim);
  }
  return {};
}

// What the data path needs of a mask, made before it does. A plan lives as long as the version, not
// as its mask, which the ends of connections keep longer.
void prepare(const void* base, const std::shared_ptr<const MaskVersion>& version,
             size_t element_bytes) {
  if (base != nullptr) {
    Registry::instance().tell(*version);
    device::MaskPlans::instance().prepare(base, mask_of(version), element_bytes);
  }
}

Result<> check_extent(const MaskEntry& e) {
  if (e.base != 0 && e.count > (UINTPTR_MAX - e.base) / size_of(e.type)) {
    return fail(Code::invalid_argument, strf("%llu x %s from %#zx on do not fit an address space",
                                             static_cast<unsigned long long>(e.count),
                                             name_of(e.type), static_cast<size_t>(e.base)));
  }
  return {};
}

}  // namespace
}  // namespace prunex::api

using prunex::Result;
using prunex::api::Registry;

extern "C" {

prunex_result_t prunex_register_mask(const void* base, const prunex_tensor_t* tensor,
                                     const prunex_mask_desc_t* desc, prunex_mask_t* out) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (out == nullptr) {
      return null_argument("out");
    }
    *out = 0;
    auto entry = std::make_shared<MaskEntry>();
    if (auto read = read_tensor(tensor, *entry); !read) {
      return read;
    }
    auto version = make_version(*entry, desc);
    if (!version) {
      return tl::unexpected(version.error());
    }
    entry->base = reinterpret_cast<uintptr_t>(base);
    entry->count = (*version)->mask->count;
    if (auto fits = check_extent(*entry); !fits) {
      return fits;
    }
    entry->version = *version;
    const size_t element_bytes = size_of(entry->type);
    auto id = Registry::instance().add(std::move(entry));
    if (!id) {
      return tl::unexpected(id.error());
    }
    *out = *id;
    prepare(base, *version, element_bytes);
    return {};
  });
}

prunex_result_t prunex_update_mask(prunex_mask_t mask, const prunex_mask_desc_t* desc) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    auto entry = Registry::instance().find(mask);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    auto version = make_version(**entry, desc);
    if (!version) {
      return tl::unexpected(version.error());
    }
    if (auto updated = Registry::instance().update(mask, *version); !updated) {
      return updated;
    }
    prepare(reinterpret_cast<const void*>((*entry)->base), *version, size_of((*entry)->type));
    return {};
  });
}

prunex_result_t prunex_unregister_mask(prunex_mask_t mask) {
  return prunex::api::guard([&] { return Registry::instance().remove(mask); });
}

prunex_result_t prunex_mask_info(prunex_mask_t mask, prunex_mask_info_t* info) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (auto sized = check_size(info, "info"); !sized) {
      return sized;
    }
    auto entry = Registry::instance().find(mask);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    const auto version = Registry::instance().version_of(**entry);
    info->count = version->mask->count;
    info->kept = version->mask->kept;
    info->digest = version->mask->digest;
    info->epoch = version->epoch;
    info->hits = (*entry)->hits.load();
    info->misses_stale = (*entry)->stale.load();
    info->violations = (*entry)->violations->load();
    return {};
  });
}

prunex_result_t prunex_layout_create(const prunex_segment_t* segments, size_t num_segments,
                                     uint64_t count, prunex_layout_t* out) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (out == nullptr) {
      return null_argument("out");
    }
    *out = 0;
    if (segments == nullptr && num_segments > 0) {
      return null_argument("segments");
    }
    std::vector<Registry::LayoutSegment> list;
    for (size_t i = 0; i < num_segments; ++i) {
      Registry::LayoutSegment s{segments[i].offset, segments[i].count, nullptr};
      if (segments[i].mask != 0) {
        auto entry = Registry::instance().find(segments[i].mask);
        if (!entry) {
          return tl::unexpected(entry.error());
        }
        s.mask = std::move(*entry);
      }
      list.push_back(std::move(s));
    }
    auto id = Registry::instance().add_layout(std::move(list), count);
    if (!id) {
      return tl::unexpected(id.error());
    }
    *out = *id;
    return {};
  });
}

prunex_result_t prunex_layout_destroy(prunex_layout_t layout) {
  return prunex::api::guard([&] { return Registry::instance().remove_layout(layout); });
}

prunex_result_t prunex_layout_info(prunex_layout_t layout, prunex_layout_info_t* info) {
  using namespace prunex::api;
  return guard([&]() -> Result<> {
    if (auto sized = check_size(info, "info"); !sized) {
      return sized;
    }
    auto masked = Registry::instance().layout(layout);
    if (!masked) {
      return tl::unexpected(masked.error());
    }
    info->count = (*masked)->layout.count;
    info->kept = (*masked)->layout.kept;
    info->digest = (*masked)->digest ^ (*masked)->layout.shape_digest;
    return {};
  });
}
}
