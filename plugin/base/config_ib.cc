// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "plugin/base/address.h"
#include "plugin/base/config_parse.h"
#include "plugin/base/hca_filter.h"

namespace prunex {
namespace {

const char* parse_number(std::string_view text, int lo, int hi, int* out) {
  const bool hex = text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == 'x';
  const std::string_view digits = hex ? text.substr(2) : text;
  int value = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, ec] = std::from_chars(digits.data(), last, value, hex ? 16 : 10);
  if (ec != std::errc() || end != last || value < lo || value > hi || (hex && digits[0] == '-')) {
    return kNotInRange;
  }
  *out = value;
  return kOk;
}

constexpr int kMostQueuePairs = 128;  // NCCL's limit
constexpr int kMostPkey = 0xFFFF;

}  // namespace

const char* parse_transport(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, Choice>, 3> kChoices{
      {{"auto", Choice::automatic}, {"socket", Choice::socket}, {"verbs", Choice::verbs}}};
  return parse_choice(text, kChoices, &out.transport);
}

const char* parse_ib_disable(std::string_view text, Config& out) {
  int value = 0;
  const char* wrong = parse_number(text, 0, 1, &value);
  out.ib.disable = value != 0;
  return wrong;
}

const char* parse_nccl_ib_disable(std::string_view text, Config& out) {
  int value = 0;
  const char* wrong = parse_number(text, INT32_MIN, INT32_MAX, &value);  // any but 0
  out.ib.disable = value != 0;
  return wrong;
}

const char* parse_ib_hca(std::string_view text, Config& out) {
  if (!parse_hca_filter(text)) {
    return kNotInRange;
  }
  out.ib.hca = text;
  return kOk;
}

const char* parse_ib_gid_index(std::string_view text, Config& out) {
  return parse_number(text, -1, 65535, &out.ib.gid_index);
}
const char* parse_ib_gid_family(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, Family>, 3> kChoices{
      {{"any", Family::any}, {"AF_INET", Family::v4}, {"AF_INET6", Family::v6}}};
  return parse_choice(text, kChoices, &out.ib.gid_family);
}
const char* parse_ib_gid_range(std::string_view text, Config& out) {
  if (!text.empty() && !parse_address_range(text)) {
    return kNotInRange;
  }
  out.ib.gid_range = text;
  return kOk;
}
const char* parse_ib_roce_version(std::string_view text, Config& out) {
  return parse_number(text, 1, 2, &out.ib.roce_version);
}
const char* parse_ib_traffic_class(std::string_view text, Config& out) {
  return parse_number(text, -1, 255, &out.ib.traffic_class);
}
const char* parse_ib_service_level(std::string_view text, Config& out) {
  return parse_number(text, -1, 15, &out.ib.service_level);
}
const char* parse_ib_timeout(std::string_view text, Config& out) {
  return parse_number(text, 0, 31, &out.ib.timeout);
}
const char* parse_ib_retry_count(std::string_view text, Config& out) {
  return parse_number(text, 0, 7, &out.ib.retry_count);
}
const char* parse_ib_pkey(std::string_view text, Config& out) {
  return parse_number(text, -1, kMostPkey, &out.ib.pkey);
}

// There 0 is the default, and the first place of the table whatever is in it: the first valid one
// is the same wherever that would have worked.
const char* parse_nccl_ib_pkey(std::string_view text, Config& out) {
  const char* wrong = parse_number(text, 0, kMostPkey, &out.ib.pkey);
  if (wrong == kOk && out.ib.pkey == 0) {
    out.ib.pkey = -1;
  }
  return wrong;
}

const char* parse_ib_qps(std::string_view text, Config& out) {
  return parse_number(text, 1, kMostQueuePairs, &out.ib.queue_pairs);
}
const char* parse_ib_relaxed_ordering(std::string_view text, Config& out) {
  return parse_number(text, 0, 2, &out.ib.relaxed_ordering);
}

}  // namespace prunex
