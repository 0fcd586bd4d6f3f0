// SPDX-License-Identifier: Apache-2.0
// The conformance suite over the fake of libibverbs: plain, and with every limit narrow.
#include "tests/transport/conformance.h"
#include "tests/transport/verbs_pair.h"

namespace prunex::transport {
namespace {

std::unique_ptr<Transport> open_plain() {
  return std::make_unique<FakeVerbsTransport>(fake::plain_device());
}

// Messages are cut often, nothing goes inline, the queues are short, and the counters wrap early.
std::unique_ptr<Transport> open_narrow() {
  fake::FakeDevice device = fake::plain_device();
  device.ports[0].max_msg = 1U << 20;
  device.max_inline = 0;
  device.max_qp_wr = 40;
  VerbsOptions options;
  options.first_sequence = 0xFFFFFFFF - 20;
  return std::make_unique<FakeVerbsTransport>(device, options);
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
                                         Kind{"verbs_device", open_device, 12'000, false}),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace prunex::transport
