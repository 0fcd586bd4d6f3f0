// SPDX-License-Identifier: Apache-2.0
// Threads are lent: what was theirs comes back, and nothing is made on a device that nobody chose.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "plugin/device/on_device.h"

namespace prunex::device {
namespace {

// As CUDA 12 and later: to choose a device makes a context there.
struct Machine {
  int chosen = 0;
  std::set<int> contexts;
  std::vector<void*> stack = {nullptr};
  std::map<int, char> primaries;
  int retained = 0;
};
Machine* machine = nullptr;

int get_device(int* device) {
  *device = machine->chosen;
  return 0;
}
int set_device(int device) {
  if (device > 3) {
    return 101;
  }
  machine->chosen = device;
  machine->contexts.insert(device);
  machine->stack.back() = &machine->primaries[device];
  return 0;
}

class Threads : public testing::Test {
 protected:
  Threads() {
    machine = &here_;
    table_.get_device = get_device;
    table_.set_device = set_device;
    driver_.current = [](void** out) {
      *out = machine->stack.back();
      return 0;
    };
    driver_.retain = [](void** out, int device) {
      ++machine->retained;
      *out = &machine->primaries[device];
      return 0;
    };
    driver_.push = [](void* context) {
      machine->stack.push_back(context);
      return 0;
    };
    driver_.pop = [](void** out) {
      *out = machine->stack.back();
      machine->stack.pop_back();
      return 0;
    };
    replace_driver_contexts(&driver_);
  }
  ~Threads() override { replace_driver_contexts(nullptr); }
  Machine here_;
  cuda::Table table_{};
  DriverContexts driver_;
};

TEST_F(Threads, OneThatChoseNoDeviceGetsNoContextOnTheFirst) {
  for (int round = 0; round < 3; ++round) {
    {
      const OnDevice on(table_, 2);
      EXPECT_EQ(on.error(), 0);
      EXPECT_EQ(here_.stack.back(), &here_.primaries[2]);
    }
    EXPECT_EQ(here_.stack, std::vector<void*>{nullptr});
    EXPECT_EQ(here_.chosen, 0);
    EXPECT_TRUE(here_.contexts.empty());
  }
}

TEST_F(Threads, OneThatChoseADeviceHasItAgain) {
  ASSERT_EQ(set_device(1), 0);
  {
    const OnDevice on(table_, 2);
    EXPECT_EQ(here_.chosen, 2);
  }
  EXPECT_EQ(here_.chosen, 1);
  EXPECT_EQ(here_.stack.back(), &here_.primaries[1]);
}

TEST_F(Threads, TheSameDeviceIsLeftAlone) {
  const OnDevice on(table_, 0);
  EXPECT_EQ(here_.stack.size(), 1u);
  EXPECT_TRUE(here_.contexts.empty());
}

TEST_F(Threads, ADeviceThatIsNotThereIsAnError) {
  ASSERT_EQ(set_device(1), 0);
  {
    const OnDevice on(table_, 7);
    EXPECT_EQ(on.error(), 101);
  }
  EXPECT_EQ(here_.chosen, 1);
}

}  // namespace
}  // namespace prunex::device
