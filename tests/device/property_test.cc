// SPDX-License-Identifier: Apache-2.0
// Random calls on device memory against the element-by-element reference, on worlds of every shape:
// uneven nodes, several leaders, every type, operation, scope and contract.
#include <gtest/gtest.h>

#include "tests/collective/random_call.h"
#include "tests/device/device_world.h"

namespace prunex::test {
namespace {

using collective::Scope;

struct Shape {
  const char* name;
  std::vector<int> node_of;
  DeviceWorld world;
};

const Shape kShapes[] = {
    {"1", {0}, {}},
    {"3", {0, 0, 0}, {}},
    {"1_1", {0, 1}, {}},
    {"2_2", {0, 0, 1, 1}, {}},
    {"2_2_two_rails", {0, 0, 1, 1}, {2}},
    {"2_2_two_rails_without_split", {0, 0, 1, 1}, {2, false}},
    {"1_2_3", {0, 1, 1, 2, 2, 2}, {}},
    {"1_2_3_two_rails", {0, 1, 1, 2, 2, 2}, {2}},
    {"3_2_three_rails", {0, 0, 0, 1, 1}, {3}},
    {"shuffled", {3, 1, 0, 1, 2, 1, 0}, {1, false}},
    {"old_nccl", {0, 0, 1}, {1, false, false}},
};

constexpr uint64_t kLimits[] = {1, 40, 3000, 3000, 3000, 20'000, 20'000};
constexpr int kRepeats = 3;  // armed once

class DeviceProperty : public testing::TestWithParam<Shape> {};

RandomCall random_call(Random& random, size_t ranks, uint64_t limit) {
  RandomCall call;
  const uint64_t bits = random();
  call.type = static_cast<DType>(bits % kNumDTypes);
  call.op = static_cast<Op>((bits >> 8) % 8 < 5 ? (bits >> 8) % 2 : (bits >> 8) % kNumOps);
  call.scope = static_cast<Scope>((bits >> 16) % 5 < 3 ? 0 : (bits >> 16) % 5 - 2);
  call.in_place = (bits >> 24) % 2 == 0;
  call.shift = (bits >> 40) % 7;
  call.count = (bits >> 48) % limit + 1;
  if (limit > 1 && bits >> 60 > 2) {
    call.layout = random_layout(random, limit);
    call.count = call.layout.masked->layout.count;
  }
  if (call.count == 0) {  // a call of no elements has no place in any memory
    call.count = 1;
    call.layout = {};
  }
  fill_inputs(call, random, ranks);
  return call;
}

// NCCL's MAX and MIN are not ours where values are NaN, which these inputs have only in places that
// are cut off.
std::string perform_on_device(const DeviceRank& r, const RandomCall& call) {
  const std::vector<std::byte>& input = call.inputs[static_cast<size_t>(r.rank)];
  const size_t shift = call.shift * size_of(call.type);
  DeviceBuffer send(input.size() + shift), recv(input.size() + shift + 64);
  std::copy(input.begin(), input.end(), send.data() + shift);
  const auto contributors = contributors_of(r.comm.world(), r.rank, call.scope);
  collective::CallSpec spec;
  spec.send = send.data() + shift;
  spec.recv = call.in_place ? send.data() + shift : recv.data() + size_of(call.type);
  spec.count = call.count;
  spec.type = call.type;
  spec.op = call.op;
  spec.scope = call.scope;
  spec.masked = call.layout.masked;
  const auto result = r.call(spec);
  r.stream.synchronize();
  if (!result) {
    return "failed: " + result.error().text;
  }
  if (!call.in_place && !std::equal(input.begin(), input.end(), send.data() + shift)) {
    return "the send buffer was changed";
  }
  return compare(call, expected(call, contributors), static_cast<const std::byte*>(spec.recv),
                 false);
}

TEST_P(DeviceProperty, EqualsTheReference) {
  const Shape& shape = GetParam();
  const size_t ranks = shape.node_of.size();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Random random(seed * 977 + ranks);
    std::vector<RandomCall> calls;
    for (const uint64_t limit : kLimits) {
      calls.push_back(random_call(random, ranks, limit));
    }
    run_device_ranks(
        shape.node_of,
        [&](const DeviceRank& r) {
          for (size_t i = 0; i < calls.size() * kRepeats; ++i) {
            const RandomCall& call = calls[i % calls.size()];
            const std::string fault = perform_on_device(r, call);
            ASSERT_EQ(fault, "") << "rank " << r.rank << ", call " << i << ": " << call.text();
          }
        },
        shape.world);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeviceProperty, testing::ValuesIn(kShapes), [](const auto& shape) {
  return std::string("shape_") + shape.param.name;
});

}  // namespace
}  // namespace prunex::test
