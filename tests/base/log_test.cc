// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <sstream>
#include <thread>
#include <vector>

namespace prunex {
namespace {

using testing::internal::CaptureStderr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStderr;
using testing::internal::GetCapturedStdout;

class Log : public testing::Test {
 protected:
  void TearDown() override {
    set_log_level(LogLevel::warn);
    set_log_rank(-1);
    set_log_sink(nullptr);
  }
};

TEST_F(Log, default_says_warnings_only_and_nothing_on_stdout) {
  CaptureStdout();
  CaptureStderr();
  PRUNEX_LOG(warn, "value %d", 7);
  PRUNEX_LOG(info, "not shown");
  set_log_rank(3);
  PRUNEX_LOG(warn, "two");
  set_log_level(LogLevel::trace);
  PRUNEX_LOG(info, "three");
  PRUNEX_LOG(trace, "four");
  set_log_level(LogLevel::none);
  PRUNEX_LOG(warn, "not shown");
  EXPECT_EQ(GetCapturedStderr(),
            "prunex WARN: value 7\nprunex WARN rank 3: two\nprunex INFO rank 3: three\n"
            "prunex TRACE rank 3: four\n");
  EXPECT_EQ(GetCapturedStdout(), "");
}

TEST_F(Log, arguments_are_not_evaluated_below_the_level) {
  int evaluated = 0;
  PRUNEX_LOG(trace, "%d", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Log, keeps_errno) {
  CaptureStderr();
  errno = ENOENT;
  PRUNEX_LOG(warn, "x");
  EXPECT_EQ(errno, ENOENT);
  GetCapturedStderr();
}

std::string g_seen;
TEST_F(Log, a_host_takes_the_messages_over) {
  g_seen.clear();
  set_log_sink([](LogLevel level, const char* file, int line, const char* text) {
    g_seen = std::string(text) + (level == LogLevel::warn ? " warn" : " ?") +
             (line > 0 && std::string_view(file).ends_with("log_test.cc") ? " here" : "");
  });
  CaptureStderr();
  PRUNEX_LOG(warn, "hello");
  EXPECT_EQ(GetCapturedStderr(), "");
  EXPECT_EQ(g_seen, "hello warn here");
}

TEST_F(Log, lines_of_threads_do_not_mix) {
  constexpr int kThreads = 4, kLines = 200;
  CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) {
        PRUNEX_LOG(warn, "%s", std::string(100, static_cast<char>('a' + t)).c_str());
      }
    });
  }
  for (std::thread& one : threads) {
    one.join();
  }
  std::istringstream lines(GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line, "prunex WARN: " + std::string(100, line.back()));
  }
  EXPECT_EQ(count, kThreads * kLines);
}

}  // namespace
}  // namespace prunex
