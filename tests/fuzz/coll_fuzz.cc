// SPDX-License-Identifier: Apache-2.0
// What CollNet nodes tell each other: any bytes are refused, or read as a head whose parts lie
// inside the message; the verdict about any such messages needs nothing that is not there.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "plugin/nccl/coll/blocks.h"
#include "plugin/nccl/coll/head.h"
#include "plugin/nccl/coll/verdict.h"

using namespace prunex;
using namespace prunex::nccl::coll;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  // Two nodes' messages: the first byte says where the second begins.
  const auto all = std::as_bytes(std::span(data + 1, size - 1));
  const size_t cut = data[0] * all.size() / 255;
  std::vector<CollMessage> messages;
  for (const auto bytes : {all.first(cut), all.subspan(cut)}) {
    const auto header = collective::decode_call(bytes);
    if (!header) {
      return 0;
    }
    const auto payload = bytes.subspan(collective::CallHeader::kWireBytes);
    const auto message = decode(*header, payload);
    if (!message) {
      return 0;
    }
    if (CollHead::kWireBytes + message->map.size() + message->data.size() != payload.size()) {
      std::abort();
    }
    BlockMap map = make_block_map(128 * 100, 128);
    if (merge_map(map, message->map) && map.kept_bytes() > map.bytes) {
      std::abort();
    }
    messages.push_back(*message);
  }
  const Verdict v = decide(messages);
  if (!v.error && v.inlined && messages[0].data.size() != messages[1].data.size()) {
    std::abort();
  }
  return 0;
}
