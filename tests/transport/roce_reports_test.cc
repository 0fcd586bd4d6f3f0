// SPDX-License-Identifier: Apache-2.0
// User reports on real devices of the kernel's, both ends in this process, with a look at what the
// library is asked for.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "plugin/transport/verbs/api.h"
#include "tests/transport/roce.h"

namespace prunex::transport {
namespace {

// The real library, with its calls counted. One at a time.
class Watch {
 public:
  Watch() {
    const auto loaded = verbs::load_api();
    EXPECT_TRUE(loaded) << loaded.error().text;
    real_ = api_ = **loaded;
    it_ = this;
    api_.create_qp = [](ibv_pd* domain, ibv_qp_init_attr* attr) {
      ibv_qp* pair = it_->real_.create_qp(domain, attr);
      if (pair != nullptr) {
        it_->add(pair);
      }
      return pair;
    };
    api_.reg_mr = [](ibv_pd* domain, void* data, size_t bytes, int access) {
      ++it_->registered_;
      return it_->real_.reg_mr(domain, data, bytes, access);
    };
    if (real_.reg_mr_iova2 != nullptr) {
      api_.reg_mr_iova2 = [](ibv_pd* domain, void* data, size_t bytes, uint64_t at,
                             unsigned access) {
        ++it_->registered_;
        return it_->real_.reg_mr_iova2(domain, data, bytes, at, access);
      };
    }
    api_.dereg_mr = [](ibv_mr* region) {
      --it_->registered_;
      return it_->real_.dereg_mr(region);
    };
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { it_ = nullptr; }

  [[nodiscard]] const verbs::Api* api() const { return &api_; }
  [[nodiscard]] int registered() const { return registered_; }  // regions that there are
  // Of a device's queue pairs; bytes: posted in requests longer than records.
  [[nodiscard]] std::map<uint32_t, uint64_t> bytes_of(const std::string& device) const {
    std::map<uint32_t, uint64_t> out;
    for (const ibv_qp* pair : pairs_) {
      if (device == pair->context->device->name) {
        const auto sent = bytes_.find(pair->qp_num);
        out[pair->qp_num] = sent == bytes_.end() ? 0 : sent->second;
      }
    }
    return out;
  }
  void forget_bytes() { bytes_.clear(); }
  // From now on the device answers nothing that comes for it.
  void deafen(const std::string& device) {
    for (ibv_qp* pair : pairs_) {
      if (device == pair->context->device->name) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_ERR;
        EXPECT_EQ(real_.modify_qp(pair, &attr, IBV_QP_STATE), 0);
      }
    }
  }

 private:
  void add(ibv_qp* pair) {
    pairs_.push_back(pair);
    auto& post = pair->context->ops.post_send;
    if (post != counted) {
      post_ = post;
      post = counted;
    }
  }
  static int counted(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad) {
    for (const ibv_send_wr* one = first; it_ != nullptr && one != nullptr; one = one->next) {
      uint64_t bytes = 0;
      for (int i = 0; i < one->num_sge; ++i) {
        bytes += one->sg_list[i].length;
      }
      it_->bytes_[pair->qp_num] += bytes > 1000 ? bytes : 0;
    }
    return post_(pair, first, bad);
  }

  static inline Watch* it_ = nullptr;
  static inline int (*post_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  verbs::Api real_, api_;
  std::vector<ibv_qp*> pairs_;
  std::map<uint32_t, uint64_t> bytes_;
  int registered_ = 0;
};

VerbsOptions watched(const Watch& watch) {
  VerbsOptions o;
  o.api = watch.api();
  return o;
}

TEST(Reports, B11_status_12_says_what_to_look_at) {
  NEED_DEVICES();
  Watch watch;
  VerbsOptions options = watched(watch);
  options.timeout = 12;
  options.retry_count = 2;
  const auto t = open_on(0, options), u = open_on(1, options);
  ASSERT_TRUE(t && u);
  Pair p = make_pair(*t, *u);
  ASSERT_TRUE(p.a && p.b);
  watch.deafen("rxe1");
  Ticket s = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(&bytes, sizeof bytes, nullptr, &s), Io::done);
  ASSERT_EQ(finish(*p.a, nullptr, s, &bytes), Io::failed);
  EXPECT_EQ(p.a->error().code, Code::peer_lost);
  const std::string& text = p.a->error().text;
  for (const char* part : {"status 12", "rxe0:1 (GID ", "::ffff:10.77.0.1", "rxe1:1 (GID ",
                           "::ffff:10.77.0.2", "RoCE v2", "timeout 12", "2 retries", "GID index"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST(Reports, B21_regions_balance_and_outlive_their_use) {
  NEED_DEVICES();
  Watch watch;
  {
    const auto t = open_on(0, watched(watch)), u = open_on(1, watched(watch));
    ASSERT_TRUE(t && u);
    Pair p = make_pair(*t, *u);
    ASSERT_TRUE(p.a && p.b);
    receive_into_fresh_regions(*u, p, 20'000, [&] { return watch.registered(); });
  }
  EXPECT_EQ(watch.registered(), 0);
}

// For five seconds, with several messages in flight; ends by itself.
TEST(Reports, G14_every_queue_pair_carries_its_share) {
  NEED_DEVICES();
  constexpr size_t kPairs = 4, kSlots = 8, kBytes = size_t{256} << 10;
  Watch watch;
  VerbsOptions options = watched(watch);
  options.queue_pairs = kPairs;
  const auto t = open_on(0, options), u = open_on(1, options);
  ASSERT_TRUE(t && u);
  Pair p = make_pair(*t, *u);
  ASSERT_TRUE(p.a && p.b);
  auto out = pattern(kBytes, 14);
  std::vector<std::byte> into(kSlots * kBytes);
  auto source = t->register_relaxed(out.data(), out.size()),
       target = u->register_relaxed(into.data(), into.size());
  ASSERT_TRUE(source && target);
  watch.forget_bytes();  // those of the probe
  std::array<Ticket, kSlots> sends{}, receives{};
  uint64_t posted = 0, done = 0;
  const Deadline deadline = Deadline::after(5);
  while (done < posted || !deadline.passed()) {
    for (; posted < done + kSlots && !deadline.passed(); ++posted) {
      std::byte* slot = into.data() + posted % kSlots * kBytes;
      ASSERT_EQ(p.b->irecv(slot, kBytes, target->get(), &receives[posted % kSlots]), Io::done);
      ASSERT_EQ(p.a->isend(out.data(), kBytes, source->get(), &sends[posted % kSlots]), Io::done);
    }
    if (done == posted) {
      break;
    }
    size_t bytes = 0;
    ASSERT_EQ(finish(*p.b, p.a.get(), receives[done % kSlots], &bytes), Io::done)
        << p.b->error().text;
    ASSERT_EQ(bytes, kBytes);
    ASSERT_EQ(std::memcmp(into.data() + done % kSlots * kBytes, out.data(), kBytes), 0) << done;
    ASSERT_EQ(finish(*p.a, p.b.get(), sends[done % kSlots], &bytes), Io::done);
    ++done;
  }
  const auto sent = watch.bytes_of("rxe0");
  ASSERT_EQ(sent.size(), kPairs);
  uint64_t total = 0;
  for (const auto& [pair, bytes] : sent) {
    EXPECT_GT(bytes, 0U);
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(done * kBytes) / kPairs,
                static_cast<double>(done * 256))
        << pair;
    total += bytes;
  }
  EXPECT_EQ(total, done * kBytes);
}

}  // namespace
}  // namespace prunex::transport
