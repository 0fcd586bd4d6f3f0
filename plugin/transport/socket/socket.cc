// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/socket/socket.h"

#include <sys/socket.h>

#include <cerrno>

#include "plugin/base/fd.h"
#include "plugin/transport/socket/connecting.h"
#include "plugin/transport/socket/listener.h"
#include "plugin/transport/socket/tuning.h"

namespace prunex::transport {
namespace {

class SocketTransport final : public Transport {
 public:
  explicit SocketTransport(const SocketOptions& options) : options_(options) {}
  [[nodiscard]] std::string_view name() const override { return "socket"; }
  Result<std::unique_ptr<Listener>> listen() override { return SocketListener::open(options_); }
  Result<std::unique_ptr<Connecting>> connect(std::string_view handle, std::string_view hello,
                                              double timeout_s) override {
    return SocketConnecting::open(options_, handle, hello, timeout_s);
  }
  // The kernel copies from anywhere.
  Result<std::unique_ptr<Region>> register_memory(void*, size_t) override {
    return std::make_unique<Region>();
  }

 private:
  SocketOptions options_;
};

}  // namespace

int default_streams(bool same_machine) { return same_machine ? 1 : 4; }

Result<std::unique_ptr<Transport>> open_socket_transport(const SocketOptions& options) {
  if (options.streams < 0 || options.streams > kMaxStreams) {
    return fail(Code::invalid_argument,
                strf("a connection has 1 to %d streams, not %d", kMaxStreams, options.streams));
  }
  if (options.pacing_rate > 0) {
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && !pace(probe.get(), options.pacing_rate)) {
      return fail(Code::config,
                  strf("PRUNEX_PACING_RATE is set, but this kernel cannot pace a TCP connection "
                       "(SO_MAX_PACING_RATE: %s): unset it",
                       errno_text(errno).c_str()),
                  errno);
    }
  }
  return std::unique_ptr<Transport>(std::make_unique<SocketTransport>(options));
}

}  // namespace prunex::transport
