// SPDX-License-Identifier: Apache-2.0
// Which GPUs a build covers, by CUDA's rules of compatibility.
#include <gtest/gtest.h>

#include "plugin/device/architectures.h"

namespace prunex::device {
namespace {

TEST(Coverage, MachineCodeRunsOnLaterMinorVersionsOnly) {
  EXPECT_EQ(coverage_of("90", 90), Coverage::binary);
  EXPECT_EQ(coverage_of("80 90", 86), Coverage::binary);
  EXPECT_EQ(coverage_of("80 90", 89), Coverage::binary);
  EXPECT_EQ(coverage_of("100", 103), Coverage::binary);
  EXPECT_EQ(coverage_of("90", 80), Coverage::none);
  EXPECT_EQ(coverage_of("86 90", 80), Coverage::none);
  EXPECT_EQ(coverage_of("80", 75), Coverage::none);
}

TEST(Coverage, TheLastOnesIntermediateCodeIsForAllNewer) {
  EXPECT_EQ(coverage_of("90", 100), Coverage::intermediate);
  EXPECT_EQ(coverage_of("80 90", 120), Coverage::intermediate);
  EXPECT_EQ(coverage_of("80", 90), Coverage::intermediate);
}

TEST(Coverage, SuffixesNarrowIt) {
  EXPECT_EQ(coverage_of("90a", 90), Coverage::binary);
  EXPECT_EQ(coverage_of("90a", 100), Coverage::none);
  EXPECT_EQ(coverage_of("100a", 103), Coverage::none);
  EXPECT_EQ(coverage_of("100f", 103), Coverage::binary);
  EXPECT_EQ(coverage_of("100f", 120), Coverage::none);
}

TEST(Coverage, WhatIsNotKnownIsNotRefused) {
  EXPECT_EQ(coverage_of("", 90), Coverage::binary);
  cuda::Table table{};
  EXPECT_EQ(covered_text(table), "unknown");
  table.archs = "80 90";
  EXPECT_EQ(covered_text(table), "sm_80 sm_90 (and newer)");
  table.archs = "90a";
  EXPECT_EQ(covered_text(table), "sm_90a");
}

cuda::Table of_a_new_gpu(int (*probe)(cuda::Probe*)) {
  cuda::Table table{};
  table.archs = "90";
  table.probe = probe;
  table.device_facts = [](int, cuda::DeviceFacts* out) {
    *out = {};
    out->arch = 100;
    return 0;
  };
  return table;
}

TEST(Coverage, AnOlderDriverCompilesNothingForANewGpu) {
  const auto older = of_a_new_gpu([](cuda::Probe* out) {
    *out = {1, 13000, 13010, 0};
    return 0;
  });
  const auto refused = check_architecture(older, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  for (const char* word :
       {"GPU 0", "sm_100", "sm_90", "13.0", "13.1", "update the driver", "-Dnvcc_archs=100"}) {
    EXPECT_NE(refused.error().text.find(word), std::string::npos) << refused.error().text;
  }
  const auto as_new = of_a_new_gpu([](cuda::Probe* out) {
    *out = {1, 13010, 13010, 0};
    return 0;
  });
  EXPECT_TRUE(check_architecture(as_new, 0));
}

}  // namespace
}  // namespace prunex::device
