// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/connection.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint32_t kRareRounds = 64;
constexpr int kPollsPerCall = 4;
// After the end of the TCP connection, how long what was sent before it may need to show here.
constexpr int64_t kAfterEndNs = 10'000'000;
constexpr double kLingerS = 1;
constexpr uint64_t kLongestWrite = uint64_t{1} << 30;

const char* hint_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer does not answer by RDMA: is its process alive, do GID index, VLAN and rail "
             "fit together, and does every switch carry this MTU?";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer's process takes nothing: is it stopped?";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return "the peer refused the memory: was a buffer freed or unregistered during a transfer?";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
      return "this side's device refused the memory: was a buffer freed or unregistered during a "
             "transfer?";
    default:
      return "the device or the network failed";
  }
}

Code code_of(ibv_wc_status status) {
  return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR ||
                 status == IBV_WC_REM_OP_ERR || status == IBV_WC_WR_FLUSH_ERR
             ? Code::peer_lost
             : Code::system;
}

std::string port_text(const Endpoint& e) {
  return strf("%s (GID %u %s, %s, LID %u)", e.device.c_str(), unsigned{e.gid_index},
              to_text(e.gid).c_str(), to_text(static_cast<GidType>(e.gid_type)), unsigned{e.lid});
}

}  // namespace

Result<std::unique_ptr<Connection>> VerbsConnection::open(Parts parts) {
  Fd ready(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ready) {
    return fail(Code::system, "no event descriptor: " + errno_text(errno), errno);
  }
  std::unique_ptr<VerbsConnection> c(new VerbsConnection(std::move(parts), std::move(ready)));
  // Nothing is ever sent there: it is answered when the other end is gone.
  if (c->parts_.side->irecv(&c->side_byte_, 1, nullptr, &c->side_ticket_) != Io::done) {
    return tl::unexpected<Error>(c->parts_.side->error());
  }
  return std::unique_ptr<Connection>(std::move(c));
}

VerbsConnection::VerbsConnection(Parts parts, Fd ready)
    : parts_(std::move(parts)),
      ready_(std::move(ready)),
      names_(parts_.side->describe()),
      next_send_(parts_.own.first_sequence),
      next_to_post_(next_send_),
      peer_consumed_(next_send_),
      next_receive_(next_send_),
      next_arrival_(next_send_),
      told_consumed_(next_send_) {
  names_ = names_.substr(0, names_.find(" ("));
  peer_ = names_.substr(names_.find("-> ") + 3);
  chunk_ = kLongestWrite;
  for (const uint64_t limit : {parts_.own.max_message, parts_.peer.max_message}) {
    chunk_ = limit > 0 ? std::min(chunk_, limit) : chunk_;
  }
}

VerbsConnection::~VerbsConnection() {
  // What the device still has to send goes out, unless the other end is gone.
  const Deadline deadline = Deadline::after(kLingerS);
  bool healthy = !lost_;
  while (healthy && !parts_.pair->idle() && !deadline.passed()) {
    const int n = parts_.pair->poll(seen_);
    healthy = n >= 0;
    for (int i = 0; i < n; ++i) {
      healthy = healthy && seen_[static_cast<size_t>(i)].status == IBV_WC_SUCCESS;
    }
  }
  parts_.side.reset();  // first, so that the other end hears of a close and not of a failure
  parts_.pair.reset();  // then nobody writes here any more
}

std::string VerbsConnection::describe() const {
  return strf("%s (verbs, %s to %s)", names_.c_str(), parts_.own.device.c_str(),
              parts_.peer.device.c_str());
}

VerbsConnection::Source VerbsConnection::source_of(const Region* region, const void* data,
                                                   size_t bytes) const {
  const auto* ours = dynamic_cast<const VerbsRegion*>(region);
  const bool usable = ours != nullptr && ours->memory->device() == parts_.device.get() &&
                      ours->memory->holds(data, bytes);
  return usable ? ours->memory : nullptr;
}

Io VerbsConnection::test(Ticket ticket, size_t* bytes, Mark* mark) {
  const auto go_on = [this] { (void)progress(); };
  return is_receive(ticket) ? answer(receives_, ticket, failed_, error_, go_on, bytes, mark)
                            : answer(sends_, ticket, failed_, error_, go_on, bytes, mark);
}

Io VerbsConnection::progress() {
  if (failed_) {
    return Io::failed;
  }
  const bool now_and_then = slept_ || ++rounds_ % kRareRounds == 0;
  if (slept_) {
    parts_.pair->disarm();
    slept_ = false;
  }
  int moved = 0;
  for (int i = 0; i < kPollsPerCall && !failed_; ++i) {
    const int n = poll_some();
    moved += n;
    if (n == 0) {
      break;
    }
  }
  if (!failed_ && !lost_) {
    flush_due();
    push_sends();
  }
  if (moved == 0 && !failed_) {
    if (now_and_then || side_ended_ns_ >= 0) {
      look_aside();
    }
    check_lost();
  }
  return failed_ ? Io::failed : moved > 0 ? Io::done : Io::again;
}

int VerbsConnection::poll_some() {
  const int n = seen_count_ > 0 ? std::exchange(seen_count_, 0) : parts_.pair->poll(seen_);
  if (n < 0) {
    lose({Code::system, parts_.own.device + " has failed", 0, -1});
    return 0;
  }
  for (int i = 0; i < n && !failed_; ++i) {
    handle(seen_[static_cast<size_t>(i)]);
  }
  return n;
}

void VerbsConnection::handle(const ibv_wc& entry) {
  if (entry.status != IBV_WC_SUCCESS) {
    if (!lost_) {
      look_aside();  // it may simply have closed
      side_ended_ns_ >= 0 ? lose_to_peer() : lose(explain(parts_, entry));
    }
    return;
  }
  if (entry.wr_id != kReceiveId) {
    on_sent(entry.wr_id);
    return;
  }
  const Immediate i = unpack(entry.imm_data);
  switch (i.kind) {
    case Immediate::credit:
      on_credit(i.value);
      break;
    case Immediate::notice:
      on_notice(i.value);
      break;
    default:
      on_message(i.kind, i.mark, i.value);
  }
}

Error explain(const Parts& parts, const ibv_wc& entry) {
  const VerbsOptions& o = parts.device->options();
  const std::string way = parts.side->describe();
  const size_t from = way.find("-> ") + 3;
  const std::string peer = way.substr(from, way.find(' ', from) - from);
  return {code_of(entry.status),
          strf("RDMA to %s failed: %s (status %d, vendor 0x%x), from %s to %s; packets of %u "
               "bytes, timeout %u, %u retries, traffic class %u, service level %u; %s",
               peer.c_str(), parts.device->api().wc_status_str(entry.status),
               static_cast<int>(entry.status), entry.vendor_err, port_text(parts.own).c_str(),
               port_text(parts.peer).c_str(), std::min(parts.own.mtu, parts.peer.mtu),
               unsigned{o.timeout}, unsigned{o.retry_count}, unsigned{o.traffic_class},
               unsigned{o.service_level}, hint_of(entry.status)),
          0, -1};
}

// At the TCP connection and the device's events: system calls, so now and then only.
void VerbsConnection::look_aside() {
  for (int look = 0; look < 2 && side_ended_ns_ < 0; ++look) {  // one finds the end, one says so
    sides_.clear();
    parts_.side->poll_fds(sides_);  // it looks closer at what was slept on
    if (parts_.side->test(side_ticket_, nullptr) != Io::again) {
      side_ended_ns_ = now_ns();
    }
  }
  if (side_ended_ns_ >= 0 && now_ns() - side_ended_ns_ >= kAfterEndNs) {
    lose_to_peer();
  }
  if (!parts_.device->look_at_events()) {
    lose({Code::system,
          strf("the port %s has gone down: look at its cable, switch and driver",
               parts_.own.device.c_str()),
          0, -1});
  }
}

void VerbsConnection::lose_to_peer() {
  lose({Code::peer_lost,
        strf("%s has closed the connection, or its process has ended", peer_.c_str()), 0, -1});
}

void VerbsConnection::lose(Error reason) {
  if (!lost_) {
    lost_ = true;
    reason_ = std::move(reason);
  }
}

bool VerbsConnection::outstanding() const {
  return unsent_ > 0 || static_cast<int32_t>(next_receive_ - next_arrival_) > 0;
}

void VerbsConnection::check_lost() {
  if (lost_ && outstanding()) {
    const uint32_t open = next_receive_ - next_arrival_;
    break_with(reason_.code,
               strf("%s; %d receives and %d sends of this side are open", reason_.text.c_str(),
                    std::max(static_cast<int32_t>(open), 0), unsent_));
  }
}

void VerbsConnection::poll_fds(std::vector<pollfd>& out) const {
  slept_ = true;
  if (failed_ || (lost_ && seen_count_ == 0 && !outstanding())) {
    return;
  }
  if (seen_count_ == 0) {
    // What completes between the last look and the arming raises no event: look once more.
    parts_.pair->arm();
    seen_count_ = std::max(parts_.pair->poll(seen_), 0);
  }
  if (seen_count_ > 0 || side_ended_ns_ >= 0 || lost_) {
    out.push_back({ready_.get(), POLLIN, 0});
    return;
  }
  out.push_back({parts_.pair->event_fd(), POLLIN, 0});
  out.push_back({parts_.device->event_fd(), POLLIN, 0});
  parts_.side->poll_fds(out);
}

void VerbsConnection::break_with(Code code, std::string text) {
  if (!failed_) {
    failed_ = true;
    error_ = Error{code, std::move(text) + " [" + describe() + "]", 0, -1};
  }
}

void VerbsConnection::break_protocol(const char* what) {
  break_with(Code::mismatch,
             strf("%s sent %s: install the same prunex on all nodes", peer_.c_str(), what));
}

}  // namespace prunex::transport::verbs
