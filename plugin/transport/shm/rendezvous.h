// SPDX-License-Identifier: Apache-2.0
// How two processes of one machine meet: a Unix socket under a random name in /dev/shm. The
// connecting side makes the shared memory and says its name; the accepting side maps it and removes
// the name.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/fd.h"
#include "plugin/transport/shm/segment.h"
#include "plugin/transport/shm/shm.h"
#include "plugin/transport/shm/wire.h"
#include "plugin/transport/timer.h"

namespace prunex::transport::shm {

class ShmListener final : public Listener {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const ShmOptions& options);
  ~ShmListener() override;

  [[nodiscard]] std::string handle() const override { return encode(Handle{path_, cookie_}); }
  Result<std::unique_ptr<Connection>> accept() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  struct Stranger {
    Fd fd;
    Deadline deadline;
  };

  ShmListener(Fd fd, std::string path, const Cookie& cookie, const ShmOptions& options)
      : fd_(std::move(fd)), path_(std::move(path)), cookie_(cookie), options_(options) {}
  Result<> take_strangers();
  // nullptr: not yet, or, with `fd` closed, nobody we know.
  Result<std::unique_ptr<Connection>> listen_to(Stranger& stranger);

  Fd fd_;
  std::string path_;
  Cookie cookie_;
  ShmOptions options_;
  std::vector<Stranger> strangers_;
};

class ShmConnecting final : public Connecting {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Connecting>> open(const ShmOptions& options,
                                                                std::string_view handle,
                                                                std::string_view hello,
                                                                double timeout_s);
  Result<std::unique_ptr<Connection>> step() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  ShmConnecting(const ShmOptions& options, Handle handle, std::string_view hello, double timeout_s,
                Timer timer, Segment segment);
  bool begin_attempt();
  void retry_later(std::string why);
  [[nodiscard]] Result<std::unique_ptr<Connection>> take_reply();

  ShmOptions options_;
  Handle handle_;
  std::string hello_;
  double timeout_s_;
  Deadline deadline_;
  Timer timer_;  // wakes poll() for the next attempt and for the deadline
  Segment segment_;
  Fd fd_;  // none: between two attempts
  int attempts_ = 0;
  int64_t next_ns_ = 0;
  std::string last_failure_;
};

}  // namespace prunex::transport::shm
