// SPDX-License-Identifier: Apache-2.0
// The conformance suite over the fake of libibverbs: plain, and with every limit narrow.
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

std::unique_ptr<Transport> open_plain() {
  return std::make_unique<FakeVerbsTransport>(std::vector{fake::plain_device()},
                                              FakeVerbsTransport::Setting{});
}

// Messages are cut often, nothing goes inline, the queues are short, and the counters wrap early.
std::unique_ptr<Transport> open_narrow() {
  fake::FakeDevice device = fake::plain_device();
  device.ports[0].max_msg = 1U << 20;
  device.max_inline = 0;
  device.max_qp_wr = 40;
  FakeVerbsTransport::Setting setting;
  setting.options.first_sequence = 0xFFFFFFFF - 20;
  return std::make_unique<FakeVerbsTransport>(std::vector{device}, setting);
}

// Registered memory, messages in stripes that arrive in any order.
template <size_t kPairs>
std::unique_ptr<Transport> open_pairs() {
  FakeVerbsTransport::Setting setting;
  setting.options.queue_pairs = kPairs;
  setting.options.split_from = 5000;
  setting.registers = true;
  setting.scatter = 0x5EED + kPairs;
  return std::make_unique<FakeVerbsTransport>(std::vector{fake::plain_device()}, setting);
}

// Two ports of unlike speed, three queue pairs each, little room in any of them.
std::unique_ptr<Transport> open_rails() {
  auto first = fake::device_in("rxe0", 1, 1), second = fake::device_in("rxe1", 2, 1);
  second.ports[0].speed = 1;
  for (auto* device : {&first, &second}) {
    device->ports[0].max_msg = 1U << 20;
    device->max_qp_wr = 40;
  }
  FakeVerbsTransport::Setting setting;
  setting.options.rails = {0, 1};
  setting.options.queue_pairs = 6;
  setting.options.split_from = 5000;
  setting.options.first_sequence = 0x7FFFFFFF - 20;
  setting.registers = true;
  setting.scatter = 77;
  return std::make_unique<FakeVerbsTransport>(std::vector{first, second}, setting);
}

// A real device, such as Soft-RoCE's. One that does not answer must not keep a test for ever.
std::unique_ptr<Transport> open_device() {
  VerbsOptions options;
  options.timeout = 14;
  options.retry_count = 6;
  auto t = open_verbs_transport(options);
  return t ? std::move(*t) : nullptr;
}

}  // namespace

// The fake is one process's, and a device's context does not survive a fork.
INSTANTIATE_TEST_SUITE_P(Verbs, Conformance,
                         testing::Values(Kind{"verbs_fake", open_plain, 12'000, false},
                                         Kind{"verbs_narrow", open_narrow, 12'000, false},
                                         Kind{"verbs_1_pair", open_pairs<1>, 12'000, false},
                                         Kind{"verbs_2_pairs", open_pairs<2>, 12'000, false},
                                         Kind{"verbs_4_pairs", open_pairs<4>, 12'000, false},
                                         Kind{"verbs_rails", open_rails, 12'000, false},
                                         Kind{"verbs_device", open_device, 12'000, false}),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace prunex::transport
