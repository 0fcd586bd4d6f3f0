// SPDX-License-Identifier: Apache-2.0
// Finding the CUDA library and NCCL: what is missing or does not fit is said with both names.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin/base/process.h"
#include "plugin/device/backend.h"
#include "plugin/device/cuda_library.h"

namespace prunex::device {
namespace {

const std::string kLibraries = PRUNEX_TEST_LIBRARIES;

std::string library(const char* name) { return kLibraries + "/lib" + name + ".so"; }

void expect_unsupported(const Result<const cuda::Table*>& opened,
                        const std::vector<std::string>& words) {
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::unsupported);
  for (const std::string& word : words) {
    EXPECT_NE(opened.error().text.find(word), std::string::npos) << opened.error().text;
  }
}

TEST(CudaLibrary, WithoutADriverItSaysSo) {
  expect_unsupported(open_cuda({"libcuda-that-is-not-there.so.1", library("cuda_fits")}),
                     {"no CUDA driver", "libcuda-that-is-not-there.so.1"});
}

TEST(CudaLibrary, AnOldDriverIsNamedWithItsVersion) {
  expect_unsupported(open_cuda({library("driver_10_2"), library("cuda_fits")}),
                     {"driver_10_2", "10.2", "11.0"});
}

TEST(CudaLibrary, ADriverOlderThanTheBuildIsNamedWithBothVersions) {
  expect_unsupported(open_cuda({library("driver_12_4"), library("cuda_fits")}),
                     {"cuda_fits", "13.0", "driver_12_4", "12.4"});
}

TEST(CudaLibrary, AMissingLibraryIsNamedWithOurs) {
  expect_unsupported(open_cuda({library("driver_13_0"), kLibraries + "/nothing-here.so"}),
                     {"libprunex-cuda.so", "nothing-here.so"});
}

TEST(CudaLibrary, AnotherTableNamesBothFiles) {
  expect_unsupported(open_cuda({library("driver_13_0"), library("cuda_misfit")}),
                     {"cuda_misfit", "library_test", "table version 99", "install both"});
  expect_unsupported(open_cuda({library("driver_13_0"), library("cuda_null")}),
                     {"cuda_null", "library_test", "no such table"});
  expect_unsupported(open_cuda({library("driver_13_0"), library("driver_13_0")}),
                     {"not a library of ours"});
}

TEST(CudaLibrary, AMachineWithoutGpuIsNotUsed) {
  expect_unsupported(open_cuda({library("driver_13_0"), library("cuda_no_gpu")}), {"finds no GPU"});
}

TEST(CudaLibrary, OneThatFitsIsOpened) {
  const auto opened = open_cuda({library("driver_13_0"), library("cuda_fits")});
  ASSERT_TRUE(opened) << opened.error().text;
  EXPECT_EQ((*opened)->version, cuda::kTableVersion);
}

TEST(CudaLibrary, OfAnotherReleaseItIsUsedAndSaidOnce) {
  testing::internal::CaptureStderr();
  const auto opened = open_cuda({library("driver_13_0"), library("cuda_other_release")});
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(opened) << opened.error().text;
  EXPECT_STREQ(release_of(**opened), "9.9.9");
  EXPECT_FALSE(same_release(**opened));
  EXPECT_NE(said.find("cuda_other_release.so is of release 9.9.9"), std::string::npos) << said;
  EXPECT_NE(said.find("install both files from one build"), std::string::npos) << said;
  testing::internal::CaptureStderr();
  EXPECT_TRUE(open_cuda({library("driver_13_0"), library("cuda_fits")}));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(CudaLibrary, ItIsLookedForBesideTheLibraryThatAJobUses) {
  expect_unsupported(open_cuda({library("driver_13_0"), "", "/nowhere/at-all/plugin/libprunex.so"}),
                     {"beside /nowhere/at-all/plugin/libprunex.so"});
}

// A framework that brings it may be imported later.
TEST(NcclLibrary, WhatWasNotFoundIsLookedForAgain) {
  if (nccl_api()) {
    GTEST_SKIP() << "it is found at once here";
  }
  ASSERT_NE(::dlopen(PRUNEX_STANDIN_NCCL, RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  const auto found = nccl_api();
  ASSERT_TRUE(found) << found.error().text;
  EXPECT_EQ(*nccl_api(), *found);
}

TEST(CudaErrors, InAForkedChildTheySayWhatToDo) {
  (void)forks();
  cuda::Table table{};
  table.error_text = [](int) { return "initialization error"; };
  constexpr int kNotInitialised = 3;
  const auto here = check_cuda(table, kNotInitialised, "memory");
  ASSERT_FALSE(here);
  EXPECT_EQ(here.error().code, Code::system);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto there = check_cuda(table, kNotInitialised, "memory");
    ::_exit(!there && there.error().code == Code::unsupported &&
                    there.error().text.find("forked") != std::string::npos &&
                    there.error().text.find("'spawn'") != std::string::npos
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(NcclLibrary, WhatIsMissingIsNamed) {
  const auto absent = open_nccl(kLibraries + "/libnccl-not-here.so.2");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Code::unsupported);
  EXPECT_NE(absent.error().text.find("libnccl-not-here.so.2"), std::string::npos);
  const auto foreign = open_nccl(library("driver_13_0"));
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().text.find("ncclAllReduce"), std::string::npos) << foreign.error().text;
}

TEST(NcclLibrary, VersionsAreReadable) {
  EXPECT_EQ(nccl_version_text(22700), "2.27.0");
  EXPECT_EQ(nccl_version_text(22903), "2.29.3");
  EXPECT_EQ(nccl_version_text(2803), "2.8.3");
}

TEST(NcclLibrary, TheStandInHasAll) {
  const auto api = open_nccl(PRUNEX_STANDIN_NCCL);
  ASSERT_TRUE(api) << api.error().text;
  EXPECT_EQ(api->version, 22700);
  EXPECT_NE(api->CommSplit, nullptr);
  EXPECT_NE(api->file.find("libnccl.so.2"), std::string::npos);
}

TEST(Places, HostMemoryNeedsNoCuda) {
  float here[4] = {};
  const auto place = place_of(here, here + 1);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->memory, Memory::host);
}

}  // namespace
}  // namespace prunex::device
