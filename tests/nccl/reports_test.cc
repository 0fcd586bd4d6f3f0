// SPDX-License-Identifier: Apache-2.0
// What users of such plugins reported, by id.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "plugin/nccl/abi/tuner.h"
#include "tests/nccl/pipe.h"

namespace prunex::nccl::host {
namespace {

// Slots that NCCL calls without looking: all but these may not be NULL.
void must_be_complete(const void* table, size_t bytes, const std::vector<size_t>& optional,
                      const std::string& name) {
  const auto* const slots = static_cast<void* const*>(table);
  for (size_t i = 0; i < bytes / sizeof(void*); ++i) {
    const bool may_miss = std::find(optional.begin(), optional.end(), i) != optional.end();
    PRUNEX_MUST(slots[i] != nullptr || may_miss, "slot %zu of %s is NULL", i, name.c_str());
  }
}

TEST(Reports, A3_every_table_is_there_and_complete) {
  PRUNEX_EXPECT_WELL(in_child([] {
    void* const plugin = load_plugin(plugin_path());
    constexpr size_t kNet[] = {136, 152, 152, 160, 160, 176, 176};
    constexpr size_t kColl[] = {120, 120, 136, 144, 144, 152, 152};
    for (size_t i = 0; i < 7; ++i) {
      const std::string version = "_v" + std::to_string(6 + i);
      // getDeviceMr, irecvConsumed, makeVDevice
      must_be_complete(symbol(plugin, "ncclNetPlugin" + version), kNet[i], {17, 18, 19}, version);
      must_be_complete(symbol(plugin, "ncclCollNetPlugin" + version), kColl[i],
                       i >= 3 ? std::vector<size_t>{17} : std::vector<size_t>{}, version);
    }
    for (int version = 2; version <= 6; ++version) {
      const std::string name = "ncclTunerPlugin_v" + std::to_string(version);
      must_be_complete(symbol(plugin, name), version < 6 ? 32 : 40, {4}, name);
    }
  }));
}

TEST(Reports, A3_two_versions_at_once_in_one_process) {
  PRUNEX_EXPECT_WELL(in_child([] {
    std::string said[2];
    const auto run = [&](int version, std::string& failed) {
      try {
        Pipe pipe(version);
        for (uint32_t i = 0; i < 8; ++i) {
          pipe.exchange(pattern(size_t{1} << 20, i, i % 2 == 1));
        }
        pipe.close();
      } catch (const std::exception& e) {
        failed = e.what();
      }
    };
    std::thread eight([&] { run(8, said[0]); });
    std::thread eleven([&] { run(11, said[1]); });
    eight.join();
    eleven.join();
    PRUNEX_MUST(said[0].empty() && said[1].empty(), "%s %s", said[0].c_str(), said[1].c_str());
    for (const char* version : {"ncclNet_v8 ", "ncclNet_v11 "}) {
      size_t lines = 0;
      for (const LogLine& line : log_lines(abi::kLogInfo)) {
        lines += line.text.find(version) != std::string::npos ? 1 : 0;
      }
      PRUNEX_MUST(lines == 1, "%s is named in %zu lines", version, lines);
    }
  }));
}

TEST(Reports, A5_no_logger) {
  PRUNEX_EXPECT_WELL(in_child([] {
    for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
      const auto net = open_net(load_plugin(plugin_path()), version);
      PRUNEX_MUST(net->init(1, -1, nullptr) == kSuccess);
      Properties unused;
      PRUNEX_MUST(net->properties(-1, &unused) != kSuccess, "what would be logged is not");
      PRUNEX_MUST(net->finalize() == kSuccess);
    }
  }));
}

TEST(Reports, A5_the_logger_is_called_as_nccl_declares_it) {
  PRUNEX_EXPECT_WELL(in_child([] {
    ::setenv("NCCL_DEBUG", "TRACE", 1);
    Pipe pipe(12);
    pipe.exchange(pattern(1000000, 1, true));
    Properties unused;
    PRUNEX_MUST(pipe.sender->properties(-1, &unused) != kSuccess);
    pipe.close();
    PRUNEX_MUST(!log_lines(abi::kLogWarn).empty() && !log_lines(abi::kLogInfo).empty());
    PRUNEX_MUST(log_faults().empty(), "%s", log_faults().c_str());
  }));
}

HostNet* late_net;
void *late_send, *late_recv, *late_request;
Bytes* late_room;

void call_after_exit() {
  void* request = nullptr;
  int done = 0;
  (void)late_net->test(late_request, &done, nullptr);
  (void)late_net->isend(late_send, late_room->data(), 100, 0, nullptr, &request);
  if (request != nullptr) {
    (void)late_net->test(request, &done, nullptr);
  }
  (void)late_net->close_send(late_send);
  (void)late_net->close_recv(late_recv);
  (void)late_net->finalize();
  (void)late_net->finalize();
  (void)late_net->init(9, -1, nullptr);
}

TEST(Reports, A10_calls_after_exit_handlers) {
  for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
    PRUNEX_EXPECT_WELL(in_child([=] {
      const pid_t pid = ::fork();
      if (pid == 0) {
        std::atexit(call_after_exit);  // runs after whatever the plugin registers
        auto* const pipe = new Pipe(version);
        late_net = pipe->sender.get();
        late_send = pipe->send;
        late_recv = pipe->recv;
        late_room = new Bytes(1000);
        late_request = pipe->irecv(*late_room);
        std::exit(0);
      }
      int status = 0;
      ::waitpid(pid, &status, 0);
      PRUNEX_MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    }));
  }
}

TEST(Reports, A12_beside_a_library_with_equal_names) {
  PRUNEX_EXPECT_WELL(in_child([] {
    PRUNEX_MUST(::dlopen(PRUNEX_CLASH_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr, "%s",
                ::dlerror());
    for (const int version : {6, 12}) {
      Pipe pipe(version);
      pipe.exchange(pattern(300000, 1, true));
      pipe.close();
    }
  }));
}

// Bytes that a body wrote to stdout and stderr.
std::pair<size_t, size_t> written_by(const std::function<void()>& body) {
  char out[] = "/tmp/prunex-nccl-out-XXXXXX", err[] = "/tmp/prunex-nccl-err-XXXXXX";
  const int to[2] = {::mkstemp(out), ::mkstemp(err)};
  ::unlink(out);
  ::unlink(err);
  std::fflush(nullptr);
  const int kept[2] = {::dup(1), ::dup(2)};
  ::dup2(to[0], 1);
  ::dup2(to[1], 2);
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  std::fflush(nullptr);
  ::dup2(kept[0], 1);
  ::dup2(kept[1], 2);
  struct stat sizes[2];
  ::fstat(to[0], &sizes[0]);
  ::fstat(to[1], &sizes[1]);
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
  return {static_cast<size_t>(sizes[0].st_size), static_cast<size_t>(sizes[1].st_size)};
}

TEST(Reports, A13_nothing_on_stdout_and_nothing_on_stderr_when_all_is_well) {
  for (const char* level : {"", "INFO", "TRACE"}) {
    for (const bool with_logger : {true, false}) {
      PRUNEX_EXPECT_WELL(in_child([=] {
        ::unsetenv("PRUNEX_DEBUG");
        *level == '\0' ? ::unsetenv("NCCL_DEBUG") : ::setenv("NCCL_DEBUG", level, 1);
        const auto [out, err] = written_by([=] {
          const auto net = open_net(load_plugin(plugin_path()), 12);
          PRUNEX_MUST(net->init(3, -1, with_logger ? log_from_plugin : nullptr) == kSuccess);
          Pipe pipe(12);
          pipe.exchange(pattern(1000000, 1, true));
          pipe.close();
          PRUNEX_MUST(net->finalize() == kSuccess);
        });
        PRUNEX_MUST(out == 0, "%zu bytes on stdout", out);
        PRUNEX_MUST(err == 0 || *level != '\0', "%zu bytes on stderr", err);
      }));
    }
  }
}

size_t entries_of(const char* folder) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator(folder)) {
    ++n;
  }
  return n;
}

TEST(Reports, A14_no_devices_then_some) {
  for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
    PRUNEX_EXPECT_WELL(in_child([=] {
      std::string none = "^";
      struct if_nameindex* const all = ::if_nameindex();
      for (const struct if_nameindex* one = all; one->if_name != nullptr; ++one) {
        none.append(none.size() > 1 ? "," : "").append(one->if_name);
      }
      ::if_freenameindex(all);
      const auto net = open_net(load_plugin(plugin_path()), version);
      const size_t fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
      ::setenv("PRUNEX_SOCKET_IFNAME", none.c_str(), 1);
      for (int round = 0; round < 3; ++round) {
        int count = 0;
        const bool usable = net->init(1, -1, log_from_plugin) == kSuccess &&
                            net->devices(&count) == kSuccess && count > 0;
        PRUNEX_MUST(!usable, "%d devices with %s", count, none.c_str());
        PRUNEX_MUST(net->finalize() == kSuccess);
      }
      PRUNEX_MUST(!log_lines(abi::kLogWarn).empty(), "one line says why");
      PRUNEX_MUST(entries_of("/proc/self/fd") == fds, "descriptors are left open");
      PRUNEX_MUST(entries_of("/proc/self/task") == threads, "threads are left running");
      ::unsetenv("PRUNEX_SOCKET_IFNAME");
      Pipe pipe(version);
      pipe.exchange(pattern(100000, 1));
      pipe.close();
    }));
  }
}

// Lines of this level that hold the text.
size_t lines_with(abi::LogLevel level, const std::string& text) {
  size_t n = 0;
  for (const LogLine& line : log_lines(level)) {
    n += line.text.find(text) != std::string::npos ? 1 : 0;
  }
  return n;
}

TEST(Reports, A20_what_cannot_be_understood_is_an_error) {
  for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
    PRUNEX_EXPECT_WELL(in_child([=] {
      const auto net = open_net(load_plugin(plugin_path()), version);
      ::setenv("PRUNEX_STREAMS", "abc", 1);
      PRUNEX_MUST(net->init(1, -1, log_from_plugin) != kSuccess);
      PRUNEX_MUST(lines_with(abi::kLogWarn, "PRUNEX_STREAMS=abc") == 1);
      ::unsetenv("PRUNEX_STREAMS");
      PRUNEX_MUST(net->init(1, -1, log_from_plugin) == kSuccess);
      PRUNEX_MUST(net->finalize() == kSuccess);
    }));
  }
}

TEST(Reports, A20_unknown_names_are_told_with_the_nearest) {
  PRUNEX_EXPECT_WELL(in_child([] {
    ::setenv("PRUNX_STREAMS", "2", 1);
    ::setenv("PRUNEX_STREAMZ", "2", 1);
    Pipe pipe(12);
    pipe.close();
    PRUNEX_MUST(lines_with(abi::kLogWarn, "PRUNX_STREAMS is set") == 1);
    PRUNEX_MUST(lines_with(abi::kLogWarn, "PRUNEX_STREAMZ is set") == 1);
    PRUNEX_MUST(lines_with(abi::kLogWarn, "PRUNEX_STREAMS") == 2, "both name the nearest");
    PRUNEX_MUST(log_lines(abi::kLogWarn).size() == 2, "one line each, in the whole process");
  }));
}

TEST(Reports, A20_what_is_set_is_listed_with_its_origin) {
  PRUNEX_EXPECT_WELL(in_child([] {
    ::setenv("NCCL_DEBUG", "INFO", 1);
    ::setenv("PRUNEX_STREAMS", "2", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    Pipe pipe(12);
    pipe.close();
    PRUNEX_MUST(lines_with(abi::kLogInfo, "PRUNEX_STREAMS=2") == 1);
    PRUNEX_MUST(lines_with(abi::kLogInfo, "NCCL_SOCKET_IFNAME") == 1, "where it came from");
  }));
}

TEST(Reports, A20_a_tuner_that_does_not_exist_is_an_error) {
  PRUNEX_EXPECT_WELL(in_child([] {
    ::setenv("PRUNEX_TUNER", "simpel", 1);
    void* const plugin = load_plugin(plugin_path());
    const auto& t = *static_cast<const abi::TunerV5*>(symbol(plugin, "ncclTunerPlugin_v5"));
    void* ctx = nullptr;
    PRUNEX_MUST(t.init(&ctx, 1, 2, 2, log_from_plugin, nullptr, nullptr) != kSuccess);
    ::setenv("PRUNEX_TUNER", "simple", 1);
    PRUNEX_MUST(t.init(&ctx, 1, 2, 2, log_from_plugin, nullptr, nullptr) == kSuccess);
    std::array<float, 21> costs;
    costs.fill(1);
    PRUNEX_MUST(t.get_coll_info(ctx, abi::kAllReduce, size_t{64} << 20, 1,
                                reinterpret_cast<float**>(costs.data()), 7, 3, 0,
                                nullptr) == kSuccess);
    PRUNEX_MUST(costs[abi::kLl] > costs[abi::kSimple]);
  }));
}

}  // namespace
}  // namespace prunex::nccl::host
