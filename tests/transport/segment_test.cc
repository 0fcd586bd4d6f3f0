// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/segment.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "plugin/transport/shm/futex.h"

namespace prunex::transport::shm {
namespace {

bool exists(const std::string& path) {
  struct stat s {};
  return stat(path.c_str(), &s) == 0;
}

TEST(Segment, two_mappings_are_one_memory) {
  auto a = Segment::create(10'000);
  ASSERT_TRUE(a) << a.error().text;
  EXPECT_EQ(a->size(), 10'000U);
  for (const std::byte b : a->span()) {
    ASSERT_EQ(b, std::byte{0});
  }
  auto b = Segment::attach(a->name(), 10'000);
  ASSERT_TRUE(b) << b.error().text;
  ASSERT_NE(a->data(), b->data());
  a->data()[9'999] = std::byte{42};
  EXPECT_EQ(b->data()[9'999], std::byte{42});
  struct stat s {};
  ASSERT_EQ(stat(a->name().c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07777U, 0600U);
  a->unlink();
  EXPECT_FALSE(exists(a->name()));
  b->data()[0] = std::byte{7};
  EXPECT_EQ(a->data()[0], std::byte{7});
}

TEST(Segment, the_creator_leaves_nothing_behind_and_the_user_does_not_unlink) {
  std::string name;
  {
    auto a = Segment::create(4096);
    ASSERT_TRUE(a);
    name = a->name();
    {
      auto b = Segment::attach(name, 4096);
      ASSERT_TRUE(b);
    }
    EXPECT_TRUE(exists(name));
    Segment moved = std::move(*a);
    EXPECT_FALSE(*a);
    EXPECT_TRUE(moved);
  }
  EXPECT_FALSE(exists(name));
}

TEST(Segment, attach_refuses_other_paths_and_short_files) {
  auto a = Segment::create(4096);
  ASSERT_TRUE(a);
  auto longer = Segment::attach(a->name(), 8192);
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code, Code::mismatch);
  EXPECT_NE(longer.error().text.find("8192"), std::string::npos);
  for (const std::string& bad :
       {std::string("/etc/passwd"), std::string(), a->name() + "0", std::string("/dev/shm/x"),
        std::string("/dev/shm/prunex-../../../etc/passwd00000000"),
        a->name().substr(0, a->name().size() - 1) + "/"}) {
    auto r = Segment::attach(bad, 1);
    ASSERT_FALSE(r) << bad;
    EXPECT_EQ(r.error().code, Code::invalid_argument) << bad;
  }
  auto gone = Segment::attach("/dev/shm/prunex-00000000000000000000000000000000", 1);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().sys_errno, ENOENT);
}

TEST(Segment, attach_follows_no_symbolic_link) {
  auto name = random_name();
  ASSERT_TRUE(name);
  ASSERT_EQ(symlink("/etc/passwd", name->c_str()), 0);
  auto r = Segment::attach(*name, 1);
  EXPECT_FALSE(r);
  ::unlink(name->c_str());
}

TEST(Segment, too_large_for_dev_shm_names_size_and_remedy) {
  auto r = Segment::create(size_t{1} << 50);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::memory) << r.error().text;
  EXPECT_NE(r.error().text.find("1125899906842624"), std::string::npos) << r.error().text;
  EXPECT_NE(r.error().text.find("/dev/shm"), std::string::npos) << r.error().text;
  EXPECT_FALSE(Segment::create(0));
}

TEST(Futex, wakes_another_process) {
  auto a = Segment::create(4096);
  ASSERT_TRUE(a);
  auto* word = new (a->data()) SharedWord(1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool changed = wait_while_equal(*word, 1, Deadline::after(20));
    word[1].store(word->load() == 2 && changed ? 77 : 1);
    futex_wake_all(word[1]);
    _exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  word->store(2, std::memory_order_release);
  futex_wake_all(*word);
  EXPECT_TRUE(wait_while_equal(word[1], 0, Deadline::after(20)));
  EXPECT_EQ(word[1].load(), 77U);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST(Futex, gives_up_at_the_deadline) {
  SharedWord word(5);
  EXPECT_FALSE(wait_while_equal(word, 5, Deadline::after(0.01)));
  EXPECT_FALSE(wait_while_equal(word, 5, Deadline::after(0)));
  EXPECT_TRUE(wait_while_equal(word, 4, Deadline::after(0)));
  EXPECT_TRUE(futex_wait(word, 4, Deadline::after(10)));  // differs already: no sleep
}

}  // namespace
}  // namespace prunex::transport::shm
