// SPDX-License-Identifier: Apache-2.0
// Masks of every kind with what they keep, element by element, from their description.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mask.h"
#include "tests/kernels/mask_reference.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {

struct KnownMask {
  std::string name;
  std::shared_ptr<const CompiledMask> mask;
  Bits keep;  // per element
};

inline KnownMask compiled(std::string name, testing::OwnedSpec& owned) {
  auto mask = compile(owned.get());
  if (!mask) {
    ADD_FAILURE() << name << ": " << mask.error().text;
    return {std::move(name), std::make_shared<const CompiledMask>(), {}};
  }
  return {std::move(name), std::make_shared<const CompiledMask>(*std::move(mask)),
          testing::reference_keeps(owned.get())};
}

// Built panel by panel: every structure there is, also those that compile() does not make.
inline std::vector<KnownMask> built_masks(uint64_t seed) {
  std::vector<KnownMask> out;
  for (const Case& c : all_cases(seed)) {
    for (const Segment& segment : c.layout.segments) {
      if (segment.mask != nullptr) {
        out.push_back({c.name, segment.mask, expand_mask(*segment.mask)});
      }
    }
  }
  return out;
}

// Compiled from random specs, `each` of every kind.
inline std::vector<KnownMask> random_masks(uint64_t seed, int each, uint64_t limit) {
  testing::Random random(seed);
  std::vector<KnownMask> out;
  for (const MaskKind kind :
       {MaskKind::dims, MaskKind::blocks, MaskKind::nm, MaskKind::ranges, MaskKind::bytes}) {
    for (int i = 0; i < each; ++i) {
      testing::OwnedSpec owned = testing::random_spec(random, kind, limit);
      out.push_back(compiled(
          "kind " + std::to_string(static_cast<int>(kind)) + " #" + std::to_string(i), owned));
    }
  }
  return out;
}

// Weight [rows, columns] with whole rows and columns pruned.
inline KnownMask pruned_weight(uint64_t seed, int64_t rows, int64_t columns, double density) {
  Rng rng(seed);
  testing::OwnedSpec owned;
  owned.spec.kind = MaskKind::dims;
  owned.spec.ndim = 2;
  owned.spec.sizes = {rows, columns};
  owned.keep[0] = random_bits(rng, static_cast<size_t>(rows), 0.8);
  owned.keep[1] = random_bits(rng, static_cast<size_t>(columns), density);
  return compiled("pruned weight", owned);
}

}  // namespace prunex::test
