// SPDX-License-Identifier: Apache-2.0
// Parts of `prunex bench p2p`: statistics, data, and what the two ends say first.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tools/p2p_data.h"
#include "tools/p2p_flow.h"
#include "tools/p2p_peer.h"
#include "tools/p2p_stats.h"

namespace prunex::tools {
namespace {

TEST(P2pHistogram, empty_is_zero) {
  const auto h = std::make_unique<Histogram>();
  EXPECT_EQ(h->count(), 0U);
  EXPECT_EQ(h->min_us(), 0);
  EXPECT_EQ(h->max_us(), 0);
  EXPECT_EQ(h->mean_us(), 0);
  EXPECT_EQ(h->percentile_us(50), 0);
}

TEST(P2pHistogram, percentiles_within_a_class_of_the_truth) {
  std::mt19937_64 random(7);
  auto all = std::make_unique<Histogram>(), first = std::make_unique<Histogram>(),
       second = std::make_unique<Histogram>();
  std::vector<int64_t> times;
  double sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto ns = static_cast<int64_t>(random() >> (random() % 40 + 24));  // of all magnitudes
    times.push_back(ns);
    sum += static_cast<double>(ns);
    all->add(ns);
    (i % 3 == 0 ? first : second)->add(ns);
  }
  first->add(*second);
  std::sort(times.begin(), times.end());
  for (const Histogram* h : {all.get(), first.get()}) {
    EXPECT_EQ(h->count(), times.size());
    EXPECT_DOUBLE_EQ(h->min_us(), static_cast<double>(times.front()) * 1e-3);
    EXPECT_DOUBLE_EQ(h->max_us(), static_cast<double>(times.back()) * 1e-3);
    EXPECT_NEAR(h->mean_us(), sum / 20'000 * 1e-3, sum / 20'000 * 1e-9);
    for (const double p : {1.0, 50.0, 90.0, 99.0, 99.9, 100.0}) {
      const double truth = static_cast<double>(times[static_cast<size_t>(p * 200) - 1]) * 1e-3;
      EXPECT_GE(h->percentile_us(p), truth * (1 - 1e-12)) << p;
      EXPECT_LE(h->percentile_us(p), truth * 1.008 + 0.001) << p;
    }
  }
}

TEST(P2pHistogram, the_longest_times_count_too) {
  const auto h = std::make_unique<Histogram>();
  h->add(INT64_MAX);
  h->add(-5);  // a clock that went back is no reason to fall
  EXPECT_EQ(h->count(), 2U);
  EXPECT_EQ(h->min_us(), 0);
  EXPECT_DOUBLE_EQ(h->max_us(), static_cast<double>(INT64_MAX) * 1e-3);
}

TEST(P2pHistogram, travels) {
  const auto h = std::make_unique<Histogram>(), other = std::make_unique<Histogram>();
  for (int i = 1; i < 1000; ++i) {
    h->add(i * i);
  }
  WireAppender out;
  h->encode(out);
  const std::string bytes = out.take();
  WireReader whole(bytes);
  ASSERT_TRUE(other->decode(whole));
  EXPECT_EQ(other->count(), h->count());
  EXPECT_EQ(other->percentile_us(99), h->percentile_us(99));
  EXPECT_EQ(other->deviation_us(), h->deviation_us());
  WireReader cut(std::string_view(bytes).substr(0, bytes.size() - 1));
  EXPECT_FALSE(other->decode(cut));
}

// Of all windows of so many successive messages.
double best_window(const std::vector<std::pair<int64_t, int64_t>>& times, size_t length) {
  double best = 0;
  for (size_t i = 0; i + length <= times.size(); ++i) {
    best = std::max(best, static_cast<double>(length) * 1e9 /
                              static_cast<double>(times[i + length - 1].second - times[i].first));
  }
  return best;
}

TEST(P2pPeak, best_window_of_any_run) {
  EXPECT_EQ(PeakRate().per_second(), 0);
  std::mt19937_64 random(11);
  for (const size_t messages : {1, 2, 3, 100, 5000}) {
    std::vector<std::pair<int64_t, int64_t>> times;
    int64_t now = 1'000'000;
    for (size_t i = 0; i < messages; ++i) {  // eight in flight, now fast, now slow
      const int64_t start = i < 8 ? 1'000'000 : times[i - 8].second + 10;
      now += static_cast<int64_t>(random() % 1000) * (i / 700 % 2 == 0 ? 1 : 20) + 1;
      times.emplace_back(start, now);
    }
    for (const uint64_t least : {1, 16, 10'000}) {
      PeakRate peak(least);
      for (const auto& [start, end] : times) {
        peak.add(start, end);
      }
      double want = best_window(times, messages);
      for (size_t length = 1; length <= 1024; length *= 2) {
        want = std::max(want, length >= least ? best_window(times, length) : 0);
      }
      EXPECT_DOUBLE_EQ(peak.per_second(), want) << messages << " " << least;
    }
  }
}

// A steady run has no better window than itself, whatever is in flight.
TEST(P2pPeak, a_steady_run_has_its_average) {
  PeakRate peak;
  for (int64_t i = 0; i < 10'000; ++i) {
    peak.add(std::max<int64_t>(i - 8, 0) * 100, (i + 1) * 100);
  }
  EXPECT_DOUBLE_EQ(peak.per_second(), 1e7);
}

TEST(P2pPeak, a_clock_without_steps_is_no_infinity) {
  PeakRate peak;
  peak.add(5, 5);
  EXPECT_LE(peak.per_second(), 1e9);
}

// A network in one thread, whose messages come a few at a time. Requests are counted from 1.
class StrictNet final : public NetApi {
 public:
  [[nodiscard]] int version() const override { return 12; }
  [[nodiscard]] const char* name() const override { return "strict"; }
  int init(uint64_t, nccl::Logger) override { return 0; }
  int finalize() override { return 0; }
  int devices(int*) override { return 0; }
  int device(int, NetDevice*) override { return 0; }
  int listen(int, void*, void**) override { return 0; }
  int connect(int, void*, void**) override { return 0; }
  int accept(void*, void**) override { return 0; }
  int reg_mr(void*, void*, size_t, void**) override { return 0; }
  int dereg_mr(void*, void*) override { return 0; }
  int close_send(void*) override { return 0; }
  int close_recv(void*) override { return 0; }
  int close_listen(void*) override { return 0; }

  int isend(void*, void*, size_t bytes, void*, void** request) override {
    sent_.push_back(static_cast<int>(bytes));
    *request = this;
    return 0;
  }
  int irecv(void*, void*, size_t, void*, void** request) override {
    most_ = std::max(most_, ++posted_ - taken_);
    *request = reinterpret_cast<void*>(posted_);
    return 0;
  }
  int test(void* request, int* done, int* bytes) override {
    *done = 1;
    if (request == this) {
      return 0;
    }
    const auto number = reinterpret_cast<uintptr_t>(request);
    if (++looks_ % 3 == 0 && arrived_ < std::min(sent_.size(), posted_)) {
      ++arrived_;
    }
    early_ += number > taken_ + 1 ? 1 : 0;
    *done = number <= arrived_ ? 1 : 0;
    if (*done != 0) {
      *bytes = sent_[number - 1];
      ++taken_;
    }
    return 0;
  }
  size_t early_ = 0;  // looks for another than the oldest
  size_t most_ = 0;   // receives posted at a time
  [[nodiscard]] bool all_taken() const { return taken_ == posted_ && posted_ == sent_.size(); }

 private:
  std::vector<int> sent_;
  size_t posted_ = 0, arrived_ = 0, taken_ = 0, looks_ = 0;
};

TEST(P2pFlow, another_network_is_asked_in_turn) {
  auto slots = make_slots(64, 2);
  ASSERT_TRUE(slots);
  for (const int batch : {1, 16}) {
    for (const bool in_turn : {true, false}) {
      for (const uint64_t messages : {1, 15, 16, 33, 100}) {
        StrictNet net;
        FlowEnd end;
        end.api = &net;
        end.slots = &*slots;
        end.slot_count = end.inflight = 2;
        end.receives = batch == 1 ? 2 : 32;
        end.batch = batch;
        end.in_turn = in_turn;
        SendFlow out;
        RecvFlow in;
        out.start(end, messages, 0);
        in.start(end, nullptr);
        for (int i = 0; i < 100'000 && !(out.done() && in.done()); ++i) {
          ASSERT_TRUE(out.done() || out.step());
          ASSERT_TRUE(in.done() || in.step());
        }
        ASSERT_TRUE(out.done() && in.done());
        EXPECT_EQ(in.messages(), messages);
        EXPECT_TRUE(net.all_taken()) << "no receive may stay posted";
        EXPECT_EQ(net.most_, static_cast<size_t>(end.receives));
        EXPECT_EQ(net.early_ == 0, in_turn || batch == 1) << batch << " " << messages;
        EXPECT_GE(in.peak_per_second() * 1.000001, static_cast<double>(messages) / in.seconds());
      }
    }
  }
}

TEST(Reports, G11_hello_of_another_version_names_both) {
  const P2pHello mine = own_p2p_hello();
  const auto theirs = decode_p2p_hello(encode(P2pHello{77, "9.8.7"}));
  ASSERT_TRUE(theirs) << theirs.error().text;
  EXPECT_EQ(theirs->protocol, 77U);
  EXPECT_EQ(theirs->release, "9.8.7");
  const auto fits = compare(mine, *theirs);
  ASSERT_FALSE(fits);
  EXPECT_NE(fits.error().text.find("9.8.7, protocol 77"), std::string::npos) << fits.error().text;
  EXPECT_NE(fits.error().text.find(mine.release + ", protocol 3"), std::string::npos);
  EXPECT_TRUE(compare(mine, mine));
}

TEST(Reports, G11_what_is_no_hello) {
  const std::string good = encode(own_p2p_hello());
  EXPECT_TRUE(decode_p2p_hello(good));
  for (size_t length = 0; length < 12; ++length) {
    EXPECT_FALSE(decode_p2p_hello(std::string_view(good).substr(0, length))) << length;
  }
  std::mt19937 random(3);
  for (int i = 0; i < 10'000; ++i) {
    std::string bytes = good;
    for (int flips = 0; flips < 4; ++flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto hello = decode_p2p_hello(bytes);  // whatever it is, it can be printed
    if (hello) {
      EXPECT_LE(hello->release.size(), 48U);
      EXPECT_TRUE(std::all_of(hello->release.begin(), hello->release.end(),
                              [](char c) { return c >= ' ' && c <= '~'; }));
    } else {
      EXPECT_NE(hello.error().text.find(own_p2p_hello().release), std::string::npos);
    }
  }
}

TEST(P2pData, the_receiver_knows_every_byte) {
  P2pSpec spec;
  spec.pattern = P2pPattern::blocks;
  spec.density = 0.4;
  spec.run = 512;
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{4096}, size_t{100'001}}) {
    auto sent = make_slots(bytes, 4), expected = make_slots(bytes, 4), other = make_slots(bytes, 4);
    ASSERT_TRUE(sent && expected && other);
    fill_slots(spec, 0, 4, *sent);
    fill_slots(spec, 0, 4, *expected);
    fill_slots(spec, 1, 4, *other);
    for (uint64_t i = 0; i < 8; ++i) {
      stamp(sent->slot(i, 4), bytes, i);
      EXPECT_EQ(wrong_bytes(sent->slot(i, 4), expected->slot(i, 4), bytes, i), 0U);
      EXPECT_GT(wrong_bytes(sent->slot(i, 4), expected->slot(i, 4), bytes, i + 1), 0U)
          << "an old message in the same slot is seen";
    }
    if (bytes > 1000) {
      EXPECT_GT(wrong_bytes(sent->slot(0, 4), other->slot(0, 4), bytes, 4), bytes / 8);
      EXPECT_NEAR(sent->density, 0.4, 0.05);
      sent->slot(2, 4)[bytes - 1] ^= std::byte{1};
      EXPECT_EQ(wrong_bytes(sent->slot(2, 4), expected->slot(2, 4), bytes, 6), 1U);
    }
  }
}

TEST(P2pData, what_is_kept_is_not_zero_and_the_rest_is) {
  P2pSpec spec;
  spec.pattern = P2pPattern::mask;
  spec.density = 0.3;
  spec.run = 128;
  auto slots = make_slots(10'000, 3);
  ASSERT_TRUE(slots);
  fill_slots(spec, 0, 3, *slots);
  std::vector<uint8_t> kept(slots->buffer.size(), 0);
  uint64_t end = 0;
  for (const prunex_range_t& range : slots->kept) {
    EXPECT_GE(range.begin, end);
    end = range.begin + range.count;
    ASSERT_LE(end, kept.size());
    std::fill_n(kept.begin() + static_cast<long>(range.begin), range.count, 1);
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(slots->buffer.data()[i] != std::byte{0}, kept[i] != 0) << i;
  }
}

TEST(P2pData, dense_data_have_no_zero_byte) {
  auto slots = make_slots(70'000, 2);
  ASSERT_TRUE(slots);
  fill_slots(P2pSpec(), 0, 2, *slots);
  EXPECT_EQ(slots->density, 1.0);
  EXPECT_EQ(std::count(slots->slot(1, 2), slots->slot(1, 2) + 70'000, std::byte{0}), 0);
}

}  // namespace
}  // namespace prunex::tools
