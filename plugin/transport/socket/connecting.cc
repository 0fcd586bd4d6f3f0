// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/connecting.h"

#include <netinet/in.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/connection.h"
#include "plugin/transport/socket/tuning.h"

namespace prunex::transport {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kFirstPauseNs = 1 * kMs;
constexpr int64_t kLongestPauseNs = 200 * kMs;
constexpr double kPatienceS = 10;

// The kernel repeats a lost SYN after 1, 3, 7 s…; a fresh attempt finds a full backlog emptied
// sooner.
constexpr int64_t kAttemptNs = 2'000 * kMs;

// Whether another try may help. The rest needs a person.
bool is_passing(int error) {
  return error != EMFILE && error != ENFILE && error != EAFNOSUPPORT && error != EINVAL &&
         error != EACCES && error != EPROTONOSUPPORT;
}

}  // namespace

Result<std::unique_ptr<Connecting>> SocketConnecting::open(const SocketOptions& options,
                                                           std::string_view handle,
                                                           std::string_view hello,
                                                           double timeout_s) {
  auto to = decode_handle(handle);
  if (!to) {
    return tl::unexpected<Error>(to.error());
  }
  if (auto fits = check_hello_size(hello); !fits) {
    return tl::unexpected<Error>(fits.error());
  }
  if (options.address && options.address.family() != to->address.family() &&
      !to->address.is_loopback()) {
    return fail(Code::config,
                strf("cannot connect from %s (%s) to %s (%s): choose interfaces of one family with "
                     "PRUNEX_SOCKET_IFNAME on both nodes",
                     host_text(options.address).c_str(), family_name(options.address.family()),
                     to_text(to->address).c_str(), family_name(to->address.family())));
  }
  auto timer = Timer::open();
  if (!timer) {
    return tl::unexpected<Error>(timer.error());
  }
  return std::unique_ptr<Connecting>(
      new SocketConnecting(options, *to, hello, timeout_s, *std::move(timer)));
}

SocketConnecting::SocketConnecting(const SocketOptions& options, const Handle& handle,
                                   std::string_view hello, double timeout_s, Timer timer)
    : options_(options),
      handle_(handle),
      hello_(hello),
      timeout_s_(timeout_s),
      deadline_(Deadline::after(timeout_s)),
      timer_(std::move(timer)),
      patience_(Deadline::after(kPatienceS)) {
  const SocketAddress& own = options_.address;
  if (own && own.is_loopback() == handle_.address.is_loopback()) {
    source_ = own;
    if (handle_.address.is_link_local() && own.family() == AF_INET6) {
      // The interface of a link-local address is this side's; the other's number means nothing
      // here.
      reinterpret_cast<sockaddr_in6*>(handle_.address.data())->sin6_scope_id =
          reinterpret_cast<const sockaddr_in6*>(own.data())->sin6_scope_id;
    }
  }
  const bool same = handle_.address.is_loopback() || (own && same_host(own, handle_.address));
  const int streams = options_.streams > 0 ? options_.streams : default_streams(same);
  streams_ = static_cast<size_t>(std::clamp(streams, 1, kMaxStreams));
}

Result<std::unique_ptr<Connection>> SocketConnecting::step() {
  if (deadline_.passed()) {
    return too_late();
  }
  if (legs_.empty()) {
    if (now_ns() < next_ns_) {
      return std::unique_ptr<Connection>();
    }
    if (auto begun = begin_attempt(); !begun) {
      return give_back(begun.error());
    }
  }
  for (size_t i = 0; i < legs_.size(); ++i) {
    if (auto r = step_leg(legs_[i], i); !r) {
      return give_back(r.error());
    }
  }
  const auto is = [](Stage stage) { return [stage](const Leg& l) { return l.stage == stage; }; };
  if (std::all_of(legs_.begin(), legs_.end(), is(Stage::accepted))) {
    return finish();
  }
  // Once connected it is the listener's turn, and only the deadline counts.
  const bool half = std::any_of(legs_.begin(), legs_.end(), is(Stage::connecting));
  if (half && now_ns() >= next_ns_) {
    return give_back(Error{Code::system, "no answer to the connection request", ETIMEDOUT});
  }
  timer_.set(half ? std::min(next_ns_, deadline_.at_ns()) : deadline_.at_ns());
  return std::unique_ptr<Connection>();
}

Result<> SocketConnecting::begin_attempt() {
  ++attempts_;
  reached_ = false;
  next_ns_ = now_ns() + kAttemptNs;
  if (::getrandom(&connection_, sizeof connection_, 0) != sizeof connection_) {
    return fail(Code::system, "no random bytes", EINVAL);
  }
  legs_.resize(streams_);
  for (Leg& leg : legs_) {
    auto fd = with_more_files([this] { return start_connect(handle_.address, source_); });
    if (!fd) {
      return tl::unexpected<Error>(fd.error());
    }
    leg.fd = *std::move(fd);
  }
  return {};
}

Result<> SocketConnecting::step_leg(Leg& leg, size_t index) {
  if (leg.stage == Stage::connecting) {
    auto done = connect_done(leg.fd.get(), handle_.address);
    if (!done) {
      return tl::unexpected<Error>(done.error());
    }
    if (!*done) {
      return {};
    }
    if (auto r = introduce(leg, index); !r) {
      return r;
    }
  }
  return leg.stage == Stage::introduced ? read_reply(leg) : Result<>();
}

Result<> SocketConnecting::introduce(Leg& leg, size_t index) {
  reached_ = true;
  Hello hello;
  hello.text_bytes = static_cast<uint16_t>(hello_.size());
  hello.cookie = handle_.cookie;
  hello.connection = connection_;
  hello.stream = static_cast<uint16_t>(index);
  hello.streams = static_cast<uint16_t>(streams_);
  hello.first_sequence = options_.first_sequence;
  std::array<std::byte, kHelloBytes + kMaxHello> bytes;
  const auto fixed = encode(hello);
  std::memcpy(bytes.data(), fixed.data(), fixed.size());
  std::memcpy(bytes.data() + fixed.size(), hello_.data(), hello_.size());
  tune_for_data(leg.fd.get(), options_, streams_);
  // A new socket takes a few hundred bytes at once.
  const size_t all = fixed.size() + hello_.size();
  const Moved sent = send_some(leg.fd.get(), std::span(bytes).first(all));
  if (sent.bytes != all) {
    return fail(Code::system,
                strf("the introduction could not be sent: %s", errno_text(sent.sys_errno).c_str()),
                ECONNRESET);
  }
  leg.stage = Stage::introduced;
  return {};
}

Result<> SocketConnecting::read_reply(Leg& leg) {
  const Moved got = recv_some(leg.fd.get(), std::span(leg.reply).subspan(leg.have));
  if (got.state == Transfer::again) {
    return {};
  }
  if (got.state != Transfer::some) {
    return fail(Code::system, "it hung up instead of answering", ECONNRESET);
  }
  leg.have += got.bytes;
  if (leg.have < kReplyBytes) {
    return {};
  }
  Reply reply;
  if (!decode_reply(leg.reply, &reply)) {
    return fail(Code::system, "whoever listens there is not prunex", ECONNREFUSED);
  }
  if (reply.code != ReplyCode::accepted || reply.version != kWireVersion) {
    return fail(Code::mismatch, version_error(to_text(handle_.address), reply.version));
  }
  leg.stage = Stage::accepted;
  return {};
}

// An attempt went wrong: ends the whole with the error, or plans the next attempt.
Result<std::unique_ptr<Connection>> SocketConnecting::give_back(Error error) {
  legs_.clear();
  if (error.code == Code::mismatch || !is_passing(error.sys_errno)) {
    return tl::unexpected<Error>(std::move(error));
  }
  const bool refused = error.sys_errno == ECONNREFUSED;
  last_failure_ = std::move(error.text);
  const int64_t now = now_ns();
  refused_since_ns_ = !refused ? 0 : refused_since_ns_ == 0 ? now : refused_since_ns_;
  if (refused && options_.refused_s > 0 &&
      static_cast<double>(now - refused_since_ns_) > options_.refused_s * 1e9) {
    return too_late();
  }
  if (patience_.passed()) {
    patience_ = Deadline::after(timeout_s_);  // once is enough
    PRUNEX_LOG(warn, "still trying to connect to %s, after %d attempts: %s",
               to_text(handle_.address).c_str(), attempts_, last_failure_.c_str());
  }
  const int64_t pause = kFirstPauseNs << std::min(attempts_ - 1, 20);
  next_ns_ = now_ns() + std::min(pause, kLongestPauseNs);
  timer_.set(std::min(next_ns_, deadline_.at_ns()));
  return std::unique_ptr<Connection>();
}

Result<std::unique_ptr<Connection>> SocketConnecting::too_late() const {
  std::string why = last_failure_;
  if (reached_) {
    why =
        "it is connected, but the listener did not accept within that time; is its process "
        "stopped?" +
        (why.empty() ? why : " The attempt before: " + why);
  } else if (why.empty()) {
    why = "no answer to the connection request; does a firewall drop it?";
  }
  return fail(
      Code::timeout,
      strf("cannot connect to %s within %g s, after %d attempt%s: %s",
           to_text(handle_.address).c_str(), deadline_.passed() ? timeout_s_ : options_.refused_s,
           attempts_, attempts_ == 1 ? "" : "s", why.c_str()),
      ETIMEDOUT);
}

std::unique_ptr<Connection> SocketConnecting::finish() {
  std::vector<Fd> streams;
  for (Leg& leg : legs_) {
    streams.push_back(std::move(leg.fd));
  }
  ConnectionOptions options;
  options.first_sequence = options_.first_sequence;
  options.silence_s = options_.silence_s;
  options.stall_s = options_.stall_s;
  return std::make_unique<SocketConnection>(std::move(streams), std::string(), options);
}

void SocketConnecting::poll_fds(std::vector<pollfd>& out) const {
  out.push_back({timer_.fd(), POLLIN, 0});
  for (const Leg& leg : legs_) {
    if (leg.stage != Stage::accepted) {
      out.push_back(
          {leg.fd.get(), static_cast<short>(leg.stage == Stage::connecting ? POLLOUT : POLLIN), 0});
    }
  }
}

}  // namespace prunex::transport
