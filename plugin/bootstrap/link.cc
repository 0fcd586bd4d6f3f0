// SPDX-License-Identifier: Apache-2.0
#include "plugin/bootstrap/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "plugin/base/sockets.h"

namespace prunex {
namespace {

// Memory grows with what has arrived, not with what a header claims.
constexpr size_t kGrowth = 1u << 20;

int poll_ms(const Deadline& deadline) {
  return static_cast<int>(std::clamp<int64_t>(deadline.left_ns() / 1'000'000 + 1, 0, 1000));
}

}  // namespace

void Link::close() {
  fd_.reset();
  out_.clear();
  out_sent_ = 0;
}

void Link::post(std::shared_ptr<const std::string> frame) {
  if (!fd_) {
    return;
  }
  out_.push_back(std::move(frame));
  flush();
}

void Link::post(wire::Kind kind, uint64_t sequence, std::string_view body) {
  post(std::make_shared<const std::string>(wire::encode_frame(kind, sequence, body)));
}

void Link::flush() {
  while (fd_ && !out_.empty()) {
    const auto all = wire::bytes_of(*out_.front());
    const Moved moved = send_some(fd_.get(), all.subspan(out_sent_));
    if (moved.state == Transfer::broken) {
      // Whether this is a death is for receive() to say: a goodbye may be waiting to be read.
      out_.clear();
      out_sent_ = 0;
      return;
    }
    if (moved.state != Transfer::some) {
      return;
    }
    out_sent_ += moved.bytes;
    if (out_sent_ == all.size()) {
      out_.pop_front();
      out_sent_ = 0;
    }
  }
}

Link::Got Link::broke(Error error) {
  error_ = std::move(error);
  return Got::broken;
}

Link::Got Link::fill(char* to, size_t want, size_t* have) {
  while (*have < want) {
    const Moved moved =
        recv_some(fd_.get(), std::as_writable_bytes(std::span(to + *have, want - *have)));
    switch (moved.state) {
      case Transfer::some:
        *have += moved.bytes;
        break;
      case Transfer::again:
        return Got::nothing;
      case Transfer::closed:
        return Got::end;
      case Transfer::broken:
        if (moved.sys_errno == ECONNRESET || moved.sys_errno == EPIPE) {
          return Got::end;
        }
        return broke({Code::system, errno_text(moved.sys_errno), moved.sys_errno, -1});
    }
  }
  return Got::frame;
}

Link::Got Link::receive(std::initializer_list<wire::Kind> expected, Frame* out) {
  if (!fd_) {
    return Got::end;
  }
  if (!in_body_) {
    const Got got = fill(head_.data(), head_.size(), &head_have_);
    // The magic alone tells a stray, however little it sends.
    if (got == Got::nothing && head_have_ >= 4 &&
        !std::equal(head_.begin(), head_.begin() + 4, "PRX1")) {
      return broke({Code::invalid_argument, "what answers there is not PruneX", 0, -1});
    }
    if (got != Got::frame) {
      return got;
    }
    auto header = wire::decode_header(std::as_bytes(std::span(head_)), size_);
    if (!header) {
      return broke(std::move(header.error()));
    }
    if (std::ranges::find(expected, header->kind) == expected.end()) {
      return broke({Code::invalid_argument,
                    strf("unexpected message kind %u", static_cast<unsigned>(header->kind)), 0,
                    -1});
    }
    in_.header = *header;
    in_.body.clear();
    body_have_ = 0;
    in_body_ = true;
  }
  const auto length = static_cast<size_t>(in_.header.length);
  while (body_have_ < length) {
    if (body_have_ == in_.body.size()) {
      in_.body.resize(std::min(length, std::max(kGrowth, 2 * body_have_)));
    }
    const Got got = fill(in_.body.data(), in_.body.size(), &body_have_);
    if (got != Got::frame) {
      return got;
    }
  }
  in_.body.resize(length);
  *out = std::move(in_);
  in_ = {};
  in_body_ = false;
  head_have_ = 0;
  return Got::frame;
}

bool Link::discard() {
  std::array<std::byte, 4096> sink;
  Moved moved{Transfer::some, 0, 0};
  for (int i = 0; i < 64 && moved.state == Transfer::some; ++i) {
    moved = recv_some(fd_.get(), sink);
  }
  return moved.state == Transfer::again || moved.state == Transfer::some;
}

void close_gently(std::span<Link* const> links, double flush_s, double linger_s) {
  const auto run = [&](const Deadline& deadline, auto&& step, short events) {
    while (!deadline.passed()) {
      std::vector<pollfd> waiting;
      for (Link* link : links) {
        if (link->open() && step(*link)) {
          waiting.push_back({link->fd(), events, 0});
        }
      }
      if (waiting.empty() ||
          (::poll(waiting.data(), waiting.size(), poll_ms(deadline)) < 0 && errno != EINTR)) {
        return;
      }
    }
  };
  run(
      Deadline::after(flush_s), [](Link& link) { return link.flush(), link.unsent(); }, POLLOUT);
  for (Link* link : links) {
    if (link->open()) {
      ::shutdown(link->fd(), SHUT_WR);
    }
  }
  run(
      Deadline::after(linger_s), [](Link& link) { return link.discard(); }, POLLIN);
  for (Link* link : links) {
    if (link->open()) {
      link->discard();
      link->close();
    }
  }
}

}  // namespace prunex
