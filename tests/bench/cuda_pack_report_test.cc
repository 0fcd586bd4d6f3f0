// SPDX-License-Identifier: Apache-2.0
// What cuda_pack_bench makes of its measurements: bytes that must move, goals, table and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/cuda_pack_report.h"
#include "bench/cuda_pack_shapes.h"
#include "kernels/mask.h"

namespace prunex::bench {
namespace {

using testing::HasSubstr;

// Element by element.
uint64_t touched_slowly(const Layout& layout, size_t size) {
  std::vector<uint8_t> sector((layout.count * size + kSector - 1) / kSector);
  for (const Segment& s : layout.segments) {
    for (uint64_t i = 0; i < s.count; ++i) {
      if (s.mask == nullptr || keeps(*s.mask, i)) {
        sector[(s.offset + i) * size / kSector] = 1;
      }
    }
  }
  return kSector * static_cast<uint64_t>(std::count(sector.begin(), sector.end(), 1));
}

Layout of_bytes(const std::vector<uint8_t>& keep) {
  MaskSpec spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 1;
  spec.sizes = {static_cast<int64_t>(keep.size())};
  spec.cells = keep;
  auto mask = std::make_shared<const CompiledMask>(*compile(spec));
  return *make_layout({{0, keep.size(), mask, {}, false}}, keep.size());
}

TEST(TouchedBytes, by_hand) {
  std::vector<uint8_t> keep(64, 0);
  keep[0] = keep[7] = 1;  // floats: one sector
  EXPECT_EQ(touched_bytes(of_bytes(keep), 4), 32u);
  keep[8] = 1;
  EXPECT_EQ(touched_bytes(of_bytes(keep), 4), 64u);
  EXPECT_EQ(touched_bytes(of_bytes(keep), 2), 32u);
  EXPECT_EQ(touched_bytes(dense_layout(9), 4), 64u) << "the sector of the last one is read whole";
  EXPECT_EQ(touched_bytes(dense_layout(0), 4), 0u);
}

TEST(TouchedBytes, as_element_by_element) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<uint8_t> keep(1 + rng() % 700);
    std::bernoulli_distribution kept(round % 2 == 0 ? 0.05 : 0.6);
    for (uint8_t& k : keep) {
      k = kept(rng) ? 1 : 0;
    }
    const Layout layout = of_bytes(keep);
    for (const size_t size : {1, 2, 4, 8}) {
      EXPECT_EQ(touched_bytes(layout, size), touched_slowly(layout, size)) << round;
    }
  }
  const std::vector<Layout> buckets = resnet50(rng, 0.25, 4);
  EXPECT_EQ(touched_bytes(buckets.back(), 4), touched_slowly(buckets.back(), 4));
}

TEST(Sets, more_than_the_cache_holds) {
  EXPECT_EQ(sets_for(10, 50, 1, 1000), 20u) << "four times the cache";
  EXPECT_GE(10 * sets_for(10, 50, 1, 1000), kCaches * 50);
  EXPECT_EQ(sets_for(1000, 50, 1, 10000), 2u) << "never one alone";
  EXPECT_EQ(sets_for(10, 50, 100, 500), 5u) << "what memory holds";
  EXPECT_EQ(sets_for(0, 50, 1, 1000), 2u);
}

TEST(Subjects, patterns_and_types) {
  std::string names;
  bool f32 = false, bf16 = false;
  for (const Subject& s : subjects(true)) {
    names += s.name + "\n";
    f32 = f32 || s.type == DType::f32;
    bf16 = bf16 || s.type == DType::bf16;
    EXPECT_GT(s.layout.kept, 0u) << s.name;
  }
  EXPECT_TRUE(f32 && bf16);
  for (const char* name : {"resnet50 d=0.50", "resnet50 d=0.25", "filters", "channels", "both",
                           "blocks", "run 1 ", "run 256", "dense"}) {
    EXPECT_THAT(names, HasSubstr(name));
  }
}

TEST(Resnet50, buckets_of_25_megabytes) {
  std::mt19937_64 rng(1);
  uint64_t elements = 0;
  const std::vector<Layout> buckets = resnet50(rng, 0.5, 4);
  for (const Layout& b : buckets) {
    elements += b.count;
  }
  EXPECT_GE(buckets.front().count * 4, 25'000'000u);
  EXPECT_NEAR(static_cast<double>(elements), 25.55e6, 0.1e6) << "ResNet-50's parameters";
}

Row row(Step step, double us, double copy_us) {
  Row r;
  r.subject = "it \"is\"";
  r.type = "f32";
  r.step = step;
  r.bytes = 1e6;
  r.seconds = us * 1e-6;
  r.copy_seconds = copy_us * 1e-6;
  return r;
}

TEST(Goals, model) {
  Row r = row(Step::pack, 100, 85);
  EXPECT_FALSE(goal_of(r).set) << "short runs of no model have none";
  r.model = true;
  EXPECT_TRUE(goal_of(r).set && goal_of(r).reached);
  r.copy_seconds = 84e-6;
  EXPECT_FALSE(goal_of(r).reached);
  r.step = Step::unpack;
  EXPECT_FALSE(goal_of(r).reached);
}

TEST(Goals, long_runs) {
  Row r = row(Step::unpack, 100, 89);
  r.run = 127;
  EXPECT_FALSE(goal_of(r).set);
  r.run = 128;
  EXPECT_TRUE(goal_of(r).set);
  EXPECT_FALSE(goal_of(r).reached);
  r.copy_seconds = 90.1e-6;
  EXPECT_TRUE(goal_of(r).reached);
}

TEST(Goals, audit_by_time_per_byte) {
  Row r = row(Step::audit, 218, 0);
  r.pack_seconds = 100e-6;
  r.pack_bytes = 0.5e6;
  EXPECT_NEAR(added(r), 0.09, 1e-9);
  EXPECT_TRUE(goal_of(r).reached);
  r.seconds = 222e-6;
  EXPECT_FALSE(goal_of(r).reached);
}

TEST(Goals, compile) {
  EXPECT_TRUE(goal_of(row(Step::compile, 199, 0)).reached);
  EXPECT_FALSE(goal_of(row(Step::compile, 201, 0)).reached);
}

TEST(Goals, nothing_measured_reaches_nothing) {
  for (const Step step : {Step::pack, Step::audit, Step::unpack, Step::compile}) {
    Row r = row(step, 0, 0);
    r.model = true;
    EXPECT_TRUE(goal_of(r).set);
    EXPECT_FALSE(goal_of(r).reached) << name_of(step);
  }
}

TEST(Report, table_and_json) {
  std::vector<Row> rows{row(Step::pack, 100, 95), row(Step::compile, 300, 0)};
  rows[0].model = true;
  EXPECT_THAT(line_of(rows[0]), HasSubstr("0.950"));
  EXPECT_THAT(line_of(rows[0]), HasSubstr(" reached"));
  EXPECT_THAT(line_of(rows[1]), HasSubstr("NOT REACHED"));
  EXPECT_EQ(summary(rows), "2 goals, 1 reached, 1 missed");
  EXPECT_EQ(missed(rows), 1);
  const auto json = nlohmann::json::parse(json_of({"A \\ GPU", 90, 132, 50 << 20, false}, rows));
  EXPECT_EQ(json["device"], "A \\ GPU");
  EXPECT_EQ(json["goals_missed"], 1);
  EXPECT_EQ(json["rows"][0]["subject"], "it \"is\"");
  EXPECT_NEAR(json["rows"][0]["of_copy"].get<double>(), 0.95, 1e-6);
  EXPECT_NEAR(json["rows"][0]["gbytes_per_s"].get<double>(), 10, 1e-6);
  EXPECT_TRUE(json["rows"][0]["reached"].get<bool>());
  EXPECT_TRUE(json["rows"][1]["of_copy"].is_null());
  EXPECT_THAT(heading({"X", 90, 132, 50 << 20, false}), HasSubstr("4 x the L2"));
}

}  // namespace
}  // namespace prunex::bench
