// SPDX-License-Identifier: Apache-2.0
// NCCL_IB_HCA's grammar: a comma list of device or device:port; names match as prefixes, with = in
// front of the list whole; ^ in front (of that) excludes. As NCCL reads it: empty items do not
// count, more fields behind the port (rail, plane) neither, an empty port is all of them; spaces
// belong to the names; "^" alone leaves no device.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"

namespace prunex {

struct HcaFilter {
  struct Item {
    std::string device;
    int port = -1;  // -1: all
  };
  bool exclude = false, exact = false;
  std::vector<Item> items;  // empty: every device matches
};
[[nodiscard]] Result<HcaFilter> parse_hca_filter(std::string_view text);

}  // namespace prunex
