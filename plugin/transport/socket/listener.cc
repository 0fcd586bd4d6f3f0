// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "plugin/transport/socket/connection.h"
#include "plugin/transport/socket/tuning.h"
#include "plugin/transport/timer.h"

namespace prunex::transport {
namespace {

constexpr size_t kMaxStrangers = 256;  // beyond that the oldest is dropped
constexpr int kAcceptsPerCall = 64;

}  // namespace

Result<std::unique_ptr<Listener>> SocketListener::open(const SocketOptions& options) {
  auto cookie = random_cookie();
  if (!cookie) {
    return tl::unexpected<Error>(cookie.error());
  }
  SocketAddress at = options.address;
  if (!at) {
    at = *parse_host("127.0.0.1", 0);
  }
  at.set_port(0);
  auto listening = with_more_files([&] { return listen_tcp(at, options.ports); });
  if (!listening) {
    return tl::unexpected<Error>(listening.error());
  }
  if (options.recv_buffer > 0) {  // inherited by what is accepted, in time for its window scale
    (void)::setsockopt(listening->fd.get(), SOL_SOCKET, SO_RCVBUF, &options.recv_buffer,
                       sizeof options.recv_buffer);
  }
  return std::unique_ptr<Listener>(new SocketListener(*std::move(listening), *cookie, options));
}

std::string SocketListener::handle() const { return encode(Handle{listening_.address, cookie_}); }

Result<std::unique_ptr<Connection>> SocketListener::accept() {
  auto taken = take_callers();
  for (const auto& c : callers_) {
    if (!listen_to(*c)) {
      c->fd.reset();
    }
  }
  std::erase_if(callers_, [](const auto& c) { return !c->fd; });
  if (auto connection = assemble()) {
    return connection;
  }
  if (report_) {
    Error error = *std::move(report_);
    report_.reset();
    return tl::unexpected<Error>(std::move(error));
  }
  if (!taken) {
    return tl::unexpected<Error>(taken.error());
  }
  return std::unique_ptr<Connection>();
}

Result<> SocketListener::take_callers() {
  for (int i = 0; i < kAcceptsPerCall; ++i) {
    auto accepted = with_more_files([this] { return accept_tcp(listening_.fd.get()); });
    if (!accepted) {
      return tl::unexpected<Error>(accepted.error());
    }
    if (!*accepted) {
      return {};
    }
    auto caller = std::make_unique<Caller>();
    caller->fd = std::move((*accepted)->fd);
    caller->peer = (*accepted)->peer;
    caller->deadline = Deadline::after(options_.stray_timeout_s);
    callers_.push_back(std::move(caller));
    const auto strange = [](const auto& c) { return !c->introduced; };
    if (static_cast<size_t>(std::count_if(callers_.begin(), callers_.end(), strange)) >
        kMaxStrangers) {
      callers_.erase(std::find_if(callers_.begin(), callers_.end(), strange));
    }
  }
  return {};
}

// false: drop the caller. It reads exactly the hello: what follows belongs to the connection.
bool SocketListener::listen_to(Caller& caller) {
  if (caller.deadline.passed()) {
    return false;
  }
  while (!caller.introduced) {
    const bool has_fixed = caller.have >= kHelloBytes;
    const size_t want = kHelloBytes + (has_fixed ? caller.hello.text_bytes : 0);
    const auto room = caller.refused
                          ? std::span(caller.bytes)
                          : std::span(caller.bytes).subspan(caller.have, want - caller.have);
    const Moved got = room.empty() ? Moved{Transfer::some, 0, 0} : recv_some(caller.fd.get(), room);
    if (got.state != Transfer::some) {
      return got.state == Transfer::again;
    }
    if (caller.refused) {
      continue;
    }
    caller.have += got.bytes;
    if (!may_be_hello(std::span(caller.bytes).first(caller.have))) {
      return false;
    }
    if (!has_fixed && caller.have == kHelloBytes && !check_hello(caller)) {
      return false;
    }
    caller.introduced = !caller.refused && caller.have >= kHelloBytes &&
                        caller.have == kHelloBytes + caller.hello.text_bytes;
  }
  return true;
}

bool SocketListener::check_hello(Caller& caller) {
  if (!decode_hello(std::span<const std::byte>(caller.bytes).first<kHelloBytes>(), &caller.hello) ||
      !same_cookie(caller.hello.cookie, cookie_) || is_duplicate(caller)) {
    return false;
  }
  if (caller.hello.version != kWireVersion) {
    refuse(caller);
  }
  caller.deadline = Deadline::after(options_.stray_timeout_s);  // now for the other streams
  return true;
}

void SocketListener::refuse(Caller& caller) {
  const auto reply = encode(Reply{kWireVersion, ReplyCode::wrong_version});
  (void)send_some(caller.fd.get(), reply);
  (void)::shutdown(caller.fd.get(), SHUT_WR);
  caller.refused = true;
  if (refused_connection_ != caller.hello.connection || refused_connection_ == 0) {
    refused_connection_ = caller.hello.connection;
    report_ = Error{Code::mismatch, version_error(to_text(caller.peer), caller.hello.version)};
  }
}

bool SocketListener::is_duplicate(const Caller& caller) const {
  return std::any_of(callers_.begin(), callers_.end(), [&](const auto& c) {
    return c.get() != &caller && c->fd && c->have >= kHelloBytes && !c->refused &&
           c->hello.connection == caller.hello.connection &&
           (c->hello.stream == caller.hello.stream || c->hello.streams != caller.hello.streams);
  });
}

std::unique_ptr<Connection> SocketListener::assemble() {
  for (const auto& first : callers_) {
    if (!first->introduced) {
      continue;
    }
    const auto there = std::count_if(callers_.begin(), callers_.end(), [&](const auto& c) {
      return c->introduced && c->hello.connection == first->hello.connection;
    });
    if (there == first->hello.streams) {
      return make_connection(Hello(first->hello));
    }
  }
  return nullptr;
}

std::unique_ptr<Connection> SocketListener::make_connection(const Hello& hello) {
  std::vector<Fd> streams(hello.streams);
  std::string text;
  bool alive = true;
  for (auto& c : callers_) {
    if (!c->introduced || c->hello.connection != hello.connection) {
      continue;
    }
    if (c->hello.stream == 0) {
      text.assign(reinterpret_cast<const char*>(c->bytes.data()) + kHelloBytes,
                  c->hello.text_bytes);
    }
    tune_for_data(c->fd.get(), options_, hello.streams);
    alive = send_some(c->fd.get(), encode(Reply{})).bytes == kReplyBytes && alive;
    streams[c->hello.stream] = std::move(c->fd);
  }
  std::erase_if(callers_, [](const auto& c) { return !c->fd; });
  if (!alive) {
    return nullptr;  // it has gone again; if it still wants us, it starts anew
  }
  ConnectionOptions options;
  options.first_sequence = hello.first_sequence;
  options.silence_s = options_.silence_s;
  options.stall_s = options_.stall_s;
  return std::make_unique<SocketConnection>(std::move(streams), std::move(text), options);
}

void SocketListener::poll_fds(std::vector<pollfd>& out) const {
  out.push_back({listening_.fd.get(), POLLIN, 0});
  for (const auto& c : callers_) {
    if (!c->introduced) {
      out.push_back({c->fd.get(), POLLIN, 0});
    }
  }
}

}  // namespace prunex::transport
