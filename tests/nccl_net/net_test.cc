// SPDX-License-Identifier: Apache-2.0
// Net over sockets, from the contract: polling, order, sizes, and what travels how.
#include <random>

#include "kernels/pack.h"
#include "tests/nccl_net/pair.h"
#include "tests/nccl_net/tensor.h"

namespace prunex::nccl {
namespace {

std::vector<std::byte> random_bytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) {
    b = static_cast<std::byte>(random() | 1);  // never zero
  }
  return out;
}

// Zero but for every `period`-th run of `run` bytes.
std::vector<std::byte> sparse_bytes(size_t bytes, size_t run, size_t period, uint32_t seed) {
  std::vector<std::byte> out = random_bytes(bytes, seed);
  for (size_t i = 0; i < bytes; ++i) {
    if (i / run % period != 0) {
      out[i] = std::byte{0};
    }
  }
  return out;
}

TEST(Net, every_size_arrives_raw_and_exact) {
  NetPair pair;
  Sent sent;
  uint64_t total = 0, count = 0;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{5}, size_t{4095}, size_t{4096}, size_t{65536},
                         (size_t{1} << 20) + 13, size_t{9} << 20}) {
    pair.exchange(random_bytes(n, static_cast<uint32_t>(n)));
    total += n;
    ++count;
  }
  EXPECT_EQ(sent.messages(WireKind::raw), count);
  EXPECT_EQ(sent.wire(), total);
}

TEST(Net, zero_blocks_are_not_sent) {
  NetPair pair;
  for (const size_t n : {size_t{8192}, size_t{1} << 20, (size_t{3} << 20) + 77}) {
    Sent sent;
    const auto data = sparse_bytes(n, 1024, 5, 3);  // one fifth
    pair.exchange(data, n + 5000);                  // into a larger receive
    EXPECT_EQ(sent.messages(WireKind::zero_block), 1U);
    EXPECT_LT(sent.wire(), n / 4 + 100);
  }
}

TEST(Net, negative_zero_and_nan_survive) {
  NetPair pair;
  std::vector<std::byte> data(size_t{256} << 10);
  const uint32_t odd[] = {0x80000000U, 0x7fc00001U, 0xffffffffU, 0x00000001U};
  for (size_t i = 0; i < std::size(odd); ++i) {
    std::memcpy(data.data() + i * 50000, &odd[i], 4);
  }
  Sent sent;
  pair.exchange(data);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 1U);
}

TEST(Net, passthrough_sends_everything_as_it_is) {
  const Variable mode("PRUNEX_NET_MODE", "passthrough");
  NetPair pair;
  Sent sent;
  pair.exchange(std::vector<std::byte>(1 << 20));
  EXPECT_EQ(sent.messages(WireKind::raw), 1U);
  EXPECT_EQ(sent.wire(), uint64_t{1} << 20);
}

TEST(Net, dense_data_are_looked_at_less_and_less) {
  NetPair pair;
  const auto dense = random_bytes(64 << 10, 1);
  const std::vector<std::byte> zeros(64 << 10);
  for (int i = 0; i < 40; ++i) {
    pair.exchange(dense);
  }
  Sent sent;
  int later = 0;
  while (sent.messages(WireKind::zero_block) == 0 && later < 200) {
    pair.exchange(zeros);
    ++later;
  }
  EXPECT_GT(later, 1) << "no back-off";
  EXPECT_LT(later, 70) << "it never looks again";
  pair.exchange(zeros);  // and once it paid, it looks every time
  EXPECT_EQ(sent.messages(WireKind::zero_block), 2U);
}

TEST(Net, a_registered_tensor_travels_by_its_mask) {
  NetPair pair;
  Tensor tensor(4);
  Sent sent;
  for (int i = 0; i < 3; ++i) {  // the mask itself only once
    pair.exchange(tensor.data.data(), tensor.data.size());
  }
  EXPECT_EQ(sent.messages(WireKind::masked), 3U);
  // 28 of 64 filters, and less than 1 % for headers and the mask.
  EXPECT_LT(static_cast<double>(sent.wire()),
            3.0 * static_cast<double>(tensor.data.size()) * 28 / 64 * 1.01);
  // A piece that begins and ends inside of filters.
  pair.exchange(tensor.data.data() + 1000, 100000);
  EXPECT_EQ(sent.messages(WireKind::masked), 4U);
}

TEST(Net, one_byte_in_a_dropped_place_sends_the_message_without_the_mask) {
  NetPair pair;
  Tensor tensor(4);
  const size_t dropped = 4 * 2304;  // the first byte of filter 4
  const Sent sent;
  for (const size_t at : {dropped, dropped + 2303, dropped + 4, 63 * size_t{2304} + 2303 - 2304}) {
    const std::byte before = tensor.data[at];
    tensor.data[at] = std::byte{0x80};
    pair.exchange(tensor.data.data(), tensor.data.size());
    tensor.data[at] = before;
  }
  EXPECT_GE(sent.violated(), 3U);  // the last place belongs to a kept filter or not
  EXPECT_EQ(sent.messages(WireKind::masked), 4U - sent.violated());
  // The tensor is zero in other places: without the mask it is still worth looking at.
  EXPECT_EQ(sent.messages(WireKind::zero_block), sent.violated());
  pair.exchange(tensor.data.data(), tensor.data.size());
  EXPECT_GE(sent.messages(WireKind::masked), 1U) << "one bad message must not stop the next";
}

TEST(Net, an_updated_mask_holds_for_the_next_message) {
  NetPair pair;
  Tensor tensor(4);
  Sent sent;
  pair.exchange(tensor.data.data(), tensor.data.size());
  std::vector<uint8_t> filters(64);
  filters[0] = 1;
  std::fill(tensor.data.begin() + 2304, tensor.data.end(), std::byte{0});
  prunex_mask_desc_t desc = {};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.declared_kept = -1;
  desc.keep[0] = filters.data();
  desc.keep_len[0] = 64;
  ASSERT_EQ(prunex_update_mask(tensor.mask, &desc), PRUNEX_SUCCESS) << prunex_last_error();
  const Sent after;
  pair.exchange(tensor.data.data(), tensor.data.size());
  EXPECT_EQ(after.messages(WireKind::masked), 1U);
  EXPECT_LT(after.wire(), 2304U + 1000U);
}

TEST(Net, more_masks_than_the_connection_keeps) {
  NetPair pair;
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    tensors.push_back(std::make_unique<Tensor>(1 + i % 6));
    std::vector<uint8_t> filters(64);
    for (size_t f = 0; f < 64; ++f) {
      filters[f] = random() % 3 == 0 ? 1 : 0;
    }
    prunex_mask_desc_t desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_DIMS;
    desc.declared_kept = -1;
    desc.keep[0] = filters.data();
    desc.keep_len[0] = 64;
    ASSERT_EQ(prunex_update_mask(tensors.back()->mask, &desc), PRUNEX_SUCCESS);
    for (size_t b = 0; b < tensors.back()->data.size(); ++b) {
      tensors.back()->data[b] =
          filters[b / 2304] != 0 ? static_cast<std::byte>(random() | 1) : std::byte{0};
    }
  }
  Sent sent;
  for (int round = 0; round < 3; ++round) {
    for (const auto& t : tensors) {
      pair.exchange(t->data.data(), t->data.size());
    }
  }
  EXPECT_EQ(sent.messages(WireKind::masked), 300U);
}

TEST(Net, what_reaches_past_a_tensor_is_stale_and_arrives) {
  NetPair pair;
  std::vector<std::byte> memory(400000);
  const int64_t sizes[] = {50000};
  std::vector<uint8_t> keep(50000);
  keep[7] = 1;
  prunex_tensor_t tensor = {sizeof tensor, PRUNEX_FLOAT32, 1, sizes, nullptr};
  prunex_mask_desc_t desc = {};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.declared_kept = -1;
  desc.keep[0] = keep.data();
  desc.keep_len[0] = 50000;
  prunex_mask_t mask = 0;
  ASSERT_EQ(prunex_register_mask(memory.data() + 100000, &tensor, &desc, &mask), PRUNEX_SUCCESS);
  memory[350000] = std::byte{1};
  Sent sent;
  pair.exchange(memory);
  EXPECT_EQ(sent.stale(), 1U);
  EXPECT_EQ(sent.messages(WireKind::masked), 0U);
  EXPECT_EQ(prunex_unregister_mask(mask), PRUNEX_SUCCESS);
}

TEST(Net, thirty_two_in_flight_then_again) {
  NetPair pair;
  std::vector<std::byte> data(1000), into(1000);
  std::vector<void*> sends(kMaxRequests), recvs(kMaxRequests);
  void* in = into.data();
  const size_t room = into.size();
  void* mr = nullptr;
  for (void*& r : recvs) {
    ASSERT_EQ(pair.net().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
    ASSERT_NE(r, nullptr);
  }
  void* more = &more;
  ASSERT_EQ(pair.net().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &more), kSuccess);
  EXPECT_EQ(more, nullptr);
  for (void*& s : sends) {
    ASSERT_EQ(pair.net().isend(pair.send, data.data(), data.size(), 0, nullptr, &s), kSuccess);
    ASSERT_NE(s, nullptr);
  }
  more = &more;
  ASSERT_EQ(pair.net().isend(pair.send, data.data(), data.size(), 0, nullptr, &more), kSuccess);
  EXPECT_EQ(more, nullptr);
  int bytes = 0;
  for (size_t i = 0; i < sends.size(); ++i) {
    EXPECT_EQ(NetPair::finish(recvs[i], &bytes, i + 1 < sends.size() ? nullptr : nullptr),
              kSuccess);
    EXPECT_EQ(bytes, 1000);
    EXPECT_EQ(NetPair::finish(sends[i], &bytes), kSuccess);
  }
  // An answered request is none any more.
  int done = 0;
  EXPECT_EQ(pair.net().test(sends[0], &done, nullptr), kInvalidArgument);
}

TEST(Net, polled_buffers_get_what_was_encoded) {
  NetPair pair;
  const auto data = sparse_bytes(256 << 10, 4096, 4, 9);
  std::vector<std::byte> into(data.size(), std::byte{0x11});
  void* in = into.data();
  const size_t room = into.size();
  void *mr = nullptr, *s = nullptr;
  void* r = reinterpret_cast<void*>(kOptionalRecv);
  ASSERT_EQ(pair.net().irecv(pair.recv, 1, &in, &room, nullptr, &mr, &r), kSuccess);
  Sent sent;
  ASSERT_EQ(
      pair.net().isend(pair.send, const_cast<std::byte*>(data.data()), data.size(), 0, nullptr, &s),
      kSuccess);
  int bytes = 0;
  ASSERT_EQ(NetPair::finish(r, &bytes, s), kSuccess);
  EXPECT_EQ(into, data);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 1U);
}

TEST(Net, ll_buffers_are_never_encoded) {
  NetPair pair;
  std::vector<std::byte> fifo(524288), fifo128(4915200);
  for (std::vector<std::byte>* one : {&fifo, &fifo128}) {
    void *mr = nullptr, *s = nullptr, *r = nullptr;
    ASSERT_EQ(pair.net().reg_mr(pair.send, one->data(), one->size(), kPtrHost, &mr), kSuccess);
    Sent sent;
    std::vector<std::byte> into(65536, std::byte{1});
    void* in = into.data();
    const size_t room = into.size();
    void* none = nullptr;
    ASSERT_EQ(pair.net().irecv(pair.recv, 1, &in, &room, nullptr, &none, &r), kSuccess);
    ASSERT_EQ(pair.net().isend(pair.send, one->data() + 65536, 65536, 0, mr, &s), kSuccess);
    int bytes = 0;
    ASSERT_EQ(NetPair::finish(r, &bytes, s), kSuccess);
    EXPECT_EQ(sent.messages(WireKind::zero_block), 0U);
    ASSERT_EQ(pair.net().dereg_mr(pair.send, mr), kSuccess);
  }
}

TEST(Net, what_nccl_says_of_the_protocol_holds_on_its_thread) {
  NetPair pair;
  const std::vector<std::byte> zeros(65536);
  const TransferHint ll{1U << 4, 1U << 1, 1U << 0}, simple{1U << 4, 1U << 1, 1U << 2};
  ASSERT_EQ(pair.net().set_hint(pair.ctx, &ll), kSuccess);
  Sent sent;
  pair.exchange(zeros);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 0U);
  ASSERT_EQ(pair.net().set_hint(pair.ctx, &simple), kSuccess);
  pair.exchange(zeros);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 1U);
  // Point-to-point operations leave the protocol of whatever was before them.
  const TransferHint p2p{1U << 6, 1U << 1, 1U << 0};
  ASSERT_EQ(pair.net().set_hint(pair.ctx, &p2p), kSuccess);
  pair.exchange(zeros);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 2U);
}

}  // namespace
}  // namespace prunex::nccl
