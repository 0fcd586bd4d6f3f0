// SPDX-License-Identifier: Apache-2.0
// A plugin beside a library of another build: NCCL goes on without it, and one line says why.
#include <gtest/gtest.h>

#include "plugin/nccl/abi/tuner.h"
#include "tests/nccl/fake/under_fake.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::fake {
namespace {

void misfit(const std::function<void(Fake&)>& spoil) {
  PRUNEX_EXPECT_WELL(under_fake([&](void* plugin, Fake& fake) {
    spoil(fake);
    for (int version = abi::kNewest; version >= abi::kOldest; --version) {
      const auto net = host::open_net(plugin, version);
      PRUNEX_MUST(net->init(1, -1, host::log_from_plugin) != kSuccess);
      PRUNEX_MUST(net->finalize() == kSuccess);
      const auto coll = host::open_coll(plugin, version);
      PRUNEX_MUST(coll->init(1, host::log_from_plugin) != kSuccess);
      void* comm = nullptr;
      host::Handle handle{};
      PRUNEX_MUST(net->listen(0, handle, &comm) != kSuccess && comm == nullptr);
    }
    PRUNEX_MUST(fake.calls.empty(), "nothing of a table that does not fit is called");
    const auto warnings = host::log_lines(abi::kLogWarn);
    PRUNEX_MUST(warnings.size() == 1, "%zu warnings", warnings.size());
    const std::string& text = warnings[0].text;
    PRUNEX_MUST(text.find("libnccl-net-prunex.so") != std::string::npos, "%s", text.c_str());
    PRUNEX_MUST(text.find(PRUNEX_FAKE_LIBRARY) != std::string::npos, "%s", text.c_str());
    PRUNEX_MUST(text.find("install") != std::string::npos, "%s", text.c_str());
    PRUNEX_MUST(host::log_faults().empty());
  }));
}

TEST(Misfit, no_table) {
  misfit([](Fake& fake) { fake.no_table = true; });
}
TEST(Misfit, another_size) {
  misfit([](Fake& fake) { fake.bytes -= 8; });
}
TEST(Misfit, another_version) {
  misfit([](Fake& fake) { fake.version += 1; });
}

TEST(Misfit, the_tuner_leaves_all_as_it_is) {
  PRUNEX_EXPECT_WELL(under_fake([&](void* plugin, Fake& fake) {
    fake.version += 1;
    fake.tuner_mode = 2;
    const auto& t = *static_cast<const abi::TunerV5*>(host::symbol(plugin, "ncclTunerPlugin_v5"));
    void* ctx = nullptr;
    PRUNEX_MUST(t.init(&ctx, 1, 2, 2, host::log_from_plugin, nullptr, nullptr) == kSuccess);
    PRUNEX_MUST(fake.calls.empty());
  }));
}

}  // namespace
}  // namespace prunex::nccl::fake
