// SPDX-License-Identifier: Apache-2.0
// Arguments that nobody can mean, and bytes from the network that are none of ours: an error that
// says so, and nothing else.
#include <algorithm>
#include <atomic>

#include "plugin/nccl/coll/connect.h"
#include "plugin/nccl/coll/head.h"
#include "plugin/nccl/coll/verdict.h"
#include "tests/collective/cluster.h"
#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

using prunex::test::LogCapture;

bool says(const std::vector<std::string>& lines, const std::string& what) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& l) { return l.find(what) != std::string::npos; });
}

struct Listening {
  Listening() {
    use_loopback();
    EXPECT_EQ(coll_calls().init(&context, 1, nullptr), kSuccess);
    EXPECT_EQ(coll_calls().listen(context, 0, handle.data(), &listen), kSuccess);
  }
  ~Listening() {
    EXPECT_EQ(coll_calls().close_listen(listen), kSuccess);
    EXPECT_EQ(coll_calls().finalize(context), kSuccess);
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  void* context = nullptr;
  void* listen = nullptr;
  Handle handle{};
};

TEST(CollNet, handles_are_zero_filled_and_checked) {
  const LogCapture log;
  Listening a, b;
  EXPECT_TRUE(std::all_of(a.handle.begin() + 64, a.handle.end(), [](char c) { return c == 0; }));
  void* comm = nullptr;
  Handle garbage;
  garbage.fill(0x42);
  void* with_garbage[] = {a.handle.data(), garbage.data()};
  EXPECT_NE(coll_calls().connect(with_garbage, 2, 0, a.listen, &comm), kSuccess);
  EXPECT_EQ(comm, nullptr);
  EXPECT_TRUE(says(log.warnings(), "node 1 of 2"));
  EXPECT_TRUE(says(log.warnings(), "NCCL_NET_PLUGIN"));
  Handle other = b.handle;
  other[4] = 9;  // the version
  void* with_version[] = {a.handle.data(), other.data()};
  EXPECT_NE(coll_calls().connect(with_version, 2, 0, a.listen, &comm), kSuccess);
  EXPECT_TRUE(says(log.warnings(), "version 9"));
  Handle zero{};
  void* with_zero[] = {a.handle.data(), zero.data()};
  EXPECT_NE(coll_calls().connect(with_zero, 2, 0, a.listen, &comm), kSuccess);
  void* with_null[] = {a.handle.data(), nullptr};
  EXPECT_NE(coll_calls().connect(with_null, 2, 0, a.listen, &comm), kSuccess);
  // Any single damaged byte gives an error or a handle of the same shape, never anything worse.
  for (size_t i = 0; i < b.handle.size(); ++i) {
    Handle damaged = b.handle;
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    (void)coll::decode_handle(std::as_bytes(std::span(damaged)));
    (void)coll::decode_handle(std::as_bytes(std::span(damaged)).first(i));
  }
}

TEST(CollNet, no_such_device) {
  const LogCapture log;
  use_loopback();
  Handle handle;
  void *listen = nullptr, *context = nullptr;
  EXPECT_EQ(coll_calls().listen(nullptr, 0, handle.data(), &listen), kInvalidArgument);
  ASSERT_EQ(coll_calls().init(&context, 3, nullptr), kSuccess);
  EXPECT_EQ(coll_calls().listen(context, 99, handle.data(), &listen), kInvalidArgument);
  EXPECT_EQ(coll_calls().finalize(context), kSuccess);
  EXPECT_EQ(listen, nullptr);
  EXPECT_TRUE(says(log.warnings(), "device 99"));
}

TEST(CollNet, reduce_support_and_registration) {
  for (int type = -1; type < 14; ++type) {
    for (int op = -1; op < 7; ++op) {
      int supported = -1;
      ASSERT_EQ(coll_calls().reduce_support(type, op, &supported), kSuccess);
      EXPECT_EQ(supported, type >= 0 && type < kTypes && op >= 0 && op < kOps ? 1 : 0);
    }
  }
  const LogCapture log;
  run_nodes(1, [](Node& node) {
    char memory[64];
    void* mr = nullptr;
    EXPECT_EQ(node.calls.reg_mr(node.comm, memory, sizeof memory, kPtrHost, &mr), kSuccess);
    EXPECT_NE(mr, nullptr);
    EXPECT_EQ(node.calls.dereg_mr(node.comm, mr), kSuccess);
    EXPECT_EQ(node.calls.reg_mr(node.comm, memory, sizeof memory, kPtrCuda, &mr), kInvalidArgument);
    EXPECT_EQ(node.calls.reg_mr_dmabuf(node.comm, memory, sizeof memory, kPtrDmabuf, 0, -1, &mr),
              kInvalidArgument);
    void* request = &mr;
    EXPECT_EQ(node.calls.iflush(node.comm, memory, 64, nullptr, &request), kSuccess);
    EXPECT_EQ(request, nullptr);
  });
}

TEST(CollNet, init_and_finalize_are_forgiving) {
  EXPECT_EQ(coll_calls().finalize(nullptr), kSuccess);
  void* context = nullptr;
  ASSERT_EQ(coll_calls().init(&context, 3, nullptr), kSuccess);
  EXPECT_EQ(coll_calls().finalize(context), kSuccess);
  EXPECT_EQ(coll_calls().finalize(context), kSuccess);
  const LogCapture log;
  EXPECT_EQ(coll_calls().close_coll(nullptr), kInvalidArgument);
  EXPECT_EQ(coll_calls().close_listen(nullptr), kInvalidArgument);
  EXPECT_EQ(coll_calls().close_coll(&context), kInvalidArgument) << "not a comm";
}

TEST(CollNet, calls_that_cannot_be_meant) {
  const LogCapture log;
  run_nodes(1, [](Node& node) {
    float x[8] = {};
    void* request = nullptr;
    const CollCalls& c = node.calls;
    const auto reduce = [&](const void* send, void* recv, size_t count, int type, int op) {
      return c.iallreduce(node.comm, send, recv, count, type, op, nullptr, nullptr, &request);
    };
    EXPECT_EQ(reduce(x, x, 8, 12, kSum), kInvalidArgument);  // no type of NCCL
    EXPECT_EQ(reduce(x, x, 8, kFloat32, kAvg), kInvalidArgument);
    EXPECT_EQ(reduce(nullptr, x, 8, kFloat32, kSum), kInvalidArgument);
    EXPECT_EQ(reduce(x, x, SIZE_MAX, kFloat32, kSum), kInvalidArgument);
    EXPECT_EQ(c.iallreduce(nullptr, x, x, 8, kFloat32, kSum, nullptr, nullptr, &request),
              kInvalidArgument);
    EXPECT_EQ(c.iallreduce(node.comm, x, x, 8, kFloat32, kSum, nullptr, nullptr, nullptr),
              kInvalidArgument);
    const CollPart part{nullptr, x, 16};
    EXPECT_EQ(c.iallgather(node.comm, x, 1, &part, 16, 8, 16, nullptr, &request),
              kInvalidArgument);  // past the end
    EXPECT_EQ(c.iallgather(node.comm, x, 1, &part, 16, 0, 8, nullptr, &request),
              kInvalidArgument);  // parts longer than the window
    EXPECT_EQ(c.iallgather(node.comm, x, -1, nullptr, 16, 0, 16, nullptr, &request),
              kInvalidArgument);
    EXPECT_EQ(
        c.ireducescatter(node.comm, 1, &part, x, 18, 2, 16, kFloat32, kSum, nullptr, &request),
        kInvalidArgument);  // cuts an element
    EXPECT_EQ(request, nullptr);
    int done = 0;
    EXPECT_EQ(c.test(nullptr, &done, nullptr), kInvalidArgument);
    // And it still works.
    EXPECT_EQ(node.all_reduce(x, x, 8, kFloat32, kSum), kSuccess);
  });
}

TEST(CollNet, different_counts_are_the_same_error_everywhere) {
  const LogCapture log;
  std::atomic<int> failed{0};
  run_nodes(3, [&](Node& node) {
    std::vector<float> data(70'000, 1.0f);
    const size_t count = node.rank == 1 ? 69'999 : 70'000;
    failed +=
        node.all_reduce(data.data(), data.data(), count, kFloat32, kSum) == kInvalidUsage ? 1 : 0;
  });
  EXPECT_EQ(failed, 3);
  ASSERT_EQ(log.warnings().size(), 3u);
  for (const std::string& w : log.warnings()) {
    EXPECT_NE(w.find("69999"), std::string::npos) << w;
    EXPECT_NE(w.find("70000"), std::string::npos) << w;
    EXPECT_NE(w.find("node 1"), std::string::npos) << w;
  }
}

// Bytes from the network are decoded within bounds.
TEST(CollHead, any_bytes) {
  std::mt19937 random(1);
  coll::CollHead head;
  head.map_bytes = 16;
  head.inline_bytes = 3;
  std::vector<std::byte> good(coll::CollHead::kWireBytes + 19);
  coll::encode(head, std::span<std::byte, coll::CollHead::kWireBytes>(good.data(),
                                                                      coll::CollHead::kWireBytes));
  collective::CallHeader h;
  const auto decoded = coll::decode(h, good);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->map.size(), 16u);
  EXPECT_EQ(decoded->data.size(), 3u);
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(coll::decode(h, std::span(good).first(n))) << n;
  }
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const auto m = coll::decode(h, bytes);
    if (m) {
      EXPECT_EQ(m->map.size() + m->data.size(), 19u);
    }
  }
}

// Whatever two nodes say, both come to the same verdict, and to none that needs what is not there.
TEST(Verdict, is_a_function_of_the_messages) {
  std::mt19937 random(2);
  const std::vector<std::byte> data(64);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<coll::CollMessage> messages(3);
    for (coll::CollMessage& m : messages) {
      m.header.count = random() % 8 == 0 ? 5 : 6;
      m.header.mask_digest = random() % 4;
      m.header.audit = random() % 4 == 0 ? collective::Audit::violated : collective::Audit::clean;
      m.head.wish = static_cast<coll::Wish>(random() % 3);
      m.head.contract = static_cast<uint8_t>(random() % 3);
      m.head.inlined = random() % 2 == 0 ? 1 : 0;
      m.data = std::span(data).first(m.head.inlined != 0 ? 24 : 0);
      m.map = std::span(data).first(m.head.wish == coll::Wish::mapped ? 8 : 0);
    }
    if (random() % 2 == 0) {
      messages[1] = messages[0];
      messages[2] = messages[0];
    }
    const coll::Verdict v = coll::decide(messages);
    const auto all = [&](auto holds) {
      return std::all_of(messages.begin(), messages.end(), holds);
    };
    if (v.error) {
      continue;
    }
    EXPECT_TRUE(all([&](const auto& m) { return m.header.count == messages[0].header.count; }));
    if (v.inlined) {
      EXPECT_TRUE(all([](const auto& m) { return m.data.size() == 24; }));
    }
    if (v.way == coll::Verdict::Way::masked) {
      EXPECT_TRUE(all([&](const auto& m) {
        return m.head.wish == coll::Wish::masked &&
               m.header.mask_digest == messages[0].header.mask_digest;
      }));
    }
    if (v.way == coll::Verdict::Way::mapped) {
      EXPECT_TRUE(all([](const auto& m) { return m.head.wish == coll::Wish::mapped; }));
    }
  }
}

// NCCL registers users' buffers in another thread than the one that moves calls.
TEST(CollNet, buffers_are_registered_by_one_thread_while_calls_move_in_another) {
  constexpr size_t kCount = size_t{1} << 20;
  run_nodes(2, [](Node& node) {
    std::vector<float> data(kCount), buffer(kCount, 0);
    std::thread registrar([&] {
      for (size_t count = 1024; count <= kCount; count *= 2) {
        void* mr = nullptr;
        EXPECT_EQ(node.calls.reg_mr(node.comm, buffer.data(), count * 4, kPtrHost, &mr), kSuccess);
        EXPECT_EQ(node.calls.dereg_mr(node.comm, mr), kSuccess);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    for (size_t round = 0; round < 24; ++round) {  // the same number on both nodes
      const size_t count = kCount >> round % 8;
      for (size_t i = 0; i < count; ++i) {
        data[i] = i / 64 % 4 == 0 ? static_cast<float>(i % 31 + 1) : 0;
      }
      EXPECT_EQ(node.all_reduce(data.data(), data.data(), count, kFloat32, kSum), kSuccess);
      for (size_t i = 0; i < count; i += 64) {
        ASSERT_EQ(data[i], i / 64 % 4 == 0 ? static_cast<float>(2 * (i % 31 + 1)) : 0) << i;
      }
    }
    registrar.join();
  });
}

}  // namespace
}  // namespace prunex::nccl::test
