// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/completion.h"

#include <fcntl.h>

#include <cerrno>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::open(std::shared_ptr<Device> device,
                                                               uint32_t entries) {
  std::unique_ptr<CompletionQueue> out(new CompletionQueue(std::move(device)));
  const Api& api = out->device_->api();
  const PortInfo& port = out->device_->port();
  if (port.max_completions > 0 && entries > static_cast<uint32_t>(port.max_completions)) {
    return fail(Code::unsupported,
                strf("%s has completion queues of at most %d entries (max_cqe); %u are needed: use "
                     "fewer queue pairs per connection",
                     port.name().c_str(), port.max_completions, entries));
  }
  errno = 0;
  ibv_context* context = out->device_->context();
  out->channel_ = api.create_comp_channel(context);
  if (out->channel_ != nullptr) {
    out->queue_ = api.create_cq(context, static_cast<int>(entries), nullptr, out->channel_, 0);
  }
  if (out->queue_ == nullptr) {
    const int error = errno;
    return fail(error == ENOMEM ? Code::memory : Code::system,
                strf("no completion queue of %u entries on %s: %s%s", entries, port.name().c_str(),
                     errno_text(error).c_str(),
                     error == ENOMEM ? "; raise the limit of locked memory (ulimit -l unlimited) "
                                       "in the launcher"
                                     : ""),
                error);
  }
  out->device_->welcome_queue(out->queue_);
  const int fd = out->channel_->fd;
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  return out;
}

CompletionQueue::~CompletionQueue() {
  if (queue_ != nullptr) {
    disarm();
    device_->api().destroy_cq(queue_);
  }
  if (channel_ != nullptr) {
    device_->api().destroy_comp_channel(channel_);
  }
}

void CompletionQueue::arm() {
  if (!armed_) {
    armed_ = device_->context()->ops.req_notify_cq(queue_, 0) == 0;
  }
}

void CompletionQueue::disarm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (device_->api().get_cq_event(channel_, &queue, &context) == 0) {
    device_->api().ack_cq_events(queue, 1);
    armed_ = false;
  }
}

}  // namespace prunex::transport::verbs
