// SPDX-License-Identifier: Apache-2.0
// An environment of any bytes: "NAME=VALUE" lines, lines without '=' going to every grammar in
// turn.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "plugin/base/address.h"
#include "plugin/base/config.h"
#include "plugin/base/interfaces.h"

namespace {

using namespace prunex;  // NOLINT: a fuzz target is one function

void expect(bool truth) {
  if (!truth) {
    std::abort();
  }
}

bool one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos;
}

void grammars(const std::string& text) {
  if (const auto at = parse_host_port(text)) {
    expect(at->port != 0 && !at->host.empty());
    const auto again = parse_host_port(to_text(*at));
    expect(again && again->host == at->host && again->port == at->port);
  }
  if (const auto address = parse_address(text)) {
    const auto again = parse_address(to_text(*address));
    expect(again && same_host(*again, *address) && again->port() == address->port());
  }
  if (const auto range = parse_port_range(text)) {
    expect(range->lo <= range->hi && range->count() >= 0);
  }
  if (const auto filter = parse_interface_filter(text)) {
    expect(filter->names.empty() == text.empty());
    expect(filter->names.empty() || filter->matches(filter->names[0]) != filter->exclude);
  }
}

void load(const std::map<std::string, std::string>& set) {
  Environment environment;
  environment.lookup = [&set](std::string_view name) -> std::optional<std::string> {
    const auto found = set.find(std::string(name));
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
  for (const auto& [name, value] : set) {
    environment.names.push_back(name);
  }
  const auto loaded = load_config(environment);
  if (!loaded) {
    expect(one_line(loaded.error().text) && loaded.error().code == Code::config);
    return;
  }
  const Config& c = loaded->config;
  expect(loaded->values.size() == config_table().size());
  expect(c.timeout_s >= 0.1 && c.timeout_s <= 1e6);
  expect((c.rank < 0) == (c.size < 0) && c.rank < std::max(c.size, 0) + (c.size < 0));
  expect(c.streams >= 0 && c.rails >= 0 && c.chunk_bytes >= 0);
  for (const std::string& one : loaded->warnings) {
    expect(one_line(one));
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer wants it so
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  std::string_view rest(reinterpret_cast<const char*>(data), bytes);
  std::map<std::string, std::string> set;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      grammars(std::string(line));
    } else {
      set[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    }
  }
  load(set);
  return 0;
}
