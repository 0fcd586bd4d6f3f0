// SPDX-License-Identifier: Apache-2.0
// The ResNets' shapes and the pruning rule, against torchvision's published parameter counts and
// the table of reachable volumes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tools/models.h"
#include "tools/workload.h"

namespace prunex::tools {
namespace {

Model model_named(std::string_view name) {
  Result<Model> model = make_model(name);
  EXPECT_TRUE(model) << name;
  return model ? *model : Model{};
}

double kept_fraction(std::string_view name, double keep) {
  const Workload workload = model_workload(model_named(name), DType::f32, 0);
  const uint64_t kept = kept_elements(workload, choose_keep(workload, keep, 7));
  return static_cast<double>(kept) / static_cast<double>(workload.count());
}

TEST(Models, have_torchvisions_parameter_counts) {
  EXPECT_EQ(model_named("resnet18").count(), 11'689'512u);
  EXPECT_EQ(model_named("resnet34").count(), 21'797'672u);
  EXPECT_EQ(model_named("resnet50").count(), 25'557'032u);
  EXPECT_EQ(model_named("resnet101").count(), 44'549'160u);
  EXPECT_EQ(model_named("resnet152").count(), 60'192'808u);
}

TEST(Models, have_torchvisions_names_and_shapes) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& p : model_named("resnet50").parameters) {
    EXPECT_TRUE(shapes.emplace(p.name, p.shape).second) << p.name << " twice";
  }
  EXPECT_EQ(shapes.size(), 161u);
  EXPECT_EQ(shapes["conv1.weight"], (std::vector<int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(shapes["layer1.0.downsample.0.weight"], (std::vector<int64_t>{256, 64, 1, 1}));
  EXPECT_EQ(shapes["layer2.0.conv2.weight"], (std::vector<int64_t>{128, 128, 3, 3}));
  EXPECT_EQ(shapes["layer4.2.conv3.weight"], (std::vector<int64_t>{2048, 512, 1, 1}));
  EXPECT_EQ(shapes["layer4.2.bn3.bias"], (std::vector<int64_t>{2048}));
  EXPECT_EQ(shapes["fc.weight"], (std::vector<int64_t>{1000, 2048}));
  const std::vector<Parameter> small = model_named("resnet18").parameters;
  EXPECT_EQ(small.size(), 62u);
  EXPECT_TRUE(std::none_of(small.begin(), small.end(), [](const Parameter& p) {
    return p.name.find("layer1.0.downsample") != std::string::npos;
  })) << "the first stage of a basic ResNet keeps its width";
}

TEST(Models, unknown_name_is_an_error_that_lists_the_known) {
  const Result<Model> model = make_model("resnet51");
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().text.find("resnet51"), std::string::npos);
  EXPECT_NE(model.error().text.find("resnet152"), std::string::npos);
}

// Fraction of all parameters when the inner convolutions keep 0.5, 0.4, 0.3 of their filters.
TEST(Models, pruning_reaches_the_known_fractions) {
  const struct {
    const char* name;
    double at[3];
  } rows[] = {{"resnet18", {.530, .436, .342}},
              {"resnet50", {.484, .408, .340}},
              {"resnet101", {.435, .351, .276}},
              {"resnet152", {.418, .331, .254}}};
  const double keeps[] = {0.5, 0.4, 0.3};
  for (const auto& row : rows) {
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(kept_fraction(row.name, keeps[i]), row.at[i], 0.0011) << row.name << keeps[i];
    }
  }
  EXPECT_LE(kept_fraction("resnet50", 0.4), 0.408);
  EXPECT_EQ(kept_fraction("resnet50", 1), 1);
}

TEST(Models, consumers_follow_the_filters_of_their_producer) {
  std::map<std::string, Parameter> at;
  for (const Parameter& p : model_named("resnet50").parameters) {
    at[p.name] = p;
  }
  const std::string block = "layer3.1.";
  const GroupSet first = at[block + "conv1.weight"].filters;
  const GroupSet second = at[block + "conv2.weight"].filters;
  EXPECT_GE(first, 0);
  EXPECT_GE(second, 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(at[block + "bn1.weight"].filters, first);
  EXPECT_EQ(at[block + "bn1.bias"].filters, first);
  EXPECT_EQ(at[block + "conv2.weight"].channels, first);
  EXPECT_EQ(at[block + "bn2.bias"].filters, second);
  EXPECT_EQ(at[block + "conv3.weight"].channels, second);
  // Whatever meets in the residual addition stays whole.
  EXPECT_EQ(at[block + "conv1.weight"].channels, -1);
  EXPECT_EQ(at[block + "conv3.weight"].filters, -1);
  EXPECT_EQ(at[block + "bn3.weight"].filters, -1);
  EXPECT_EQ(at["layer3.0.downsample.0.weight"].filters, -1);
  EXPECT_EQ(at["fc.weight"].channels, -1);
}

TEST(Models, basic_blocks_prune_between_their_two_convolutions) {
  std::map<std::string, Parameter> at;
  for (const Parameter& p : model_named("resnet18").parameters) {
    at[p.name] = p;
  }
  const GroupSet inner = at["layer2.1.conv1.weight"].filters;
  EXPECT_GE(inner, 0);
  EXPECT_EQ(at["layer2.1.bn1.weight"].filters, inner);
  EXPECT_EQ(at["layer2.1.conv2.weight"].channels, inner);
  EXPECT_EQ(at["layer2.1.conv2.weight"].filters, -1);
  EXPECT_EQ(at["layer2.1.bn2.weight"].filters, -1);
}

TEST(Groups, kept_number_is_rounded) {
  EXPECT_EQ(kept_groups(0.4, 64), 26u);    // 25.6
  EXPECT_EQ(kept_groups(0.4, 512), 205u);  // 204.8
  EXPECT_EQ(kept_groups(0.5, 5), 3u);
  EXPECT_EQ(kept_groups(0, 10), 0u);
  EXPECT_EQ(kept_groups(1, 10), 10u);
  EXPECT_EQ(kept_groups(0.4, 0), 0u);
}

TEST(Groups, choice_depends_on_seed_and_stream_alone) {
  for (const size_t n : {size_t{1}, size_t{64}, size_t{2048}}) {
    for (const double keep : {0.0, 0.1, 0.4, 1.0}) {
      const std::vector<uint8_t> flags = choose_groups(n, keep, 3, 5);
      EXPECT_EQ(flags, choose_groups(n, keep, 3, 5));
      ASSERT_EQ(flags.size(), n);
      EXPECT_EQ(static_cast<size_t>(std::count(flags.begin(), flags.end(), 1)),
                kept_groups(keep, n));
    }
  }
  EXPECT_NE(choose_groups(64, 0.4, 3, 5), choose_groups(64, 0.4, 4, 5));
  EXPECT_NE(choose_groups(64, 0.4, 3, 5), choose_groups(64, 0.4, 3, 6));
  // Neither the first ones nor the last ones: each index is kept by some seed and dropped by
  // another.
  std::vector<int> often(32, 0);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<uint8_t> flags = choose_groups(32, 0.5, seed, 0);
    std::transform(flags.begin(), flags.end(), often.begin(), often.begin(), std::plus<int>());
  }
  EXPECT_GT(*std::min_element(often.begin(), often.end()), 140);
  EXPECT_LT(*std::max_element(often.begin(), often.end()), 260);
}

TEST(Buckets, one_buffer_without_a_cap) {
  const uint64_t sizes[] = {10, 20, 30};
  EXPECT_EQ(bucket_ends(sizes, 0), (std::vector<size_t>{3}));
  EXPECT_TRUE(bucket_ends({}, 0).empty());
}

TEST(Buckets, first_is_small_and_the_others_reach_the_cap) {
  const uint64_t mib = uint64_t{1} << 20;
  const std::vector<uint64_t> sizes(20, mib / 2);
  EXPECT_EQ(bucket_ends(sizes, 4 * mib), (std::vector<size_t>{2, 10, 18, 20}));
  const uint64_t large[] = {100 * mib, 1, 2};
  EXPECT_EQ(bucket_ends(large, 4 * mib), (std::vector<size_t>{1, 3}));
}

TEST(Workload, model_is_laid_out_last_parameter_first) {
  const Model model = model_named("resnet18");
  const Workload workload = model_workload(model, DType::bf16, 0);
  ASSERT_EQ(workload.buffers.size(), 1u);
  EXPECT_EQ(workload.bytes(), 2 * model.count());
  const std::vector<Piece>& pieces = workload.buffers[0].pieces;
  EXPECT_EQ(pieces.front().name, "fc.bias");
  EXPECT_EQ(pieces.back().name, "conv1.weight");
  uint64_t end = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.offset, end) << piece.name;
    end += piece.count;
  }
  EXPECT_EQ(end, model.count());
}

TEST(Workload, buckets_hold_every_parameter_once) {
  const Model model = model_named("resnet50");
  const Workload workload = model_workload(model, DType::f32, uint64_t{25} << 20);
  EXPECT_GT(workload.buffers.size(), 3u);
  EXPECT_EQ(workload.count(), model.count());
  std::set<std::string> names;
  for (const BenchBuffer& buffer : workload.buffers) {
    for (const Piece& piece : buffer.pieces) {
      EXPECT_TRUE(names.insert(piece.name).second) << piece.name;
    }
  }
  EXPECT_EQ(names.size(), model.parameters.size());
}

// The runs of a piece tile it, and say "kept" exactly where filter and channel are kept.
TEST(Workload, runs_follow_filters_and_channels) {
  const Piece piece{"w", {4, 3, 2}, 100, 24, 0, 1, 0};
  const KeepFlags flags = {{1, 0, 1, 1}, {0, 1, 1}};
  std::vector<int> kept(24, -1);
  uint64_t next = 100;
  for_each_run(piece, flags, [&](uint64_t begin, uint64_t count, bool keeps) {
    EXPECT_EQ(begin, next);
    next += count;
    std::fill_n(kept.begin() + static_cast<long>(begin - 100), count, keeps ? 1 : 0);
  });
  EXPECT_EQ(next, 124u);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(kept[i], flags[0][i / 6] * flags[1][i / 2 % 3]) << i;
  }
}

TEST(Workload, plain_sizes_meet_the_density_from_small_to_large) {
  for (const uint64_t bytes : {uint64_t{256}, uint64_t{1000}, uint64_t{1} << 20}) {
    const Workload workload = size_workload(bytes, DType::f32);
    EXPECT_EQ(workload.count(), bytes / 4);
    const uint64_t kept = kept_elements(workload, choose_keep(workload, 0.4, 1));
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(workload.count()), 0.4, 0.02)
        << bytes;
  }
  EXPECT_EQ(size_workload(0, DType::f32).count(), 0u);
  EXPECT_EQ(size_workload(3, DType::f32).count(), 0u) << "whole elements only";
}

}  // namespace
}  // namespace prunex::tools
