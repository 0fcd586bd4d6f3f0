// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/rendezvous.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "plugin/base/sockets.h"
#include "plugin/transport/shm/connection.h"

namespace prunex::transport::shm {
namespace {

constexpr size_t kMaxStrangers = 256;  // beyond that the oldest is dropped
constexpr int64_t kMs = 1'000'000;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un at{};
  static_assert(kNameBytes < sizeof at.sun_path);
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path, path.data(), std::min(path.size(), sizeof at.sun_path - 1));
  return at;
}

// Records, not bytes: a hello is there whole or not at all.
Result<Fd> make_socket() {
  return with_more_files([]() -> Result<Fd> {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      const int error = errno;
      return fail(Code::system,
                  strf("cannot make a Unix socket: %s; the limit of open files is set with "
                       "'ulimit -n'",
                       errno_text(error).c_str()),
                  error);
    }
    return fd;
  });
}

}  // namespace

Result<std::unique_ptr<Listener>> ShmListener::open(const ShmOptions& options) {
  auto cookie = random_cookie();
  auto path = random_name();
  auto fd = make_socket();
  if (!cookie || !path || !fd) {
    return tl::unexpected<Error>(!cookie ? cookie.error() : !path ? path.error() : fd.error());
  }
  const sockaddr_un at = address_of(*path);
  (void)::fchmod(fd->get(), 0600);  // before the name exists; what bind() makes inherits it
  if (::bind(fd->get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(fd->get(), 1024) != 0) {
    const int error = errno;
    ::unlink(path->c_str());
    return fail(Code::system,
                strf("cannot listen on %s: %s; /dev/shm must be a writable tmpfs", path->c_str(),
                     errno_text(error).c_str()),
                error);
  }
  return std::unique_ptr<Listener>(
      new ShmListener(*std::move(fd), *std::move(path), *cookie, options));
}

ShmListener::~ShmListener() { ::unlink(path_.c_str()); }

Result<> ShmListener::take_strangers() {
  for (;;) {
    auto accepted = with_more_files([this] { return accept_tcp(fd_.get()); });
    if (!accepted) {
      return tl::unexpected<Error>(accepted.error());
    }
    if (!*accepted) {
      return {};
    }
    if (strangers_.size() >= kMaxStrangers) {
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back({std::move((*accepted)->fd), Deadline::after(options_.stray_timeout_s)});
  }
}

Result<std::unique_ptr<Connection>> ShmListener::accept() {
  auto taken = take_strangers();
  for (Stranger& s : strangers_) {
    auto r = listen_to(s);
    if (!r || *r) {
      std::erase_if(strangers_, [](const Stranger& x) { return !x.fd; });
      return r;
    }
  }
  std::erase_if(strangers_, [](const Stranger& x) { return !x.fd || x.deadline.passed(); });
  if (!taken) {
    return tl::unexpected<Error>(taken.error());
  }
  return std::unique_ptr<Connection>();
}

Result<std::unique_ptr<Connection>> ShmListener::listen_to(Stranger& stranger) {
  std::array<std::byte, kMaxHelloRecord> record;
  const Moved got = recv_some(stranger.fd.get(), record);
  if (got.state == Transfer::again) {
    return std::unique_ptr<Connection>();
  }
  Hello hello;
  Fd fd = std::move(stranger.fd);
  if (got.state != Transfer::some || !decode_hello(std::span(record).first(got.bytes), &hello) ||
      !same_cookie(hello.cookie, cookie_)) {
    return std::unique_ptr<Connection>();
  }
  if (hello.version != kWireVersion) {
    (void)send_some(fd.get(), encode(Reply{kWireVersion, ReplyCode::wrong_version}));
    return fail(Code::mismatch, version_error("a process of this machine", hello.version));
  }
  const size_t ring_bytes = static_cast<size_t>(hello.ring_bytes);
  auto segment = Segment::attach(hello.segment, segment_bytes(ring_bytes));
  if (!segment) {
    (void)send_some(fd.get(), encode(Reply{kWireVersion, ReplyCode::no_memory}));
    return tl::unexpected<Error>(segment.error());
  }
  segment->unlink();
  if (send_some(fd.get(), encode(Reply{})).state != Transfer::some) {
    return std::unique_ptr<Connection>();  // it has gone again
  }
  return std::make_unique<ShmConnection>(*std::move(segment), ring_bytes, std::move(fd), false,
                                         std::move(hello.text), hello.first_sequence);
}

void ShmListener::poll_fds(std::vector<pollfd>& out) const {
  out.push_back({fd_.get(), POLLIN, 0});
  for (const Stranger& s : strangers_) {
    out.push_back({s.fd.get(), POLLIN, 0});
  }
}

Result<std::unique_ptr<Connecting>> ShmConnecting::open(const ShmOptions& options,
                                                        std::string_view handle,
                                                        std::string_view hello, double timeout_s) {
  auto to = decode_handle(handle);
  if (!to) {
    return tl::unexpected<Error>(to.error());
  }
  if (auto fits = check_hello_size(hello); !fits) {
    return tl::unexpected<Error>(fits.error());
  }
  auto timer = Timer::open();
  if (!timer) {
    return tl::unexpected<Error>(timer.error());
  }
  auto segment = Segment::create(segment_bytes(options.ring_bytes));
  if (!segment) {
    return tl::unexpected<Error>(segment.error());
  }
  return std::unique_ptr<Connecting>(new ShmConnecting(options, *std::move(to), hello, timeout_s,
                                                       *std::move(timer), *std::move(segment)));
}

ShmConnecting::ShmConnecting(const ShmOptions& options, Handle handle, std::string_view hello,
                             double timeout_s, Timer timer, Segment segment)
    : options_(options),
      handle_(std::move(handle)),
      hello_(hello),
      timeout_s_(timeout_s),
      deadline_(Deadline::after(timeout_s)),
      timer_(std::move(timer)),
      segment_(std::move(segment)) {}

Result<std::unique_ptr<Connection>> ShmConnecting::step() {
  if (deadline_.passed()) {
    return fail(Code::timeout,
                strf("cannot connect to %s within %g s, after %d attempt%s: %s",
                     handle_.path.c_str(), timeout_s_, attempts_, attempts_ == 1 ? "" : "s",
                     fd_ ? "the listener did not accept within that time; is its process stopped?"
                         : last_failure_.c_str()),
                ETIMEDOUT);
  }
  if (!fd_ && (now_ns() < next_ns_ || !begin_attempt())) {
    return std::unique_ptr<Connection>();
  }
  return take_reply();
}

bool ShmConnecting::begin_attempt() {
  ++attempts_;
  auto fd = make_socket();
  if (!fd) {
    retry_later(fd.error().text);
    return false;
  }
  const sockaddr_un at = address_of(handle_.path);
  if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    retry_later(errno == ENOENT || errno == ECONNREFUSED
                    ? "nobody listens there: that process has ended, or the two do not share "
                      "/dev/shm (containers need --ipc=host or one pod)"
                    : errno_text(errno));
    return false;
  }
  const Hello hello{kWireVersion,    handle_.cookie, options_.ring_bytes, options_.first_sequence,
                    segment_.name(), hello_};
  const std::string record = encode(hello);
  if (send_some(fd->get(), std::as_bytes(std::span(record))).bytes != record.size()) {
    retry_later("the introduction could not be sent");
    return false;
  }
  fd_ = *std::move(fd);
  timer_.set(deadline_.at_ns());
  return true;
}

void ShmConnecting::retry_later(std::string why) {
  fd_.reset();
  last_failure_ = std::move(why);
  const int64_t pause = std::min(kMs << std::min(attempts_ - 1, 20), 200 * kMs);
  next_ns_ = now_ns() + pause;
  timer_.set(std::min(next_ns_, deadline_.at_ns()));
}

Result<std::unique_ptr<Connection>> ShmConnecting::take_reply() {
  std::array<std::byte, kReplyBytes> record;
  const Moved got = recv_some(fd_.get(), record);
  if (got.state == Transfer::again) {
    return std::unique_ptr<Connection>();
  }
  Reply reply;
  if (got.state != Transfer::some || !decode_reply(std::span(record).first(got.bytes), &reply)) {
    retry_later("it hung up instead of answering");
    return std::unique_ptr<Connection>();
  }
  if (reply.version != kWireVersion || reply.code == ReplyCode::wrong_version) {
    return fail(Code::mismatch, version_error("a process of this machine", reply.version));
  }
  if (reply.code == ReplyCode::no_memory) {
    return fail(Code::memory,
                strf("the process that listens at %s could not map the shared memory %s "
                     "(%zu bytes); its own error says why",
                     handle_.path.c_str(), segment_.name().c_str(), segment_.size()));
  }
  segment_.unlink();  // the other side did so already; nobody knows who was first
  return std::make_unique<ShmConnection>(std::move(segment_), options_.ring_bytes, std::move(fd_),
                                         true, std::string(), options_.first_sequence);
}

void ShmConnecting::poll_fds(std::vector<pollfd>& out) const {
  out.push_back({timer_.fd(), POLLIN, 0});
  if (fd_) {
    out.push_back({fd_.get(), POLLIN, 0});
  }
}

}  // namespace prunex::transport::shm

namespace prunex::transport {
namespace {

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(const ShmOptions& options) : options_(options) {}
  [[nodiscard]] std::string_view name() const override { return "shm"; }
  Result<std::unique_ptr<Listener>> listen() override { return shm::ShmListener::open(options_); }
  Result<std::unique_ptr<Connecting>> connect(std::string_view handle, std::string_view hello,
                                              double timeout_s) override {
    return shm::ShmConnecting::open(options_, handle, hello, timeout_s);
  }
  // Messages are copied through the ring from anywhere.
  Result<std::unique_ptr<Region>> register_memory(void*, size_t) override {
    return std::make_unique<Region>();
  }

 private:
  ShmOptions options_;
};

}  // namespace

Result<std::unique_ptr<Transport>> open_shm_transport(const ShmOptions& options) {
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < shm::kMinRing ||
      options.ring_bytes > shm::kMaxRing) {
    return fail(Code::invalid_argument,
                strf("a ring has a power of two of bytes from %zu to %zu, not %zu", shm::kMinRing,
                     shm::kMaxRing, options.ring_bytes));
  }
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(options));
}

}  // namespace prunex::transport
