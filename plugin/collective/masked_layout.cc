// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/masked_layout.h"

#include <utility>

#include "plugin/base/digest.h"

namespace prunex::collective {

MaskedLayout make_masked_layout(Layout layout, std::vector<Contract> contracts) {
  MaskedLayout out;
  Digest digest;
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    Segment& segment = layout.segments[i];
    const bool masked = segment.mask != nullptr;
    segment.projected = masked && contracts[i] == Contract::project;
    digest.add(masked ? segment.mask->digest : 0).add(masked ? static_cast<int>(contracts[i]) : -1);
  }
  out.digest = digest.value();
  out.layout = std::move(layout);
  out.contracts = std::move(contracts);
  return out;
}

}  // namespace prunex::collective
