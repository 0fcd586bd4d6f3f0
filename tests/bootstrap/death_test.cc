// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, killed and stopped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>

#include "tests/bootstrap/ranks.h"

namespace prunex::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A forked rank with a pipe back for what it has to tell.
class Process {
 public:
  using Tell = std::function<void(const std::string&)>;
  explicit Process(const std::function<void(const Tell&)>& run) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::pipe2(fds.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(200);  // never outlives the test
      run([fd = fds[1]](const std::string& text) {
        const std::string line = text + '\n';
        if (::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
          ::_exit(9);
        }
      });
      ::_exit(0);
    }
    ::close(fds[1]);
    out_.reset(fds[0]);
  }
  ~Process() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Waits for the next line; "" at the end.
  std::string line() {
    std::string out;
    for (char c; ::read(out_.get(), &c, 1) == 1 && c != '\n';) {
      out += c;
    }
    return out;
  }
  void signal(int number) const { ::kill(pid_, number); }

 private:
  pid_t pid_ = -1;
  Fd out_;
};

std::string words(const Error& error) {
  return strf("%d %d ", static_cast<int>(error.code), error.rank) + error.text;
}
std::string words(const Verdict& v) { return words(Error{v.code, v.text, 0, v.culprit}); }

// Opens, says so, then does `then`.
std::unique_ptr<Process> rank_process(
    const std::string& root, int rank, int size,
    const std::function<void(Control&, const Process::Tell&)>& then) {
  return std::make_unique<Process>([=](const Process::Tell& tell) {
    auto opened = Control::open(options_at(root, rank, size));
    tell(opened ? "open" : words(opened.error()));
    if (opened) {
      then(**opened, tell);
    }
  });
}

void tell_gather(Control& control, const Process::Tell& tell) {
  const auto got = control.all_gather("x", kNeverS);
  tell(got ? "gathered" : words(got.error()));
}

// As an engine with nothing to do: asleep on the fd until there is a verdict.
void tell_verdict(Control& control, const Process::Tell& tell) {
  while (!control.aborted()) {
    pollfd one{control.poll_fd(), POLLIN, 0};
    ::poll(&one, 1, 1000);
    control.poll();
  }
  tell(words(*control.aborted()));
}

void just_sleep(Control&, const Process::Tell&) {
  while (true) {
    ::pause();
  }
}

TEST(Death, a_killed_rank_is_named_by_every_survivor) {
  for (const bool in_gather : {true, false}) {
    for (const int victim : {0, 2}) {
      const std::string root = free_root();
      std::vector<std::unique_ptr<Process>> ranks;
      for (int rank = 0; rank < 4; ++rank) {
        ranks.push_back(rank_process(root, rank, 4,
                                     rank == victim ? just_sleep
                                     : in_gather    ? tell_gather
                                                    : tell_verdict));
      }
      for (const auto& one : ranks) {
        ASSERT_EQ(one->line(), "open");
      }
      ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
      std::string story;
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == victim) {
          continue;
        }
        const std::string text = ranks[static_cast<size_t>(rank)]->line();
        EXPECT_THAT(text, testing::StartsWith(strf("%d %d ", int(Code::peer_lost), victim)));
        EXPECT_THAT(text, HasSubstr(strf("rank %d was lost", victim)));
        EXPECT_EQ(text, story.empty() ? text : story);
        story = text;
      }
    }
  }
}

TEST(Death, while_the_others_are_still_coming) {
  for (const int victim : {0, 1}) {
    const std::string root = free_root();
    std::vector<std::unique_ptr<Process>> ranks;
    for (const int rank : {0, 1, 2}) {  // of 4: nobody gets past the meeting
      ranks.push_back(rank_process(root, rank, 4, tell_gather));
    }
    // The time is only there to let them come; any moment of the death must do.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ranks[static_cast<size_t>(victim)]->signal(SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) {
        EXPECT_THAT(ranks[static_cast<size_t>(rank)]->line(),
                    AllOf(testing::StartsWith(strf("%d %d ", int(Code::peer_lost), victim)),
                          HasSubstr(strf("rank %d was lost", victim))));
      }
    }
  }
}

TEST(Death, a_stopped_rank_is_named_at_the_deadline) {
  for (const int victim : {0, 1}) {
    const std::string root = free_root();
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(rank_process(root, rank, 3, [=](Control& control, const Process::Tell& tell) {
        if (rank == victim) {
          ::raise(SIGSTOP);
        }
        const auto got = control.all_gather("x", 1.0);
        tell(got ? "gathered" : words(got.error()));
      }));
    }
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(ranks[static_cast<size_t>(rank)]->line(), "open");
    }
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) {
        EXPECT_THAT(ranks[static_cast<size_t>(rank)]->line(),
                    testing::StartsWith(strf("%d %d ", int(Code::timeout), victim)));
      }
    }
  }
}

TEST(Death, a_fresh_communicator_works_in_the_same_processes) {
  const std::string root = free_root();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Process>([=](const Process::Tell& tell) {
      {
        auto first = Control::open(options_at(root, rank, 3));
        tell(first ? "open" : words(first.error()));
        if (rank == 2) {
          just_sleep(**first, tell);
        }
        tell_gather(**first, tell);
      }
      auto second = Control::open(options_at(root, rank, 2));
      tell(second ? "open" : words(second.error()));
      tell_gather(**second, tell);
    }));
  }
  for (const auto& one : ranks) {
    ASSERT_EQ(one->line(), "open");
  }
  ranks[2]->signal(SIGKILL);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks[static_cast<size_t>(rank)]->line(), HasSubstr("rank 2 was lost"));
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->line(), "open");
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->line(), "gathered");
  }
}

TEST(Reports, C17_start_kill_start_on_a_fixed_port) {
  const std::string root = free_root();
  for (int round = 0; round < 25; ++round) {
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.push_back(rank_process(root, rank, 3, just_sleep));
    }
    for (const auto& one : ranks) {
      ASSERT_EQ(one->line(), "open") << round;
    }
    for (const auto& one : ranks) {
      one->signal(SIGKILL);
    }
  }
}

TEST(Reports, C17_start_kill_start_in_the_middle_of_the_meeting) {
  const std::string root = free_root();
  for (int round = 0; round < 25; ++round) {
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < 3; ++rank) {  // of 4
      ranks.push_back(rank_process(root, rank, 4, just_sleep));
    }
    ::usleep(static_cast<useconds_t>(round * 2000));
    for (const auto& one : ranks) {
      one->signal(SIGKILL);
    }
  }
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(rank_process(root, rank, 4, tell_gather));
  }
  for (const auto& one : ranks) {
    EXPECT_EQ(one->line(), "open");
    EXPECT_EQ(one->line(), "gathered");
  }
}

TEST(Death, a_forked_child_does_not_say_goodbye_for_its_parent) {
  const std::string root = free_root();
  const auto forks = [](Control& control, const Process::Tell& tell) {
    const pid_t child = ::fork();
    if (child == 0) {
      delete &control;  // what an interpreter does at exit
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    tell(status == 0 ? "child done" : "child failed");
    tell_gather(control, tell);
    ::_exit(0);
  };
  const auto parent = rank_process(root, 1, 2, forks);
  const auto other = rank_process(root, 0, 2, tell_gather);
  EXPECT_EQ(parent->line(), "open");
  EXPECT_EQ(parent->line(), "child done");
  EXPECT_EQ(parent->line(), "gathered");
  EXPECT_EQ(other->line(), "open");
  EXPECT_EQ(other->line(), "gathered");
}

}  // namespace
}  // namespace prunex::test
