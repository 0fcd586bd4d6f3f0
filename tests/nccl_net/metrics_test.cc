// SPDX-License-Identifier: Apache-2.0
// The metrics file: Prometheus' text, replaced as a whole, counters that never go back.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "plugin/base/log.h"
#include "plugin/nccl/stats.h"
#include "tests/nccl_net/pair.h"
#include "tests/nccl_net/tensor.h"

namespace prunex::nccl {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// The value of a metric with its labels; -1: not there.
double value_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + " ", 0) == 0) {
      return std::stod(line.substr(name.size() + 1));
    }
  }
  return -1;
}

struct Folder {
  Folder() {
    char name[] = "/tmp/prunex-metrics-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path;
};

TEST(Metrics, the_file_is_there_when_a_communicator_has_closed) {
  const Folder folder;
  const std::string pattern = (folder.path / "prunex-%p.prom").string();
  const Variable file("PRUNEX_METRICS_FILE", pattern.c_str());
  const auto path = folder.path / ("prunex-" + std::to_string(::getpid()) + ".prom");
  const char* kSent = "prunex_net_messages_total{direction=\"sent\",kind=\"zero_block\"}";
  double before = 0;
  {
    NetPair pair;
    EXPECT_TRUE(std::filesystem::exists(path)) << "not from the start";
    before = value_of(contents(path), kSent);
    ASSERT_GE(before, 0);
    for (int i = 0; i < 3; ++i) {
      pair.exchange(std::vector<std::byte>(100'000));
    }
  }
  const std::string text = contents(path);
  EXPECT_EQ(value_of(text, kSent), before + 3);
  // Nothing else lies beside it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path), {}), 1);
  const std::regex sample(R"(prunex_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9]+)");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.rfind("# HELP ", 0) == 0 || line.rfind("# TYPE ", 0) == 0 ||
                std::regex_match(line, sample))
        << line;
  }
}

TEST(Metrics, masks_are_named_and_stay_when_their_communicator_is_gone) {
  const char* kWire = "prunex_mask_wire_bytes_total{mask=\"conv.weight\"}";
  double before = 0;
  {
    NetPair pair(77);
    Tensor tensor(4);
    pair.exchange(tensor.data.data(), tensor.data.size());
    before = value_of(metrics_text(), kWire);
    EXPECT_GT(before, 0);
  }
  const NetPair another(78);
  EXPECT_EQ(value_of(metrics_text(), kWire), before);
}

TEST(Metrics, a_path_that_cannot_be_written_is_said_once) {
  static int warnings = 0;
  warnings = 0;
  const Variable file("PRUNEX_METRICS_FILE", "/nonexistent/prunex.prom");
  set_log_sink([](LogLevel level, const char*, int, const char* text) {
    warnings += level == LogLevel::warn && std::strstr(text, "/nonexistent/prunex.prom") != nullptr;
  });
  {
    NetPair pair;
    pair.exchange(std::vector<std::byte>(1000));
  }
  set_log_sink(nullptr);
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace prunex::nccl
