// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/hca_filter.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace prunex {
namespace {

Result<HcaFilter::Item> parse_item(std::string_view text, std::string_view all) {
  const size_t colon = std::min(text.find(':'), text.size());
  HcaFilter::Item item{std::string(text.substr(0, colon)), -1};
  bool ok = !item.device.empty();
  std::string_view digits = text.substr(std::min(colon + 1, text.size()));
  digits = digits.substr(0, digits.find(':'));
  if (!digits.empty()) {
    const char* const last = digits.data() + digits.size();
    const auto [end, error] = std::from_chars(digits.data(), last, item.port);
    ok = ok && error == std::errc() && end == last && item.port >= 1 && item.port <= 255;
  }
  if (!ok) {
    return fail(
        Code::config,
        strf("PRUNEX_IB_HCA=%.*s: \"%.*s\" is not device or device:port, as in "
             "mlx5_0,mlx5_1:1 (with ^ in front: all but these; with =: whole names)",
             static_cast<int>(all.size()), all.data(), static_cast<int>(text.size()), text.data()));
  }
  return item;
}

}  // namespace

Result<HcaFilter> parse_hca_filter(std::string_view text) {
  HcaFilter filter;
  std::string_view rest = text;
  filter.exclude = rest.starts_with('^');
  rest.remove_prefix(filter.exclude ? 1 : 0);
  filter.exact = rest.starts_with('=');
  rest.remove_prefix(filter.exact ? 1 : 0);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    if (comma > 0) {
      auto item = parse_item(rest.substr(0, comma), text);
      if (!item) {
        return tl::unexpected<Error>(item.error());
      }
      filter.items.push_back(*std::move(item));
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return filter;
}

}  // namespace prunex
