// SPDX-License-Identifier: Apache-2.0
#include "tools/models.h"

#include <array>
#include <cmath>
#include <utility>

namespace prunex::tools {
namespace {

constexpr int64_t kStemWidth = 64;
constexpr int64_t kClasses = 1000;
constexpr int64_t kImageChannels = 3;
constexpr uint64_t kFirstBucketBytes = uint64_t{1} << 20;

struct Shape {
  std::string_view name;
  bool bottleneck;
  std::array<int, 4> blocks;  // per stage
};

constexpr std::array<Shape, 5> kShapes = {{
    {"resnet18", false, {2, 2, 2, 2}},
    {"resnet34", false, {3, 4, 6, 3}},
    {"resnet50", true, {3, 4, 6, 3}},
    {"resnet101", true, {3, 4, 23, 3}},
    {"resnet152", true, {3, 8, 36, 3}},
}};

constexpr auto kNames = [] {
  std::array<std::string_view, kShapes.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = kShapes[i].name;
  }
  return names;
}();

class Builder {
 public:
  explicit Builder(std::string_view name) { model_.name = name; }

  GroupSet group_set(int64_t groups) {
    model_.group_sizes.push_back(static_cast<size_t>(groups));
    return static_cast<GroupSet>(model_.group_sizes.size()) - 1;
  }
  void conv(std::string name, int64_t out, int64_t in, int64_t kernel, GroupSet filters = -1,
            GroupSet channels = -1) {
    model_.parameters.push_back(
        {std::move(name) + ".weight", {out, in, kernel, kernel}, filters, channels});
  }
  // Weight and bias; both follow the filters they scale.
  void norm(const std::string& name, int64_t width, GroupSet filters = -1) {
    model_.parameters.push_back({name + ".weight", {width}, filters, -1});
    model_.parameters.push_back({name + ".bias", {width}, filters, -1});
  }
  void linear(const std::string& name, int64_t out, int64_t in) {
    model_.parameters.push_back({name + ".weight", {out, in}, -1, -1});
    model_.parameters.push_back({name + ".bias", {out}, -1, -1});
  }
  Model take() { return std::move(model_); }

 private:
  Model model_;
};

void add_bottleneck(Builder& b, const std::string& at, int64_t in, int64_t width, int64_t out) {
  const GroupSet first = b.group_set(width);
  const GroupSet second = b.group_set(width);
  b.conv(at + ".conv1", width, in, 1, first);
  b.norm(at + ".bn1", width, first);
  b.conv(at + ".conv2", width, width, 3, second, first);
  b.norm(at + ".bn2", width, second);
  b.conv(at + ".conv3", out, width, 1, -1, second);
  b.norm(at + ".bn3", out);
}

void add_basic(Builder& b, const std::string& at, int64_t in, int64_t width) {
  const GroupSet first = b.group_set(width);
  b.conv(at + ".conv1", width, in, 3, first);
  b.norm(at + ".bn1", width, first);
  b.conv(at + ".conv2", width, width, 3, -1, first);
  b.norm(at + ".bn2", width);
}

}  // namespace

uint64_t Parameter::count() const {
  uint64_t n = 1;
  for (const int64_t extent : shape) {
    n *= static_cast<uint64_t>(extent);
  }
  return n;
}

uint64_t Model::count() const {
  uint64_t n = 0;
  for (const Parameter& p : parameters) {
    n += p.count();
  }
  return n;
}

std::span<const std::string_view> model_names() { return kNames; }

Result<Model> make_model(std::string_view name) {
  const Shape* shape = nullptr;
  std::string known;
  for (const Shape& s : kShapes) {
    if (s.name == name) {
      shape = &s;
    }
    known.append(known.empty() ? "" : ", ").append(s.name);
  }
  if (shape == nullptr) {
    return fail(Code::invalid_argument,
                strf("unknown model '%s'; known are %s", std::string(name).c_str(), known.c_str()));
  }
  Builder b(name);
  b.conv("conv1", kStemWidth, kImageChannels, 7);
  b.norm("bn1", kStemWidth);
  int64_t in = kStemWidth;
  const int64_t expansion = shape->bottleneck ? 4 : 1;
  for (size_t stage = 0; stage < shape->blocks.size(); ++stage) {
    const int64_t width = kStemWidth << stage;
    const int64_t out = width * expansion;
    for (int block = 0; block < shape->blocks[stage]; ++block) {
      const std::string at = strf("layer%zu.%d", stage + 1, block);
      if (shape->bottleneck) {
        add_bottleneck(b, at, in, width, out);
      } else {
        add_basic(b, at, in, width);
      }
      if (block == 0 && in != out) {
        b.conv(at + ".downsample.0", out, in, 1);
        b.norm(at + ".downsample.1", out);
      }
      in = out;
    }
  }
  b.linear("fc", kClasses, in);
  return b.take();
}

size_t kept_groups(double keep, size_t n) {
  const double kept = std::floor(keep * static_cast<double>(n) + 0.5);
  return kept <= 0 ? 0 : std::min(n, static_cast<size_t>(kept));
}

std::vector<uint8_t> choose_groups(size_t n, double keep, uint64_t seed, uint64_t stream) {
  // splitmix64 (Steele et al. 2014): the standard library's shuffles differ between libraries.
  uint64_t state = seed * 0x9E3779B97F4A7C15u ^ (stream + 1) * 0xD1B54A32D192ED03u;
  const auto next = [&state] {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  const size_t kept = kept_groups(keep, n);
  std::vector<uint8_t> flags(n, 0);
  // Selection sampling: one pass, exactly `kept` ones, every subset equally likely.
  size_t left = kept;
  for (size_t i = 0; i < n && left > 0; ++i) {
    if (next() % (n - i) < left) {
      flags[i] = 1;
      --left;
    }
  }
  return flags;
}

std::vector<size_t> bucket_ends(std::span<const uint64_t> sizes_bytes, uint64_t cap_bytes) {
  std::vector<size_t> ends;
  if (cap_bytes > 0) {
    uint64_t filled = 0;
    for (size_t i = 0; i < sizes_bytes.size(); ++i) {
      filled += sizes_bytes[i];
      if (filled >= (ends.empty() ? std::min(kFirstBucketBytes, cap_bytes) : cap_bytes)) {
        ends.push_back(i + 1);
        filled = 0;
      }
    }
  }
  if (!sizes_bytes.empty() && (ends.empty() || ends.back() != sizes_bytes.size())) {
    ends.push_back(sizes_bytes.size());
  }
  return ends;
}

}  // namespace prunex::tools
