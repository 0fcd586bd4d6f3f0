// SPDX-License-Identifier: Apache-2.0
// NCCL's contract, call by call, for every version of the Net table.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/nccl/pipe.h"

namespace prunex::nccl::host {
namespace {

class NetConformance : public testing::TestWithParam<int> {
 protected:
  static std::string with_pipe(const std::function<void(Pipe&)>& body) {
    return in_child([&] {
      Pipe pipe(GetParam());
      body(pipe);
      pipe.close();
      PRUNEX_MUST(log_lines(abi::kLogWarn).empty(), "%s", log_lines(abi::kLogWarn)[0].text.c_str());
      PRUNEX_MUST(log_faults().empty(), "%s", log_faults().c_str());
    });
  }
};

TEST_P(NetConformance, devices_have_sane_properties) {
  PRUNEX_EXPECT_WELL(in_child([] {
    const auto net = open_net(load_plugin(plugin_path()), GetParam());
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) == kSuccess);
    int count = 0;
    PRUNEX_MUST(net->devices(&count) == kSuccess && count > 0);
    for (int device = 0; device < count; ++device) {
      Properties p;
      PRUNEX_MUST(net->properties(device, &p) == kSuccess);
      PRUNEX_MUST(!p.name.empty() && p.speed > 0 && p.max_comms > 0 && p.max_recvs >= 1);
      PRUNEX_MUST((p.ptr_support & kPtrHost) != 0 && p.latency >= 0);
      if (GetParam() >= 7) {
        PRUNEX_MUST(p.net_device_type == 0, "NCCL takes no other for device 0");
      }
      if (GetParam() >= 9) {
        PRUNEX_MUST(p.virtual_count == 1 && p.virtual_first == device);
        constexpr size_t kMost = size_t{1} << 40;
        PRUNEX_MUST(p.max_p2p_bytes > 0 && p.max_p2p_bytes <= kMost);
        PRUNEX_MUST(p.max_coll_bytes > 0 && p.max_coll_bytes <= kMost);
      }
    }
    PRUNEX_MUST(net->finalize() == kSuccess);
  }));
}

TEST_P(NetConformance, messages_of_all_sizes) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    uint32_t seed = 1;
    for (const bool sparse : {false, true}) {
      for (const size_t bytes :
           {size_t{0}, size_t{1}, size_t{7}, size_t{128}, size_t{4095}, size_t{4096}, size_t{65537},
            size_t{524288}, size_t{1} << 20, (size_t{1} << 20) + 3, size_t{5} << 20}) {
        pipe.exchange(pattern(bytes, seed++, sparse));
      }
    }
  }));
}

TEST_P(NetConformance, less_arrives_than_was_posted) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    for (const bool sparse : {false, true}) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{300000}}) {
        pipe.exchange(pattern(bytes, 9, sparse), size_t{1} << 20);
      }
    }
  }));
}

TEST_P(NetConformance, messages_nobody_waits_for) {  // LL and LL128 say so from v9 on
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    for (const size_t bytes : {size_t{0}, size_t{128}, size_t{65536}, size_t{614400}}) {
      pipe.exchange(pattern(bytes, 3), 614400, true);
      pipe.exchange(pattern(bytes, 4, true), 614400, true);
    }
  }));
}

TEST_P(NetConformance, order_is_that_of_posting) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Bytes> data, room;
      std::vector<void*> sends, recvs;
      for (uint32_t i = 0; i < 8; ++i) {
        // Large and small, sparse and dense by turns: none may overtake another.
        data.push_back(pattern(i % 2 == 0 ? 200000 : 64, i + 1, i % 4 < 2));
        room.emplace_back(200000);
      }
      for (size_t i = 0; i < 8; ++i) {
        recvs.push_back(pipe.irecv(room[i], false, static_cast<int>(i)));
        sends.push_back(pipe.isend(data[i], static_cast<int>(8 - i)));  // tags do not select
        PRUNEX_MUST(recvs[i] != nullptr && sends[i] != nullptr);
      }
      for (size_t i = 0; i < 8; ++i) {
        const int size = pipe.finish(sends[i], recvs[i]);
        PRUNEX_MUST(size == static_cast<int>(data[i].size()), "message %zu: %d bytes", i, size);
        PRUNEX_MUST(std::equal(data[i].begin(), data[i].end(), room[i].begin()), "message %zu", i);
      }
    }
  }));
}

TEST_P(NetConformance, sends_go_before_receives_are_posted) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    std::vector<Bytes> data;
    std::vector<void*> sends;
    for (uint32_t i = 0; i < 8; ++i) {
      data.push_back(pattern(100000, i, i % 2 == 1));
      sends.push_back(pipe.isend(data[i]));
      PRUNEX_MUST(sends[i] != nullptr);
      int done = 0;
      PRUNEX_MUST(pipe.sender->test(sends[0], &done, nullptr) == kSuccess);
      if (done != 0) {
        sends[0] = nullptr;
        break;
      }
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      Bytes room(100000);
      PRUNEX_MUST(pipe.finish(sends[i], pipe.irecv(room)) == 100000);
      PRUNEX_MUST(room == data[i], "message %zu", i);
    }
  }));
}

TEST_P(NetConformance, thirty_two_requests_then_later) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    for (int round = 0; round < 3; ++round) {
      std::vector<Bytes> data, room(kMaxRequests, Bytes(3000));
      std::vector<void*> sends, recvs;
      for (uint32_t i = 0; i < kMaxRequests; ++i) {
        data.push_back(pattern(3000, i));
        recvs.push_back(pipe.irecv(room[i]));
        PRUNEX_MUST(recvs.back() != nullptr, "receive %u of %d", i, kMaxRequests);
        sends.push_back(pipe.isend(data[i]));
        PRUNEX_MUST(sends.back() != nullptr, "send %u of %d", i, kMaxRequests);
      }
      Bytes more(3000);
      PRUNEX_MUST(pipe.irecv(more) == nullptr, "one receive too many is for later, no error");
      PRUNEX_MUST(pipe.isend(more) == nullptr, "one send too many is for later, no error");
      for (size_t i = 0; i < kMaxRequests; ++i) {
        PRUNEX_MUST(pipe.finish(sends[i], recvs[i]) == 3000 && room[i] == data[i], "%zu", i);
      }
    }
  }));
}

TEST_P(NetConformance, a_receive_waits_as_long_as_it_takes) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    Bytes room(100);
    void* const receiving = pipe.irecv(room);
    for (int i = 0; i < 1000; ++i) {
      int done = 0;
      int sizes[2] = {-5, -5};
      PRUNEX_MUST(pipe.receiver->test(receiving, &done, sizes) == kSuccess && done == 0);
      PRUNEX_MUST(sizes[1] == -5);
    }
    const Bytes data = pattern(100, 1);
    PRUNEX_MUST(pipe.finish(pipe.isend(data), receiving) == 100 && room == data);
  }));
}

TEST_P(NetConformance, sizes_are_filled_for_each_message_and_no_more) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    const Bytes data = pattern(40000, 1, true);
    Bytes room(50000);
    void* const receiving = pipe.irecv(room);
    void* const sending = pipe.isend(data);
    int sizes[64];
    std::fill(std::begin(sizes), std::end(sizes), -5);
    int sent = 0, received = 0, sent_size = -5;
    wait_for("a message", [&] {
      if (sent == 0) {
        PRUNEX_MUST(pipe.sender->test(sending, &sent, &sent_size) == kSuccess);
      }
      if (received == 0) {
        PRUNEX_MUST(pipe.receiver->test(receiving, &received, sizes) == kSuccess);
      }
      return sent != 0 && received != 0;
    });
    PRUNEX_MUST(sizes[0] == 40000 && sent_size == 40000, "logical bytes: %d, %d", sizes[0],
                sent_size);
    PRUNEX_MUST(sizes[1] == -5 && sizes[63] == -5);
  }));
}

TEST_P(NetConformance, flushing_host_memory_is_done_at_once) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    Bytes room(128);
    pipe.exchange(pattern(128, 1));
    void* place = room.data();
    int size = 128;
    void* mr = nullptr;
    void* request = reinterpret_cast<void*>(0x99);
    PRUNEX_MUST(pipe.receiver->iflush(pipe.recv, 1, &place, &size, &mr, &request) == kSuccess);
    if (request != nullptr) {
      int done = 0;
      wait_for("a flush", [&] {
        PRUNEX_MUST(pipe.receiver->test(request, &done, nullptr) == kSuccess);
        return done != 0;
      });
    }
  }));
}

TEST_P(NetConformance, memory_is_registered_beside_traffic) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    std::atomic<bool> stop{false};
    std::string said;
    std::thread service([&] {
      try {
        Bytes buffer(1 << 16);
        while (!stop.load()) {
          void *a = nullptr, *b = nullptr;
          PRUNEX_MUST(pipe.sender->reg_mr(pipe.send, buffer.data(), buffer.size(), kPtrHost, &a) ==
                      kSuccess);
          PRUNEX_MUST(pipe.receiver->reg_mr(pipe.recv, buffer.data(), 100, kPtrHost, &b) ==
                      kSuccess);
          PRUNEX_MUST(a != b);
          PRUNEX_MUST(pipe.sender->dereg_mr(pipe.send, a) == kSuccess);
          PRUNEX_MUST(pipe.receiver->dereg_mr(pipe.recv, b) == kSuccess);
        }
      } catch (const std::exception& e) {
        said = e.what();
      }
    });
    std::string failed;
    try {
      for (uint32_t i = 0; i < 200; ++i) {
        pipe.exchange(pattern(20000, i, i % 2 == 0));
      }
    } catch (const std::exception& e) {
      failed = e.what();
    }
    stop.store(true);
    service.join();
    PRUNEX_MUST(failed.empty() && said.empty(), "%s %s", failed.c_str(), said.c_str());
  }));
}

TEST_P(NetConformance, several_connections_over_one_listener) {
  PRUNEX_EXPECT_WELL(in_child([] {
    const auto net = open_net(load_plugin(plugin_path()), GetParam());
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) == kSuccess);
    Handle handle{};
    void* listening = nullptr;
    PRUNEX_MUST(net->listen(0, handle, &listening) == kSuccess);
    std::vector<void*> sends, recvs;
    for (int i = 0; i < 5; ++i) {
      Handle copy;  // every peer has its own copy and keeps its state in there
      std::memcpy(copy, handle, sizeof copy);
      void *send = nullptr, *recv = nullptr;
      wait_for("a connection", [&] {
        PRUNEX_MUST(send != nullptr || net->connect(0, copy, &send) == kSuccess);
        PRUNEX_MUST(recv != nullptr || net->accept(listening, &recv) == kSuccess);
        return send != nullptr && recv != nullptr;
      });
      sends.push_back(send);
      recvs.push_back(recv);
    }
    PRUNEX_MUST(net->close_listen(listening) == kSuccess, "what was accepted lives on");
    for (size_t i = 0; i < 5; ++i) {
      PRUNEX_MUST(net->close_send(sends[i]) == kSuccess && net->close_recv(recvs[i]) == kSuccess);
    }
    PRUNEX_MUST(net->finalize() == kSuccess);
  }));
}

TEST_P(NetConformance, accept_and_connect_never_block) {
  PRUNEX_EXPECT_WELL(in_child([] {
    const auto net = open_net(load_plugin(plugin_path()), GetParam());
    PRUNEX_MUST(net->init(1, -1, log_from_plugin) == kSuccess);
    Handle handle{};
    void *listening = nullptr, *recv = nullptr;
    PRUNEX_MUST(net->listen(0, handle, &listening) == kSuccess);
    for (int i = 0; i < 100; ++i) {
      PRUNEX_MUST(net->accept(listening, &recv) == kSuccess && recv == nullptr, "nobody came");
    }
    PRUNEX_MUST(net->close_listen(listening) == kSuccess);
    PRUNEX_MUST(net->finalize() == kSuccess);
  }));
}

TEST_P(NetConformance, closing_with_receives_posted) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    static Bytes room(1000);  // outlives the connection
    for (int i = 0; i < 4; ++i) {
      PRUNEX_MUST(pipe.irecv(room) != nullptr);
    }
  }));
}

TEST_P(NetConformance, rounds_of_life) {  // init to finalize again and again: nothing is left over
  PRUNEX_EXPECT_WELL(in_child([] {
    for (uint64_t round = 0; round < 10; ++round) {
      Pipe pipe(GetParam(), 0, round);
      pipe.exchange(pattern(100000, static_cast<uint32_t>(round), true));
      pipe.close();
      PRUNEX_MUST(pipe.sender->finalize() == kSuccess, "a context that is gone is no error");
    }
  }));
}

TEST_P(NetConformance, large_messages) {
  PRUNEX_EXPECT_WELL(with_pipe([](Pipe& pipe) {
    pipe.exchange(pattern((size_t{48} << 20) + 5, 1));
    pipe.exchange(pattern((size_t{48} << 20) + 5, 2, true));
  }));
}

INSTANTIATE_TEST_SUITE_P(V, NetConformance, testing::Range(6, 13));

class Interoperation : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Interoperation, versions_understand_each_other) {
  PRUNEX_EXPECT_WELL(in_child([] {
    Pipe pipe(GetParam().first, GetParam().second);
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{70000}, size_t{1} << 20}) {
      pipe.exchange(pattern(bytes, 1));
      pipe.exchange(pattern(bytes, 2, true), size_t{2} << 20);
      pipe.exchange(pattern(bytes, 3, true), 0, true);
    }
    pipe.close();
  }));
}

INSTANTIATE_TEST_SUITE_P(Pairs, Interoperation,
                         testing::Values(std::pair(6, 12), std::pair(12, 6), std::pair(8, 11),
                                         std::pair(11, 8), std::pair(9, 7), std::pair(10, 6)));

}  // namespace
}  // namespace prunex::nccl::host
