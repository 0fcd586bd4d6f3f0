// SPDX-License-Identifier: Apache-2.0
// One connection of the star: frames in, frames out, never blocking. Used under its owner's lock.
#pragma once
#include <array>
#include <cstddef>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "plugin/base/clock.h"
#include "plugin/base/fd.h"
#include "plugin/base/result.h"
#include "plugin/bootstrap/wire.h"

namespace prunex {

struct Frame {
  wire::Header header;
  std::string body;
};

class Link {
 public:
  Link(Fd fd, int size) : fd_(std::move(fd)), size_(size) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool open() const { return bool(fd_); }
  void close();

  // Queues an encoded frame (shared: rank 0 sends one to many) and sends what the socket takes now.
  void post(std::shared_ptr<const std::string> frame);
  void post(wire::Kind kind, uint64_t sequence = 0, std::string_view body = {});
  void flush();
  [[nodiscard]] bool unsent() const { return !out_.empty(); }

  // nothing: not yet. end: closed or reset by the other side. broken: it sent what no rank sends,
  // or the system gave up; error() says what.
  enum class Got : uint8_t { frame, nothing, end, broken };
  // A frame of a kind that is not in `expected` breaks the link before its body is read.
  [[nodiscard]] Got receive(std::initializer_list<wire::Kind> expected, Frame* out);
  // Reads and forgets; false when the other side has closed.
  bool discard();
  [[nodiscard]] const Error& error() const { return error_; }
  [[nodiscard]] int size() const { return size_; }

 private:
  Got fill(char* to, size_t want, size_t* have);
  Got broke(Error error);

  Fd fd_;
  int size_;  // of the world: bounds what a frame may hold
  std::deque<std::shared_ptr<const std::string>> out_;
  size_t out_sent_ = 0;  // bytes of out_.front()
  std::array<char, wire::kHeaderBytes> head_{};
  size_t head_have_ = 0;
  bool in_body_ = false;
  Frame in_;
  size_t body_have_ = 0;
  Error error_;
};

// Sends what is queued, says no more, and reads until the others have closed too, so that closing
// does not reset what they have not read yet. Bounded by the two limits; then closes.
void close_gently(std::span<Link* const> links, double flush_s, double linger_s);

}  // namespace prunex
