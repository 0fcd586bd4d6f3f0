// SPDX-License-Identifier: Apache-2.0
// Any bytes are refused or are the one encoding of what was read; and any facts make a valid world.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "topology/facts.h"
#include "topology/render.h"
#include "topology/world.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex::topo;
  const auto facts = decode_facts(std::as_bytes(std::span(data, size)));
  if (!facts) {
    return 0;
  }
  const std::string again = encode(*facts);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) {
    std::abort();
  }
  std::vector<RankFacts> all = {*facts, *facts};
  all[0].rank = 0;
  all[1].rank = 1;
  const auto world = make_world(all);
  if (!world || !prunex::topo::validate(*world)) {
    std::abort();
  }
  if (render_text({*world, all, {}}).empty() || render_svg({*world, all, {}}).empty()) {
    std::abort();
  }
  return 0;
}
