// SPDX-License-Identifier: Apache-2.0
// Host memory that was registered, as NCCL registers its own: from the first message of a
// connection and of a mask on, neither end allocates. And what a mask costs that only the sender
// has.
#include "tests/allocated/allocated.h"

#include <memory>

#include "plugin/nccl/codec/mask_wire.h"
#include "tests/nccl_net/pair.h"
#include "tests/nccl_net/tensor.h"

namespace prunex::nccl {
namespace {

constexpr size_t kSlots = 8, kSlot = size_t{512} << 10;  // NCCL's

struct Flight {
  size_t from, to, bytes;
  void *sending = nullptr, *receiving = nullptr;
  int sent = 0, received = 0, got = -1;
  [[nodiscard]] bool done() const { return sent != 0 && received != 0; }
};

class Registered {
 public:
  explicit Registered(size_t source = kSlots * kSlot) : from(source), to(kSlots * kSlot) {
    EXPECT_EQ(pair.net().reg_mr(pair.send, from.data(), from.size(), kPtrHost, &from_mr), kSuccess);
    EXPECT_EQ(pair.net().reg_mr(pair.recv, to.data(), to.size(), kPtrHost, &to_mr), kSuccess);
  }
  ~Registered() {
    EXPECT_EQ(pair.net().dereg_mr(pair.send, from_mr), kSuccess);
    EXPECT_EQ(pair.net().dereg_mr(pair.recv, to_mr), kSuccess);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  bool post_send(Flight& f) {
    EXPECT_EQ(pair.net().isend(pair.send, from.data() + f.from, f.bytes, 0, from_mr, &f.sending),
              kSuccess);
    return f.sending != nullptr;
  }
  bool post_receive(Flight& f) {
    void* place = to.data() + f.to;
    const size_t room = kSlot;
    EXPECT_EQ(pair.net().irecv(pair.recv, 1, &place, &room, nullptr, &to_mr, &f.receiving),
              kSuccess);
    return f.receiving != nullptr;
  }
  void look(Flight& f) {
    if (f.sending != nullptr && f.sent == 0) {
      EXPECT_EQ(pair.net().test(f.sending, &f.sent, nullptr), kSuccess);
    }
    if (f.receiving != nullptr && f.received == 0) {
      EXPECT_EQ(pair.net().test(f.receiving, &f.received, &f.got), kSuccess);
    }
  }
  // As many under way as are taken. What both ends allocated meanwhile.
  size_t exchange(std::vector<Flight> all) {
    const size_t before = test::allocations();
    const Deadline deadline = Deadline::after(kPatience);
    const auto done = [](const Flight& f) { return f.done(); };
    while (!std::all_of(all.begin(), all.end(), done) && !deadline.passed() &&
           !testing::Test::HasFailure()) {
      for (Flight& f : all) {
        if ((f.receiving == nullptr && !post_receive(f)) ||
            (f.sending == nullptr && !post_send(f))) {
          break;
        }
      }
      for (Flight& f : all) {
        look(f);
      }
    }
    const size_t after = test::allocations();
    EXPECT_FALSE(deadline.passed());
    for (const Flight& f : all) {
      EXPECT_EQ(f.got, static_cast<int>(f.bytes));
      EXPECT_EQ(std::memcmp(from.data() + f.from, to.data() + f.to, f.bytes), 0) << f.from;
    }
    return after - before;
  }

  NetPair pair;
  std::vector<std::byte> from, to;
  void *from_mr = nullptr, *to_mr = nullptr;
};

// Half of its blocks are zero, or none is.
void fill(std::byte* at, size_t bytes, bool sparse) {
  for (size_t i = 0; i < bytes; ++i) {
    at[i] = static_cast<std::byte>(sparse && i / 1024 % 2 == 1 ? 0 : i * 7 | 1);
  }
}

// As Tensor, at a place of the caller's.
class MaskAt {
 public:
  MaskAt(std::byte* base, size_t rows, size_t columns, size_t period, const char* name = nullptr) {
    std::vector<uint8_t> keep(rows);
    for (size_t r = 0; r < rows; ++r) {
      keep[r] = r % period == 0 ? 1 : 0;
      for (size_t c = 0; c < 4 * columns; ++c) {
        base[r * 4 * columns + c] = static_cast<std::byte>(keep[r] == 0 ? 0 : c | 1);
      }
    }
    const int64_t sizes[] = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
    const prunex_tensor_t tensor = {sizeof tensor, PRUNEX_FLOAT32, 2, sizes, nullptr};
    prunex_mask_desc_t desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_DIMS;
    desc.name = name;
    desc.declared_kept = -1;
    desc.keep[0] = keep.data();
    desc.keep_len[0] = rows;
    EXPECT_EQ(prunex_register_mask(base, &tensor, &desc, &mask_), PRUNEX_SUCCESS)
        << prunex_last_error();
  }
  ~MaskAt() { forget(); }
  void forget() {
    if (mask_ != 0) {
      EXPECT_EQ(prunex_unregister_mask(mask_), PRUNEX_SUCCESS);
    }
    mask_ = 0;
  }
  MaskAt(const MaskAt&) = delete;
  MaskAt& operator=(const MaskAt&) = delete;

 private:
  prunex_mask_t mask_ = 0;
};

class Allocated : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::counts_allocations()) {
      GTEST_SKIP() << "the sanitizer brings an operator new of its own";
    }
  }
  const Variable mode_{"PRUNEX_NET_MODE", "compact"};
};

TEST_F(Allocated, nothing_from_the_first_message_on) {
  Registered r;
  std::vector<Flight> all;
  std::vector<std::unique_ptr<MaskAt>> masks;
  for (size_t i = 0; i < kSlots; ++i) {
    std::byte* const at = r.from.data() + i * kSlot;
    switch (i % 4) {
      case 0:  // named and not
        masks.push_back(std::make_unique<MaskAt>(
            at, 512, 256, 2 + i, i == 0 ? "a tensor of a very long name" : nullptr));
        break;
      case 1:
        fill(at, kSlot, true);
        break;
      default:
        fill(at, kSlot, false);
    }
    all.push_back({i * kSlot, i * kSlot, i % 4 == 3 ? size_t{100} : kSlot});
  }
  const Sent sent;
  EXPECT_EQ(r.exchange(all), 0U);
  EXPECT_EQ(sent.messages(WireKind::masked), 2U);
  EXPECT_EQ(sent.messages(WireKind::zero_block), 2U);
  EXPECT_EQ(r.exchange(all), 0U);
  EXPECT_EQ(sent.messages(WireKind::masked), 4U);
}

// A mask that was updated is a new one to both ends.
TEST_F(Allocated, nothing_for_a_mask_that_comes_while_messages_move) {
  Registered r;
  for (size_t period = 2; period < 8; ++period) {
    const MaskAt mask(r.from.data(), 512, 256, period, period % 2 == 0 ? "weight" : nullptr);
    const Sent sent;
    EXPECT_EQ(r.exchange({{0, 0, kSlot}, {1024, kSlot, kSlot - 1024}}), 0U);
    EXPECT_EQ(sent.messages(WireKind::masked), 2U);
  }
}

// Nobody receives, so that no memory comes back: who has no room waits, and everything arrives.
TEST_F(Allocated, nothing_while_the_room_is_full) {
  constexpr size_t kMany = 32;
  Registered r(kMany * kSlot);
  std::vector<Flight> all;
  for (size_t i = 0; i < kMany; ++i) {
    fill(r.from.data() + i * kSlot, kSlot, true);
    all.push_back({i * kSlot, i % kSlots * kSlot, kSlot});
  }
  const size_t before = test::allocations();
  for (int round = 0; round < 200; ++round) {
    for (Flight& f : all) {
      if (f.sending == nullptr && !r.post_send(f)) {
        break;
      }
      r.look(f);
    }
  }
  EXPECT_EQ(test::allocations(), before);
  EXPECT_EQ(all.back().sent, 0) << "all of it went out: this tests nothing";
  const Deadline deadline = Deadline::after(kPatience);
  for (size_t i = 0; i < kMany && !deadline.passed();) {
    Flight& f = all[i];
    if (f.receiving == nullptr) {
      (void)r.post_receive(f);
    }
    r.look(f);
    if (f.received != 0) {
      EXPECT_EQ(std::memcmp(r.from.data() + f.from, r.to.data() + f.to, f.bytes), 0) << i;
      ++i;
    }
  }
  EXPECT_EQ(test::allocations(), before);
  while (!all.back().sent && !deadline.passed()) {
    for (Flight& f : all) {
      r.look(f);
    }
  }
}

// The receiver needs no registration: it makes the mask from what it is told, once.
TEST_F(Allocated, a_mask_that_the_receiver_does_not_have) {
  Registered r;
  auto mask = std::make_unique<MaskAt>(r.from.data(), 512, 256, 3);
  const Sent sent;
  Flight first{0, 0, kSlot}, second{0, kSlot, kSlot};
  const Deadline deadline = Deadline::after(kPatience);
  ASSERT_TRUE(r.post_send(first) && r.post_send(second));
  while (sent.messages(WireKind::masked) < 2 && !deadline.passed()) {
    r.look(first);
    r.look(second);
  }
  mask->forget();  // one registry for both ends here
  (void)test::take_allocated();
  for (Flight* f : {&first, &second}) {
    ASSERT_TRUE(r.post_receive(*f));
    while (!f->received && !deadline.passed()) {
      r.look(*f);
    }
    EXPECT_EQ(f->got, static_cast<int>(kSlot));
    EXPECT_EQ(std::memcmp(r.from.data(), r.to.data() + f->to, kSlot), 0);
    const size_t taken = test::take_allocated();
    EXPECT_EQ(taken > 0, f == &first) << taken << " bytes";
    EXPECT_LE(taken, codec::MaskDefinitionDecoder::kDecodedPerByte * size_t{4096});
  }
}

}  // namespace
}  // namespace prunex::nccl
