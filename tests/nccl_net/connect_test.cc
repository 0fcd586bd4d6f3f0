// SPDX-License-Identifier: Apache-2.0
// Handles, hellos and arguments that are wrong; comms on several threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "plugin/nccl/net/connect.h"
#include "plugin/transport/bytes.h"
#include "tests/nccl_net/pair.h"

namespace prunex::nccl {
namespace {

class Heard {  // what the log said
 public:
  Heard() {
    text().clear();
    set_log_sink(
        [](LogLevel, const char*, int, const char* line) { text() += std::string(line) + "\n"; });
  }
  ~Heard() { set_log_sink(nullptr); }
  [[nodiscard]] bool has(const char* part) const { return text().find(part) != std::string::npos; }
  static std::string& text() {
    static std::string all;
    return all;
  }
};

using Handle = std::array<std::byte, kHandleBytes>;

TEST(Handles, what_is_no_handle_is_told) {
  Handle handle{};
  ASSERT_TRUE(write_handle("transport's", handle));
  EXPECT_EQ(*read_handle(handle), "transport's");
  Handle zeros{};
  ASSERT_FALSE(read_handle(zeros));
  EXPECT_NE(read_handle(zeros).error().text.find("NCCL_NET_PLUGIN=prunex"), std::string::npos);
  Handle newer = handle;
  newer[4] = std::byte{kNetVersion + 1};
  ASSERT_FALSE(read_handle(newer));
  EXPECT_NE(read_handle(newer).error().text.find("version 2"), std::string::npos)
      << read_handle(newer).error().text;
  for (const int length : {0, 121, 255}) {
    Handle damaged = handle;
    damaged[6] = static_cast<std::byte>(length);
    EXPECT_FALSE(read_handle(damaged)) << length;
  }
  EXPECT_FALSE(write_handle(std::string(121, 'x'), handle));
  EXPECT_TRUE(write_handle(std::string(120, 'x'), handle));
}

TEST(Handles, random_bytes_are_an_error_and_nothing_else) {
  NetPair pair;
  const Heard heard;
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Handle handle;
    std::memcpy(handle.data(), pair.handle, handle.size());
    const size_t from = i % 2 == 0 ? 0 : 8;  // with the right beginning too
    for (size_t b = from; b < from + 24; ++b) {
      handle[b] = static_cast<std::byte>(random());
    }
    void* comm = nullptr;
    EXPECT_NE(net_calls().connect(pair.ctx, 0, handle.data(), &comm), kSuccess);
    EXPECT_EQ(comm, nullptr);
  }
  pair.exchange(std::vector<std::byte>(1000, std::byte{5}));
}

TEST(Hellos, another_version_is_told_and_names_both) {
  NetHello mine;
  ASSERT_TRUE(decode_net_hello(encode(mine), Tuner::off));
  NetHello theirs = mine;
  theirs.version = 7;
  const auto other = decode_net_hello(encode(theirs), Tuner::off);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().text.find("version 7"), std::string::npos) << other.error().text;
  EXPECT_NE(other.error().text.find("version 1"), std::string::npos) << other.error().text;
  for (size_t n = 0; n < 12; ++n) {
    EXPECT_FALSE(decode_net_hello(encode(mine).substr(0, n), Tuner::off)) << n;
  }
  EXPECT_FALSE(decode_net_hello("hello, world", Tuner::off));
}

// Tuners that differ make NCCL choose differently, which hangs: it must be an error before.
TEST(Hellos, another_tuner_is_told_and_names_both) {
  NetHello theirs;
  theirs.tuner = Tuner::collnet;
  EXPECT_TRUE(decode_net_hello(encode(theirs), Tuner::collnet));
  const auto other = decode_net_hello(encode(theirs), Tuner::simple);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().text.find("PRUNEX_TUNER=collnet, this rank simple"), std::string::npos)
      << other.error().text;
  std::string damaged = encode(theirs);
  damaged[8] = 9;
  EXPECT_FALSE(decode_net_hello(damaged, Tuner::off));
}

TEST(Contexts, init_again_and_finalize_of_nothing) {
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(net_calls().init(&a, 1, -1, nullptr), kSuccess);
  ASSERT_EQ(net_calls().init(&b, 2, 3, nullptr), kSuccess);
  EXPECT_NE(a, b);
  EXPECT_EQ(net_calls().finalize(a), kSuccess);
  EXPECT_EQ(net_calls().finalize(a), kSuccess) << "stale";
  EXPECT_EQ(net_calls().finalize(nullptr), kSuccess);
  int count = 0;
  EXPECT_EQ(net_calls().devices(&count), kSuccess) << "the other one is still there";
  EXPECT_GT(count, 0);
  EXPECT_EQ(net_calls().finalize(b), kSuccess);
}

TEST(Contexts, configuration_is_read_anew_by_the_first_one) {
  const Heard heard;
  void* ctx = nullptr;
  {
    const Variable name("PRUNEX_SOCKET_IFNAME", "eth77");
    EXPECT_NE(net_calls().init(&ctx, 1, -1, nullptr), kSuccess);
    EXPECT_TRUE(heard.has("eth77")) << Heard::text();
    EXPECT_EQ(ctx, nullptr);
  }
  {
    const Variable streams("NCCL_NSOCKS_PERTHREAD", "many");
    EXPECT_NE(net_calls().init(&ctx, 1, -1, nullptr), kSuccess);
    EXPECT_TRUE(heard.has("NCCL_NSOCKS_PERTHREAD=many")) << Heard::text();
  }
  NetPair pair;
  pair.exchange(std::vector<std::byte>(100, std::byte{5}));
}

TEST(Contexts, several_streams_by_nccls_variable_and_by_ours) {
  for (const char* name : {"NCCL_NSOCKS_PERTHREAD", "PRUNEX_STREAMS"}) {
    const Variable streams(name, "4");
    NetPair pair;
    std::mt19937 random(5);
    for (const size_t n : {size_t{1}, size_t{100'000}, size_t{3} << 20}) {
      std::vector<std::byte> data(n);
      for (std::byte& b : data) {
        b = static_cast<std::byte>(random());
      }
      pair.exchange(data);
    }
  }
}

TEST(Messages, longer_than_the_receive_breaks_the_connection_with_both_sizes) {
  NetPair pair;
  const Heard heard;
  for (const bool zeros : {false, true}) {
    NetPair one(2);
    std::vector<std::byte> data(100'000, zeros ? std::byte{0} : std::byte{1}), into(50'000);
    void *in = into.data(), *mr = nullptr, *s = nullptr, *r = nullptr;
    const size_t room = into.size();
    ASSERT_EQ(net_calls().irecv(one.recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
    ASSERT_EQ(net_calls().isend(one.send, data.data(), data.size(), 0, nullptr, &s), kSuccess);
    int bytes = 0;
    EXPECT_NE(NetPair::finish(r, &bytes, s), kSuccess);
    EXPECT_TRUE(heard.has("50000 bytes")) << Heard::text();
    // And it stays broken, without a crash.
    EXPECT_NE(net_calls().irecv(one.recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
    Heard::text().clear();
  }
  pair.exchange(std::vector<std::byte>(1000, std::byte{5}));  // others go on
}

TEST(Messages, a_peer_that_closes_is_an_error_on_the_other_side) {
  NetPair pair;
  const Heard heard;
  std::byte into[8];
  void *in = into, *mr = nullptr, *r = nullptr;
  const size_t room = sizeof into;
  ASSERT_EQ(net_calls().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
  ASSERT_EQ(net_calls().close_send(pair.send), kSuccess);
  pair.send = nullptr;
  int bytes = 0;
  EXPECT_EQ(NetPair::finish(r, &bytes), kRemoteError);
  EXPECT_TRUE(heard.has("closed the connection")) << Heard::text();
}

// A forked child (a data loader's worker) has its parent's sockets. It is told, and whatever it
// does the parent's connections go on.
TEST(Fork, a_child_cannot_use_its_parents_connections_nor_end_them) {
  NetPair pair;
  pair.exchange(std::vector<std::byte>(5000, std::byte{5}));
  const pid_t child = ::fork();
  if (child == 0) {
    const Heard heard;
    std::byte data[64] = {}, into[64];
    void *in = into, *mr = nullptr, *s = nullptr, *r = nullptr;
    const size_t room = sizeof into;
    const bool refused =
        net_calls().isend(pair.send, data, sizeof data, 0, nullptr, &s) == kInvalidArgument &&
        net_calls().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &r) == kInvalidArgument;
    const bool closed = net_calls().close_send(pair.send) == kSuccess &&
                        net_calls().close_recv(pair.recv) == kSuccess;
    ::_exit(refused && closed && heard.has("forked") ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pair.exchange(std::vector<std::byte>(100'000, std::byte{6}));
}

TEST(Connecting, nobody_listens_any_more) {
  NetPair pair;
  const Heard heard;
  void* listening = nullptr;
  alignas(8) unsigned char handle[kHandleBytes] = {};
  ASSERT_EQ(net_calls().listen(pair.ctx, 0, handle, &listening), kSuccess);
  ASSERT_EQ(net_calls().close_listen(listening), kSuccess);
  void* comm = nullptr;
  int status = kSuccess;
  const Deadline deadline = Deadline::after(kPatience);
  while (status == kSuccess && comm == nullptr && !deadline.passed()) {
    status = net_calls().connect(pair.ctx, 0, handle, &comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(status, kRemoteError) << "far before PRUNEX_TIMEOUT";
  EXPECT_TRUE(heard.has("still trying")) << Heard::text();
  EXPECT_TRUE(heard.has("refused")) << Heard::text();
}

// Four communicators with a progress thread each for sending and receiving, and a service thread
// that registers meanwhile.
TEST(Threads, progress_and_service_threads_side_by_side) {
  constexpr int kComms = 4, kMessages = 300;
  std::vector<std::unique_ptr<NetPair>> pairs;
  for (int i = 0; i < kComms; ++i) {
    pairs.push_back(std::make_unique<NetPair>(static_cast<uint64_t>(i)));
  }
  std::atomic<int> faults{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kComms; ++i) {
    NetPair& pair = *pairs[static_cast<size_t>(i)];
    const auto size_of = [i](int m) { return static_cast<size_t>((m * 7919 + i) % 60'000); };
    const auto byte_of = [i](int m) {
      return m % 3 == 0 ? std::byte{0} : static_cast<std::byte>(m + i);
    };
    threads.emplace_back([&, size_of, byte_of] {
      std::vector<std::byte> data(60'000);
      for (int m = 0; m < kMessages; ++m) {
        std::fill_n(data.begin(), size_of(m), byte_of(m));
        void* s = nullptr;
        int bytes = 0;
        faults += net_calls().isend(pair.send, data.data(), size_of(m), 0, nullptr, &s);
        faults += s == nullptr ? 1 : NetPair::finish(s, &bytes);
      }
    });
    threads.emplace_back([&, size_of, byte_of] {
      std::vector<std::byte> data(60'000);
      for (int m = 0; m < kMessages; ++m) {
        void *in = data.data(), *mr = nullptr, *r = nullptr;
        const size_t room = data.size();
        int bytes = 0;
        faults += net_calls().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &r);
        faults += r == nullptr ? 1 : NetPair::finish(r, &bytes);
        const auto wrong = [&](std::byte b) { return b != byte_of(m); };
        faults += static_cast<size_t>(bytes) != size_of(m) ||
                  std::any_of(data.begin(), data.begin() + bytes, wrong);
      }
    });
  }
  std::thread service([&] {
    std::vector<std::byte> memory(4096);
    while (!stop) {
      for (const auto& pair : pairs) {
        void* mr = nullptr;
        faults += net_calls().reg_mr(pair->send, memory.data(), 4096, kPtrHost, &mr);
        faults += net_calls().dereg_mr(pair->send, mr);
      }
    }
  });
  for (std::thread& t : threads) {
    t.join();
  }
  stop = true;
  service.join();
  EXPECT_EQ(faults, 0);
}

}  // namespace
}  // namespace prunex::nccl
