// SPDX-License-Identifier: Apache-2.0
// Communicators, calls and requests: what is refused, what is left alone, what is waited for.
#include <limits>

#include "tests/api/api_world.h"

namespace prunex::test {
namespace {

prunex_comm_t alone() {
  use_loopback();
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  config.rank = 0;
  config.size = 1;
  config.timeout_s = 30;
  prunex_comm_t comm = 0;
  EXPECT_OK(prunex_comm_create(&config, &comm));
  return comm;
}

TEST(Version, IsThatOfTheHeader) {
  EXPECT_EQ(prunex_version(),
            PRUNEX_VERSION_MAJOR * 10000 + PRUNEX_VERSION_MINOR * 100 + PRUNEX_VERSION_PATCH);
}

TEST(Errors, EveryCodeHasItsOwnText) {
  std::map<std::string, int> texts;
  for (int code = PRUNEX_SUCCESS; code <= PRUNEX_ERROR_INTERNAL; ++code) {
    const char* text = prunex_result_string(static_cast<prunex_result_t>(code));
    ASSERT_NE(text, nullptr);
    EXPECT_TRUE(texts.emplace(text, code).second) << text;
  }
  prunex_result_t unknown{};
  const int bad = 4711;
  std::memcpy(&unknown, &bad, sizeof bad);
  EXPECT_NE(std::string(prunex_result_string(unknown)), "");
}

TEST(Errors, TheLastOneIsOfTheThread) {
  EXPECT_FAILS(prunex_unregister_mask(123'456'789), PRUNEX_ERROR_INVALID_HANDLE, "123456789");
  std::thread([] {
    EXPECT_STREQ(prunex_last_error(), "");
    EXPECT_FAILS(prunex_layout_destroy(987'654'321), PRUNEX_ERROR_INVALID_HANDLE, "987654321");
  }).join();
  EXPECT_NE(std::string(prunex_last_error()).find("123456789"), std::string::npos);
  const std::string text = prunex_last_error();
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(CommCreate, Refusals) {
  use_loopback();
  prunex_comm_t comm = 9;
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  EXPECT_FAILS(prunex_comm_create(&config, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "out");
  EXPECT_FAILS(prunex_comm_create(nullptr, &comm), PRUNEX_ERROR_INVALID_ARGUMENT, "config");
  EXPECT_EQ(comm, 0u);
  config.struct_size = 3;
  EXPECT_FAILS(prunex_comm_create(&config, &comm), PRUNEX_ERROR_INVALID_ARGUMENT,
               "struct_size is 3");
  config.struct_size = sizeof config;
  config.rank = 3;
  config.size = 3;
  EXPECT_FAILS(prunex_comm_create(&config, &comm), PRUNEX_ERROR_INVALID_ARGUMENT,
               "config.rank is 3 and config.size is 3");
  config.rank = 0;
  EXPECT_FAILS(prunex_comm_create(&config, &comm), PRUNEX_ERROR_CONFIG, "PRUNEX_ROOT");
  config.size = -1;
  EXPECT_FAILS(prunex_comm_create(&config, &comm), PRUNEX_ERROR_INVALID_ARGUMENT, "give both");
  config.size = 2;
  const prunex_store_t store{};
  config.store = &store;
  EXPECT_FAILS(prunex_comm_create(&config, &comm), PRUNEX_ERROR_INVALID_ARGUMENT, "store");
  config.store = nullptr;
  config.root = "no port here";
  EXPECT_NE(prunex_comm_create(&config, &comm), PRUNEX_SUCCESS);
  EXPECT_NE(std::string(prunex_last_error()).find("no port here"), std::string::npos)
      << prunex_last_error();
  EXPECT_EQ(comm, 0u);
}

TEST(CommCreate, AStoreThatFailsIsNamed) {
  use_loopback();
  prunex_store_t store{};
  store.set = [](void*, const char*, const void*, size_t) { return 17; };
  store.get = [](void*, const char*, void*, size_t, size_t*, double) { return 18; };
  for (const int rank : {0, 1}) {
    prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
    config.rank = rank;
    config.size = 2;
    config.store = &store;
    config.timeout_s = 2;
    prunex_comm_t comm = 0;
    EXPECT_NE(prunex_comm_create(&config, &comm), PRUNEX_SUCCESS);
    EXPECT_NE(std::string(prunex_last_error()).find(rank == 0 ? "17" : "18"), std::string::npos)
        << prunex_last_error();
  }
}

TEST(CommInfo, SaysWhereARankIs) {
  run_c_ranks({1, 0, 1}, [](prunex_comm_t comm, int rank) {
    prunex_comm_info_t info{};
    EXPECT_FAILS(prunex_comm_info(comm, &info), PRUNEX_ERROR_INVALID_ARGUMENT, "struct_size is 0");
    EXPECT_FAILS(prunex_comm_info(comm, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "info");
    info.struct_size = sizeof info;
    EXPECT_FAILS(prunex_comm_info(comm + 100, &info), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(comm + 100));
    EXPECT_OK(prunex_comm_info(comm, &info));
    EXPECT_EQ(info.rank, rank);
    EXPECT_EQ(info.size, 3);
    EXPECT_EQ(info.num_nodes, 2);
    EXPECT_EQ(info.node, rank == 1 ? 1 : 0);
    EXPECT_EQ(info.local_rank, rank == 2 ? 1 : 0);
    EXPECT_EQ(info.local_size, rank == 1 ? 1 : 2);
    EXPECT_EQ(info.leader, rank == 1 ? 1 : 0);
    EXPECT_EQ(info.is_leader, rank == 2 ? 0 : 1);
    EXPECT_EQ(info.rails, 1);
    EXPECT_STREQ(info.transport, "socket");
    size_t length = 0;
    EXPECT_OK(prunex_comm_topology(comm, nullptr, 0, &length));
    ASSERT_GT(length, 1u);
    std::vector<char> text(length + 8, 'x');
    EXPECT_OK(prunex_comm_topology(comm, text.data(), length, nullptr));
    EXPECT_EQ(std::strlen(text.data()), length - 1);
    EXPECT_EQ(text[length], 'x');
    EXPECT_OK(prunex_comm_topology(comm, text.data(), 4, &length));
    EXPECT_EQ(std::strlen(text.data()), 3u);
    EXPECT_FAILS(prunex_comm_topology(comm + 100, nullptr, 0, &length), PRUNEX_ERROR_INVALID_HANDLE,
                 "handle");
  });
}

TEST(AllReduce, RefusalsLeaveTheBuffersAlone) {
  const prunex_comm_t comm = alone();
  std::vector<float> a(100, 1), b(100, 2);
  const auto call = [&](const void* send, void* recv, size_t count, int dtype, int op,
                        const prunex_call_t* how = nullptr) {
    prunex_dtype_t d{};
    prunex_op_t o{};
    std::memcpy(&d, &dtype, sizeof d);
    std::memcpy(&o, &op, sizeof o);
    return prunex_all_reduce(comm, send, recv, count, d, o, 0, how);
  };
  constexpr auto kInvalid = PRUNEX_ERROR_INVALID_ARGUMENT;
  EXPECT_FAILS(call(nullptr, b.data(), 100, 0, 0), kInvalid, "send");
  EXPECT_FAILS(call(a.data(), nullptr, 100, 0, 0), kInvalid, "recv");
  EXPECT_FAILS(call(a.data(), a.data() + 1, 99, 0, 0), kInvalid, "overlap");
  EXPECT_FAILS(call(a.data() + 50, a.data(), 51, 0, 0), kInvalid, "overlap");
  EXPECT_OK(call(a.data() + 50, a.data(), 50, 0, 0));
  EXPECT_FAILS(call(a.data(), b.data(), 100, 10, 0), kInvalid, "dtype 10");
  EXPECT_FAILS(call(a.data(), b.data(), 100, -1, 0), kInvalid, "dtype -1");
  EXPECT_FAILS(call(a.data(), b.data(), 100, 0, 5), kInvalid, "op 5");
  EXPECT_FAILS(call(a.data(), b.data(), SIZE_MAX, 0, 0), kInvalid, std::to_string(SIZE_MAX));
  EXPECT_FAILS(call(a.data(), b.data(), SIZE_MAX / 4, 0, 0), kInvalid, "");
  prunex_call_t how = PRUNEX_CALL_INIT;
  how.struct_size = 0;
  EXPECT_FAILS(call(a.data(), b.data(), 100, 0, 0, &how), kInvalid, "struct_size is 0");
  how.struct_size = sizeof how;
  const int scope = 3;
  std::memcpy(&how.scope, &scope, sizeof scope);
  EXPECT_FAILS(call(a.data(), b.data(), 100, 0, 0, &how), kInvalid, "scope 3");
  how.scope = PRUNEX_SCOPE_WORLD;
  how.stream = &how;
  EXPECT_FAILS(call(a.data(), b.data(), 100, 0, 0, &how), PRUNEX_ERROR_UNSUPPORTED, "stream");
  how.stream = nullptr;
  prunex_request_t request = 5;
  how.request = &request;
  EXPECT_FAILS(call(nullptr, b.data(), 100, 0, 0, &how), kInvalid, "send");
  EXPECT_EQ(request, 0u);
  EXPECT_FAILS(sum(comm + 50, a, b), PRUNEX_ERROR_INVALID_HANDLE, std::to_string(comm + 50));
  EXPECT_FAILS(sum(0, a, b), PRUNEX_ERROR_INVALID_HANDLE, "0");
  EXPECT_FAILS(sum(comm, a, b, 999'999), PRUNEX_ERROR_INVALID_HANDLE, "999999");
  prunex_layout_t layout = 0;
  ASSERT_OK(prunex_layout_create(nullptr, 0, 101, &layout));
  EXPECT_FAILS(sum(comm, a, b, layout), kInvalid, "101");
  EXPECT_NE(std::string(prunex_last_error()).find("100"), std::string::npos);
  EXPECT_OK(prunex_layout_destroy(layout));
  EXPECT_EQ(a, std::vector<float>(100, 1));
  EXPECT_EQ(b, std::vector<float>(100, 2));
  EXPECT_OK(call(nullptr, nullptr, 0, 0, 0));  // nothing to read or write
  EXPECT_OK(sum(comm, a, b));
  EXPECT_EQ(b, a);
  EXPECT_OK(prunex_comm_destroy(comm));
  EXPECT_FAILS(prunex_comm_destroy(comm), PRUNEX_ERROR_INVALID_HANDLE, std::to_string(comm));
  EXPECT_FAILS(sum(comm, a, b), PRUNEX_ERROR_INVALID_HANDLE, std::to_string(comm));
}

TEST(Stats, Refusals) {
  const prunex_comm_t comm = alone();
  prunex_stats_t stats{};
  EXPECT_FAILS(prunex_stats(comm, &stats), PRUNEX_ERROR_INVALID_ARGUMENT, "struct_size is 0");
  EXPECT_FAILS(prunex_stats(comm, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "stats");
  stats.struct_size = sizeof stats;
  EXPECT_FAILS(prunex_stats(comm + 77, &stats), PRUNEX_ERROR_INVALID_HANDLE,
               std::to_string(comm + 77));
  EXPECT_OK(prunex_comm_destroy(comm));
  const prunex_comm_t next = alone();
  EXPECT_NE(next, comm) << "handles are never used again";
  EXPECT_OK(prunex_comm_destroy(next));
}

TEST(AgreeMask, Refusals) {
  const prunex_comm_t comm = alone();
  const std::vector<float> scores = {1, 2, 3};
  std::vector<uint8_t> keep(3, 9);
  prunex_agree_t agree = PRUNEX_AGREE_INIT;
  agree.keep = 2;
  constexpr auto kInvalid = PRUNEX_ERROR_INVALID_ARGUMENT;
  const auto ask = [&] {
    return prunex_agree_mask(comm, scores.data(), scores.size(), &agree, keep.data());
  };
  EXPECT_FAILS(prunex_agree_mask(comm, scores.data(), 3, nullptr, keep.data()), kInvalid, "agree");
  EXPECT_FAILS(prunex_agree_mask(comm, nullptr, 3, &agree, keep.data()), kInvalid, "scores");
  EXPECT_FAILS(prunex_agree_mask(comm, scores.data(), 3, &agree, nullptr), kInvalid, "keep_out");
  EXPECT_FAILS(prunex_agree_mask(comm + 9, scores.data(), 3, &agree, keep.data()),
               PRUNEX_ERROR_INVALID_HANDLE, std::to_string(comm + 9));
  agree.struct_size = 1;
  EXPECT_FAILS(ask(), kInvalid, "struct_size is 1");
  agree.struct_size = sizeof agree;
  const int bad = 3;
  std::memcpy(&agree.mode, &bad, sizeof bad);
  EXPECT_FAILS(ask(), kInvalid, "mode 3");
  agree.mode = PRUNEX_AGREE_TOPK;
  std::memcpy(&agree.scope, &bad, sizeof bad);
  EXPECT_FAILS(ask(), kInvalid, "scope 3");
  agree.scope = PRUNEX_SCOPE_LEADERS;
  agree.num_layers = 1;
  EXPECT_FAILS(ask(), kInvalid, "layer_groups");
  const size_t groups = 2, two = 2;
  agree.layer_groups = &groups;
  EXPECT_FAILS(ask(), kInvalid, "layer_keep");
  agree.layer_keep = &two;
  EXPECT_FAILS(ask(), kInvalid, "2 groups");
  agree.num_layers = 0;
  agree.keep = 4;
  EXPECT_FAILS(ask(), kInvalid, "4");
  agree.keep = 2;
  agree.weight = -1;
  EXPECT_FAILS(ask(), kInvalid, "weight -1");
  agree.weight = 1;
  EXPECT_EQ(keep, std::vector<uint8_t>(3, 9));
  EXPECT_OK(ask());
  EXPECT_EQ(keep, (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_OK(prunex_comm_destroy(comm));
}

TEST(Requests, TestAndWait) {
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    int done = 7;
    EXPECT_FAILS(prunex_request_test(424'242, &done), PRUNEX_ERROR_INVALID_HANDLE, "424242");
    EXPECT_EQ(done, 0);
    EXPECT_FAILS(prunex_request_wait(424'242), PRUNEX_ERROR_INVALID_HANDLE, "424242");
    std::vector<float> data(1000, 1);
    prunex_request_t request = 0;
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.request = &request;
    EXPECT_OK(sum(comm, data, data, 0, &call));
    EXPECT_NE(request, 0u);
    EXPECT_FAILS(prunex_request_test(request, nullptr), PRUNEX_ERROR_INVALID_ARGUMENT, "done");
    for (done = 0; done == 0;) {
      ASSERT_OK(prunex_request_test(request, &done));
      std::this_thread::yield();
    }
    EXPECT_EQ(data, std::vector<float>(1000, 2));
    EXPECT_FAILS(prunex_request_test(request, &done), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(request));
    // The result of the call is that of the wait.
    std::vector<float> uneven(rank == 0 ? 100 : 101, 1);
    EXPECT_OK(sum(comm, uneven, uneven, 0, &call));
    EXPECT_FAILS(prunex_request_wait(request), PRUNEX_ERROR_MISMATCH, "101");
    EXPECT_FAILS(prunex_request_wait(request), PRUNEX_ERROR_INVALID_HANDLE,
                 std::to_string(request));
  });
}

TEST(CommDestroy, WaitsForCallsInFlight) {
  use_loopback();
  run_c_ranks({0, 1}, [](prunex_comm_t comm, int rank) {
    static CStore store;
    prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
    config.rank = rank;
    config.size = 2;
    config.name = "second";
    config.node_id = rank == 0 ? "a" : "b";
    config.store = store.get_store();
    config.timeout_s = 60;
    prunex_comm_t second = 0;
    ASSERT_OK(prunex_comm_create(&config, &second));
    std::vector<float> data(100'000, 1);
    if (rank == 0) {
      prunex_request_t request = 0;
      prunex_call_t call = PRUNEX_CALL_INIT;
      call.request = &request;
      ASSERT_OK(sum(second, data, data, 0, &call));
      EXPECT_OK(prunex_comm_destroy(second));
      // The buffers are ours again.
      EXPECT_EQ(data, std::vector<float>(100'000, 2));
      EXPECT_OK(prunex_request_wait(request));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_OK(sum(second, data, data));
      EXPECT_OK(prunex_comm_destroy(second));
    }
    std::vector<float> again(10, 1);
    EXPECT_OK(sum(comm, again, again));
  });
}

}  // namespace
}  // namespace prunex::test
