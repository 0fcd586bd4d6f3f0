// SPDX-License-Identifier: Apache-2.0
// What only the shared-memory transport has: names in /dev/shm, too little of it, namespaces.
#include "plugin/transport/shm/shm.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

#include "plugin/transport/shm/ring.h"
#include "plugin/transport/shm/wire.h"
#include "tests/transport/child.h"
#include "tests/transport/pair.h"

namespace prunex::transport {
namespace {

std::unique_ptr<Transport> open(const ShmOptions& options = {}) {
  auto t = open_shm_transport(options);
  EXPECT_TRUE(t);
  return std::move(*t);
}

// A /dev/shm of this process's own. "": done.
std::string own_dev_shm(const char* options) {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, options) != 0) {
    return "skip: mounting is not permitted";
  }
  return "";
}

size_t files_there() {
  const std::filesystem::directory_iterator all("/dev/shm");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Shm, too_little_room_is_an_error_that_names_it) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    if (std::string said = own_dev_shm("size=256k"); !said.empty()) {
      return said;
    }
    auto transport = open();
    auto listener = transport->listen();
    auto r = transport->connect((*listener)->handle(), "", 5);
    if (r) {
      return "two rings of 1 MiB in 256 KiB";
    }
    for (const char* wanted : {"2097536", "/dev/shm", "--shm-size"}) {
      if (r.error().text.find(wanted) == std::string::npos) {
        return std::string("no '") + wanted + "' in: " + r.error().text;
      }
    }
    return files_there() == 1 ? "" : "something was left behind";  // the listener's socket
  }));
}

TEST(Shm, nothing_is_left_behind) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    if (std::string said = own_dev_shm("size=64m"); !said.empty()) {
      return said;
    }
    auto transport = open();
    {
      Pair p = make_pair(*transport, *transport);
      if (files_there() != 1) {
        return "more than the listener's socket while connected";
      }
      p.listener.reset();
      if (files_there() != 0) {
        return "a name is left while only the connection lives";
      }
    }
    auto listener = transport->listen();
    {
      auto given_up = transport->connect((*listener)->handle(), "", 5);
      (void)(*given_up)->step();
    }
    listener->reset();
    return files_there() == 0 ? "" : "a connect that was given up leaves a name";
  }));
}

TEST(Shm, crosses_network_namespaces) {
  auto transport = open();
  auto listener = std::move(*transport->listen());
  const std::string handle = listener->handle();
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) {
      _exit(77);
    }
    auto connecting = transport->connect(handle, "", 30);
    std::unique_ptr<Connection> c;
    while (connecting && !c) {
      auto r = (*connecting)->step();
      if (!r) {
        _exit(1);
      }
      c = std::move(*r);
    }
    Ticket t = 0;
    size_t bytes = 0;
    const bool ok = c->isend("across", 6, nullptr, &t) == Io::done &&
                    finish(*c, nullptr, t, &bytes) == Io::done;
    c.reset();
    _exit(ok ? 0 : 1);
  }
  const Deadline deadline = Deadline::after(kPatience);
  std::unique_ptr<Connection> c;
  int status = 0;
  bool reaped = false;
  while (!c && !deadline.passed() && !reaped) {
    auto r = listener->accept();
    ASSERT_TRUE(r) << r.error().text;
    c = std::move(*r);
    reaped = !c && waitpid(child, &status, WNOHANG) == child;
  }
  if (reaped && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "network namespaces are not permitted";
  }
  ASSERT_TRUE(c);
  char into[6];
  Ticket t = 0;
  size_t bytes = 0;
  ASSERT_EQ(c->irecv(into, sizeof into, nullptr, &t), Io::done);
  ASSERT_EQ(finish(*c, nullptr, t, &bytes), Io::done) << c->error().text;
  EXPECT_EQ(std::string(into, 6), "across");
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Sends one record to a listener; what comes back, or "" when it hangs up.
std::string say(Listener& listener, const std::string& record, Error* error = nullptr) {
  const auto handle = shm::decode_handle(listener.handle());
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  handle->path.copy(at.sun_path, sizeof at.sun_path - 1);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  if (!record.empty()) {
    EXPECT_GT(::send(fd.get(), record.data(), record.size(), MSG_NOSIGNAL), 0);
  }
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    auto r = listener.accept();
    if (!r && error != nullptr) {
      *error = r.error();
    } else {
      EXPECT_TRUE(r && !*r) << (r ? "accepted" : r.error().text);
    }
    char back[64];
    const ssize_t n = ::recv(fd.get(), back, sizeof back, MSG_DONTWAIT);
    if (n >= 0) {
      return {back, static_cast<size_t>(n)};
    }
  }
  ADD_FAILURE() << "hangs";
  return "";
}

TEST(Shm, strangers_are_dropped_and_never_an_error) {
  ShmOptions options;
  options.stray_timeout_s = 0.05;
  auto transport = open(options);
  auto listener = std::move(*transport->listen());
  shm::Hello hello;
  hello.cookie = shm::decode_handle(listener->handle())->cookie;
  hello.ring_bytes = 4096;
  hello.segment = "/dev/shm/prunex-" + std::string(32, '0');
  EXPECT_EQ(say(*listener, ""), "");
  EXPECT_EQ(say(*listener, "GET / HTTP/1.1\r\n\r\n"), "");
  EXPECT_EQ(say(*listener, std::string(1000, 'x')), "");
  auto wrong = hello;
  wrong.cookie[0] ^= std::byte{1};
  EXPECT_EQ(say(*listener, encode(wrong)), "");
  for (const uint64_t ring : {uint64_t{0}, uint64_t{4095}, uint64_t{1} << 62, ~uint64_t{0}}) {
    auto odd = hello;
    odd.ring_bytes = ring;
    EXPECT_EQ(say(*listener, encode(odd)), "") << ring;
  }
  auto elsewhere = hello;
  elsewhere.segment = "/etc/passwd" + std::string(37, ' ');
  EXPECT_EQ(say(*listener, encode(elsewhere)), "");
  for (size_t n = 1; n < encode(hello).size(); ++n) {
    EXPECT_EQ(say(*listener, encode(hello).substr(0, n)), "") << n;
  }
  // Who knows the cookie is answered: the memory it speaks of does not exist.
  Error error;
  EXPECT_EQ(say(*listener, encode(hello), &error).size(), shm::kReplyBytes);
  EXPECT_EQ(error.sys_errno, ENOENT) << error.text;
  auto old = hello;
  old.version = 77;
  EXPECT_EQ(say(*listener, encode(old), &error).size(), shm::kReplyBytes);
  EXPECT_EQ(error.code, Code::mismatch);
  EXPECT_NE(error.text.find("version 77"), std::string::npos) << error.text;
  Pair p = make_pair(*transport, *transport);
  EXPECT_TRUE(p.a && p.b);
}

TEST(Shm, nobody_there_is_named_at_the_deadline) {
  auto transport = open();
  std::string handle;
  {
    auto gone = std::move(*transport->listen());
    handle = gone->handle();
  }
  auto connecting = transport->connect(handle, "", 0.2);
  ASSERT_TRUE(connecting);
  std::vector<pollfd> fds;
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    auto r = (*connecting)->step();
    if (!r) {
      EXPECT_EQ(r.error().code, Code::timeout);
      EXPECT_NE(r.error().text.find(shm::decode_handle(handle)->path), std::string::npos);
      EXPECT_NE(r.error().text.find("attempts"), std::string::npos) << r.error().text;
      return;
    }
    fds.clear();
    (*connecting)->poll_fds(fds);
    ASSERT_GT(poll(fds.data(), fds.size(), 30'000), 0);
  }
  FAIL() << "hangs";
}

TEST(Shm, ring_sizes_are_checked) {
  for (const size_t n : {size_t{0}, size_t{2048}, size_t{5000}, size_t{1} << 31}) {
    ShmOptions o;
    o.ring_bytes = n;
    auto t = open_shm_transport(o);
    ASSERT_FALSE(t);
    EXPECT_NE(t.error().text.find(std::to_string(n)), std::string::npos);
  }
}

TEST(Ring, impossible_counters_of_the_other_side_move_nothing) {
  alignas(64) std::byte memory[shm::bytes_of_ring(4096)] = {};
  auto* control = reinterpret_cast<shm::RingControl*>(memory);
  shm::Ring writer(memory, 4096), reader(memory, 4096);
  std::byte some[100] = {};
  EXPECT_EQ(writer.put(some), 100U);
  (void)writer.publish();
  EXPECT_TRUE(reader.writer_is_sane());
  control->written.store(1'000'000);
  EXPECT_FALSE(reader.writer_is_sane());
  EXPECT_EQ(reader.available(), 0U);
  EXPECT_EQ(reader.take(some), 0U);
  control->read.store(5000);
  EXPECT_FALSE(writer.reader_is_sane());
  EXPECT_EQ(writer.put(some), 0U);
}

}  // namespace
}  // namespace prunex::transport
