// SPDX-License-Identifier: Apache-2.0
// The metrics file: Prometheus' text, replaced as a whole, counters that never go back.
#include <unistd.h>

#include <filesystem>
#include <fstream>
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

// name{label="text",...} number
bool is_sample(const std::string& line) {
  const size_t space = line.rfind(' ');
  const size_t labels = std::min(line.find('{'), space);
  if (space == std::string::npos || line.rfind("prunex_", 0) != 0 ||
      line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != labels ||
      line.find_first_not_of("0123456789", space + 1) != std::string::npos ||
      space + 1 == line.size()) {
    return false;
  }
  const auto quotes = std::count(line.begin(), line.end(), '"');
  const auto equals = std::count(line.begin(), line.end(), '=');
  return labels == space ? quotes == 0
                         : line[space - 1] == '}' && equals > 0 && quotes == 2 * equals;
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
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.rfind("# HELP ", 0) == 0 || line.rfind("# TYPE ", 0) == 0 || is_sample(line))
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
