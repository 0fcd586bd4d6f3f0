// SPDX-License-Identifier: Apache-2.0
// Report A16: what cannot be meant is refused in a line, and what is in use goes on.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/nccl/host/chain.h"
#include "tests/nccl/pipe.h"

namespace prunex::nccl::host {
namespace {

// Says that a call is refused in a line.
template <class Call>
void must_refuse(const char* what, Call&& call) {
  const size_t before = log_lines().size();
  const Status status = call();
  PRUNEX_MUST(status != kSuccess, "%s is accepted", what);
  PRUNEX_MUST(log_lines().size() == before + 1, "%s: %zu lines", what, log_lines().size() - before);
}

void refuse_misuse_of_net(Pipe& pipe) {
  HostNet& net = *pipe.sender;
  char data[64] = {};
  void* comm = nullptr;
  void* mr = nullptr;
  void* request = nullptr;
  void* place = data;
  int done = 0, tag = 0, count = 0, flushed = 64;
  size_t size = sizeof data;
  Properties properties;
  PRUNEX_MUST(net.devices(&count) == kSuccess);
  const auto regs = [&](void* of, size_t bytes) {
    return net.reg_mr(of, data, bytes, kPtrHost, &mr);
  };
  must_refuse("regMr of NULL", [&] { return regs(nullptr, 64); });
  must_refuse("regMr of NULL data",
              [&] { return net.reg_mr(pipe.send, nullptr, 64, kPtrHost, &mr); });
  must_refuse("regMr of 0 bytes", [&] { return regs(pipe.send, 0); });
  must_refuse("regMr of junk memory", [&] { return net.reg_mr(pipe.send, data, 64, 99, &mr); });
  must_refuse("deregMr of NULL", [&] { return net.dereg_mr(pipe.send, nullptr); });
  must_refuse("isend on NULL", [&] { return net.isend(nullptr, data, 8, 0, nullptr, &request); });
  must_refuse("isend of NULL",
              [&] { return net.isend(pipe.send, nullptr, 8, 0, nullptr, &request); });
  must_refuse("isend on a receiver",
              [&] { return net.isend(pipe.recv, data, 8, 0, nullptr, &request); });
  must_refuse("irecv on NULL",
              [&] { return net.irecv(nullptr, 1, &place, &size, &tag, &mr, false, &request); });
  must_refuse("irecv of none",
              [&] { return net.irecv(pipe.recv, 0, &place, &size, &tag, &mr, false, &request); });
  must_refuse("irecv on a sender",
              [&] { return net.irecv(pipe.send, 1, &place, &size, &tag, &mr, false, &request); });
  must_refuse("iflush on NULL",
              [&] { return net.iflush(nullptr, 1, &place, &flushed, &mr, &request); });
  must_refuse("test of NULL", [&] { return net.test(nullptr, &done, nullptr); });
  must_refuse("closeSend of NULL", [&] { return net.close_send(nullptr); });
  must_refuse("closeSend of a receiver", [&] { return net.close_send(pipe.recv); });
  must_refuse("closeRecv of NULL", [&] { return net.close_recv(nullptr); });
  must_refuse("closeListen of NULL", [&] { return net.close_listen(nullptr); });
  must_refuse("closeListen of a sender", [&] { return net.close_listen(pipe.send); });
  must_refuse("device -1", [&] { return net.properties(-1, &properties); });
  must_refuse("one device too many", [&] { return net.properties(count, &properties); });
  must_refuse("listen on one too many", [&] { return net.listen(count, data, &comm); });
  must_refuse("listen without handle", [&] { return net.listen(0, nullptr, &comm); });
  must_refuse("accept on NULL", [&] { return net.accept(nullptr, &comm); });
  must_refuse("connect without handle", [&] { return net.connect(0, nullptr, &comm); });
  Handle junk;
  std::memset(junk, 0xA5, sizeof junk);
  must_refuse("connect to junk", [&] { return net.connect(0, junk, &comm); });
  Handle empty{};
  must_refuse("connect to zeros", [&] { return net.connect(0, empty, &comm); });
}

TEST(Reports, A16_misuse_is_refused_in_a_line) {
  for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
    PRUNEX_EXPECT_WELL(in_child([=] {
      Pipe pipe(version);
      pipe.exchange(pattern(1000, 1));
      refuse_misuse_of_net(pipe);
      pipe.exchange(pattern(100000, 2, true));  // what is in use goes on
      pipe.close();
      PRUNEX_MUST(log_faults().empty(), "%s", log_faults().c_str());
    }));
  }
}

TEST(Reports, A16_misuse_of_collnet_is_refused_in_a_line) {
  for (int version = abi::kOldest; version <= abi::kNewest; ++version) {
    PRUNEX_EXPECT_WELL(run_world(Ranks::processes, 2, [=](Rank& rank) {
      Chain chain(rank, version);
      HostColl& coll = chain.coll();
      char data[64] = {};
      void *comm = nullptr, *mr = nullptr, *request = nullptr;
      int done = 0, count = 0;
      Properties properties;
      PRUNEX_MUST(coll.devices(&count) == kSuccess);
      const auto sum = [&](void* of, void* from, void* to) {
        return coll.iallreduce(of, from, to, 4, abi::kFloat32, abi::kSum, nullptr, nullptr,
                               &request);
      };
      must_refuse("device -1", [&] { return coll.properties(-1, &properties); });
      must_refuse("listen on one too many", [&] { return coll.listen(count, data, &comm); });
      must_refuse("listen without handle", [&] { return coll.listen(0, nullptr, &comm); });
      must_refuse("connect without handles",
                  [&] { return coll.connect(nullptr, 2, 0, nullptr, &comm); });
      must_refuse("regMr of NULL",
                  [&] { return coll.reg_mr(nullptr, data, sizeof data, kPtrHost, &mr); });
      must_refuse("regMr of 0 bytes",
                  [&] { return coll.reg_mr(chain.comm(), data, 0, kPtrHost, &mr); });
      must_refuse("deregMr of NULL", [&] { return coll.dereg_mr(chain.comm(), nullptr); });
      must_refuse("iallreduce on NULL", [&] { return sum(nullptr, data, data); });
      must_refuse("iallreduce of NULL", [&] { return sum(chain.comm(), nullptr, data); });
      must_refuse("test of NULL", [&] { return coll.test(nullptr, &done, nullptr); });
      (void)coll.close_coll(nullptr);  // no crash is all that is asked
      (void)coll.close_listen(nullptr);
      rank.barrier();
      float ones[4] = {1, 1, 1, 1}, sums[4] = {};
      chain.registered(ones, sums, 4, type_of(abi::kFloat32), abi::kSum);
      PRUNEX_MUST(sums[0] == 2 && sums[3] == 2, "what is in use goes on");
      rank.barrier();
      chain.close();
    }));
  }
}

}  // namespace
}  // namespace prunex::nccl::host
