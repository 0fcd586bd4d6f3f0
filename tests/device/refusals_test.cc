// SPDX-License-Identifier: Apache-2.0
// Calls that one rank cannot make: found before anything is enqueued, told in words that help, and
// never a hang or the end of a communicator that could go on.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/device/device_api.h"

namespace prunex::test {
namespace {

constexpr size_t kCount = 1000;
const std::vector<int> kWorld = {0, 0, 1};

prunex_result_t sum_of_floats(prunex_comm_t comm, float* at, FakeStream& stream,
                              prunex_layout_t layout = 0) {
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.stream = static_cast<StreamLike*>(&stream);
  const auto result =
      prunex_all_reduce(comm, at, at, kCount, PRUNEX_FLOAT32, PRUNEX_SUM, layout, &call);
  stream.synchronize();
  return result;
}

void expect_host_calls_work(prunex_comm_t comm) {
  std::vector<float> ones(10, 1);
  EXPECT_OK(prunex_all_reduce(comm, ones.data(), ones.data(), 10, PRUNEX_FLOAT32, PRUNEX_SUM, 0,
                              nullptr));
  EXPECT_EQ(ones[9], static_cast<float>(kWorld.size()));
}

void expect_words(const std::vector<const char*>& words) {
  for (const char* word : words) {
    EXPECT_NE(std::string(prunex_last_error()).find(word), std::string::npos)
        << word << ": " << prunex_last_error();
  }
}

// Device 1 is older than all that the build is for.
int facts_of_two(int device, cuda::DeviceFacts* out) {
  const int error = fake_cuda().device_facts(device, out);
  out->arch = device == 1 ? 80 : 90;
  std::snprintf(out->name, sizeof out->name, "Stand-in %d", device);
  return error;
}

class Architectures : public DeviceApi {
 protected:
  Architectures() : table_(fake_cuda()) {
    table_.device_facts = facts_of_two;
    table_.archs = "90";
    use(table_);
  }
  cuda::Table table_;
};

TEST_F(Architectures, AGpuWithoutKernelsIsToldToAllRanksAndEndsNothing) {
  for (const bool masked : {false, true}) {
    VectorMask mask(keep_of(kCount, 1, 3), PRUNEX_PROJECT);
    prunex_mask_t handle = 0;
    prunex_layout_t layout = 0;
    ASSERT_OK(prunex_register_mask(nullptr, &mask.tensor, &mask.desc, &handle));
    const prunex_segment_t segment = {0, kCount, handle};
    ASSERT_OK(prunex_layout_create(&segment, 1, kCount, &layout));
    run_c_ranks(kWorld, [&](prunex_comm_t comm, int rank) {
      ASSERT_EQ(table_.set_device(rank == 1 ? 1 : 0), 0);
      FakeStream stream;
      OnDevice buffer(kCount);
      EXPECT_FAILS(sum_of_floats(comm, buffer.data, stream, masked ? layout : 0),
                   PRUNEX_ERROR_UNSUPPORTED, "GPU 1");
      expect_words({"Stand-in 1", "sm_80", "sm_90", "--all-archs", "-Dnvcc_archs=80"});
      expect_host_calls_work(comm);
      EXPECT_FAILS(sum_of_floats(comm, buffer.data, stream), PRUNEX_ERROR_UNSUPPORTED, "sm_80");
      expect_host_calls_work(comm);
    });
    EXPECT_OK(prunex_layout_destroy(layout));
    EXPECT_OK(prunex_unregister_mask(handle));
  }
}

TEST_F(Architectures, ReadyLooksAtTheCurrentDevice) {
  ASSERT_EQ(table_.set_device(0), 0);
  EXPECT_OK(prunex_device_ready());
  ASSERT_EQ(table_.set_device(1), 0);
  EXPECT_FAILS(prunex_device_ready(), PRUNEX_ERROR_UNSUPPORTED, "sm_80");
  expect_words({"GPU 1", "sm_90"});
  ASSERT_EQ(table_.set_device(0), 0);
}

TEST_F(DeviceApi, AMisalignedBufferIsThisRanksErrorAndTheCallCanBeMadeAgain) {
  for (const bool planned : {false, true}) {
    run_c_ranks(kWorld, [&](prunex_comm_t comm, int rank) {
      FakeStream stream;
      OnDevice buffer(kCount + 1);
      std::fill_n(buffer.data, kCount + 1, 1.0f);
      if (planned) {
        ASSERT_OK(sum_of_floats(comm, buffer.data, stream));
        std::fill_n(buffer.data, kCount + 1, 1.0f);
      }
      if (rank == 1) {
        auto* const odd = reinterpret_cast<float*>(reinterpret_cast<char*>(buffer.data) + 2);
        EXPECT_FAILS(sum_of_floats(comm, odd, stream), PRUNEX_ERROR_INVALID_ARGUMENT,
                     "no multiple of 4");
        expect_words({"send", "f32", "copy it"});
        prunex_call_t call = PRUNEX_CALL_INIT;
        call.stream = static_cast<StreamLike*>(&stream);
        OnDevice other(kCount);
        EXPECT_FAILS(
            prunex_all_reduce(comm, other.data, odd, kCount, PRUNEX_FLOAT32, PRUNEX_SUM, 0, &call),
            PRUNEX_ERROR_INVALID_ARGUMENT, "recv");
      }
      EXPECT_OK(sum_of_floats(comm, buffer.data, stream));
      EXPECT_EQ(buffer.data[kCount - 1], 3.0f);
    });
  }
}

TEST_F(DeviceApi, AnElementsOwnSizeIsAlignmentEnough) {
  run_c_ranks(kWorld, [&](prunex_comm_t comm, int) {
    FakeStream stream;
    OnDevice buffer(kCount + 1);
    std::fill_n(buffer.data, kCount + 1, 1.0f);
    EXPECT_OK(sum_of_floats(comm, buffer.data + 1, stream));
    EXPECT_EQ(buffer.data[kCount], 3.0f);
    EXPECT_EQ(buffer.data[0], 1.0f);
  });
}

TEST_F(DeviceApi, HostMemoryOnOneRankIsNamedOnAll) {
  run_c_ranks(kWorld, [&](prunex_comm_t comm, int rank) {
    FakeStream stream;
    OnDevice buffer(kCount);
    std::vector<float> host(kCount, 1);
    std::fill_n(buffer.data, kCount, 1.0f);
    if (rank == 2) {
      EXPECT_FAILS(prunex_all_reduce(comm, host.data(), host.data(), kCount, PRUNEX_FLOAT32,
                                     PRUNEX_SUM, 0, nullptr),
                   PRUNEX_ERROR_MISMATCH, "rank 2 in host memory");
      EXPECT_EQ(host[0], 1.0f);
    } else {
      EXPECT_FAILS(sum_of_floats(comm, buffer.data, stream), PRUNEX_ERROR_MISMATCH,
                   "rank 2 in host memory");
      EXPECT_EQ(buffer.data[0], 1.0f);
    }
    expect_words({"rank 0 passes buffers in device memory", "all ranks pass device memory"});
    EXPECT_OK(sum_of_floats(comm, buffer.data, stream));  // nothing had begun
    EXPECT_EQ(buffer.data[0], 3.0f);
  });
}

// With a plan the others have enqueued their part by then.
TEST_F(DeviceApi, HostMemoryOnOneRankOfACallWithAPlanEndsWithTheSameWords) {
  run_c_ranks(kWorld, [&](prunex_comm_t comm, int rank) {
    FakeStream stream;
    OnDevice buffer(kCount);
    std::vector<float> host(kCount, 1);
    ASSERT_OK(sum_of_floats(comm, buffer.data, stream));
    if (rank == 2) {
      EXPECT_FAILS(prunex_all_reduce(comm, host.data(), host.data(), kCount, PRUNEX_FLOAT32,
                                     PRUNEX_SUM, 0, nullptr),
                   PRUNEX_ERROR_MISMATCH, "rank 2 in host memory");
      return;
    }
    auto result = sum_of_floats(comm, buffer.data, stream);
    for (int look = 0; result == PRUNEX_SUCCESS && look < 30'000; ++look) {
      prunex_result_t state = PRUNEX_SUCCESS;
      ASSERT_OK(prunex_comm_get_async_error(comm, &state));
      result = state;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_NE(result, PRUNEX_SUCCESS);
    expect_words({"rank 2"});
  });
}

// A device that broke shows in whatever call asks it next.
std::atomic<bool> broken{false};
thread_local bool mine_breaks = false;
constexpr int kIllegalAddress = 700;

int facts_of_broken(const void* p, cuda::PointerFacts* out) {
  return broken && mine_breaks ? kIllegalAddress : fake_cuda().pointer_facts(p, out);
}
int capturing_of_broken(void* stream, int* capturing) {
  return broken && mine_breaks ? kIllegalAddress : fake_cuda().stream_capturing(stream, capturing);
}

TEST_F(DeviceApi, ADeviceThatBreaksOnOneRankIsToldToAll) {
  for (const bool by_pointer : {true, false}) {
    cuda::Table table = fake_cuda();
    table.pointer_facts = by_pointer ? facts_of_broken : table.pointer_facts;
    table.stream_capturing = by_pointer ? table.stream_capturing : capturing_of_broken;
    use(table);
    broken = false;
    run_c_ranks(kWorld, [&](prunex_comm_t comm, int rank) {
      mine_breaks = rank == 1;
      FakeStream stream;
      OnDevice buffer(kCount);
      ASSERT_OK(sum_of_floats(comm, buffer.data, stream));
      if (rank == 1) {
        broken = true;
        EXPECT_FAILS(sum_of_floats(comm, buffer.data, stream), PRUNEX_ERROR_SYSTEM, "error 700");
        return;
      }
      prunex_result_t result = PRUNEX_SUCCESS;
      for (int call = 0; result == PRUNEX_SUCCESS && call < 1000; ++call) {
        result = sum_of_floats(comm, buffer.data, stream);
      }
      // They may have seen no more than that it is gone; a rank that leaves after that is lost,
      // too.
      EXPECT_TRUE(result == PRUNEX_ERROR_SYSTEM || result == PRUNEX_ERROR_PEER_LOST)
          << result << ": " << prunex_last_error();
      const std::string text = prunex_last_error();
      EXPECT_TRUE(text.find("error 700") != std::string::npos ||
                  text.find("rank ") != std::string::npos)
          << text;
    });
  }
}

TEST_F(DeviceApi, WhatIsNoStreamIsThisCallsError) {
  cuda::Table table = fake_cuda();
  table.stream_capturing = [](void* stream, int* capturing) {
    constexpr int kInvalidHandle = 400;
    return stream == nullptr ? kInvalidHandle : fake_cuda().stream_capturing(stream, capturing);
  };
  use(table);
  run_c_ranks({0}, [&](prunex_comm_t comm, int) {
    FakeStream stream;
    OnDevice buffer(kCount);
    EXPECT_FAILS(prunex_all_reduce(comm, buffer.data, buffer.data, kCount, PRUNEX_FLOAT32,
                                   PRUNEX_SUM, 0, nullptr),
                 PRUNEX_ERROR_INVALID_ARGUMENT, "stream");
    EXPECT_OK(sum_of_floats(comm, buffer.data, stream));
  });
}

}  // namespace
}  // namespace prunex::test
