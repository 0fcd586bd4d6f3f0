// SPDX-License-Identifier: Apache-2.0
// What a connection looks at besides its messages: failures, the other end's life, ports, stalls.
#include <algorithm>

#include "plugin/base/clock.h"
#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {
namespace {

// After the end of the TCP connection, how long what was sent before it may need to show here.
constexpr int64_t kAfterEndNs = 10'000'000;

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

std::string port_text(const RailEnd& e) {
  return strf("%s (GID %u %s, %s, LID %u)", e.device.c_str(), unsigned{e.gid_index},
              to_text(e.gid).c_str(), to_text(static_cast<GidType>(e.gid_type)), unsigned{e.lid});
}

std::string peer_of(const Connection& side) {
  const std::string way = side.describe();
  const size_t from = way.find("-> ") + 3;
  return way.substr(from, way.find(' ', from) - from);
}

}  // namespace

Error explain(const Parts& parts, const Rail& rail, const ibv_wc& entry) {
  const VerbsOptions& o = rail.device->options();
  return {code_of(entry.status),
          strf("RDMA to %s failed: %s (status %d, vendor 0x%x), from %s to %s; packets of %u "
               "bytes, timeout %u, %u retries, traffic class %u, service level %u; %s",
               peer_of(*parts.side).c_str(), rail.device->api().wc_status_str(entry.status),
               static_cast<int>(entry.status), entry.vendor_err, port_text(rail.own).c_str(),
               port_text(rail.peer).c_str(), std::min(rail.own.mtu, rail.peer.mtu),
               unsigned{o.timeout}, unsigned{o.retry_count}, unsigned{o.traffic_class},
               unsigned{o.service_level}, hint_of(entry.status)),
          0, -1};
}

// At the TCP connection and the devices' events: system calls, so now and then only.
void VerbsConnection::look_aside() {
  for (int look = 0; look < 2 && side_ended_ns_ < 0; ++look) {  // one finds the end, one says so
    sides_.clear();
    parts_.side->poll_fds(sides_);  // it looks closer at what was slept on
    size_t said = 0;
    if (const Io io = parts_.side->test(side_ticket_, &said); io != Io::again) {
      side_ended_ns_ = now_ns();
      farewell_bytes_ = io == Io::done ? said : 0;
    }
  }
  if (side_ended_ns_ >= 0 && now_ns() - side_ended_ns_ >= kAfterEndNs) {
    lose_to_peer();
  }
  look_at_ports();
}

void VerbsConnection::look_at_ports() {
  for (const Rail& rail : parts_.rails) {
    Gid gid;
    gid.index = rail.own.gid_index;
    gid.bytes = rail.own.gid;
    gid.type = static_cast<GidType>(rail.own.gid_type);
    const Device::Used used{gid, rail.own.queue_pairs, rail.queue->queue(), rail.partition.changes};
    if (std::string trouble = rail.device->trouble(used); !trouble.empty()) {
      lose({Code::system, std::move(trouble), 0, -1});
    }
  }
}

// Something of this end's is with the device, or a message is here in part.
bool VerbsConnection::is_under_way() const {
  const bool idle =
      std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.pair->idle(); });
  if (!idle || next_whole_ != next_arrival_) {
    return true;
  }
  const auto& sent = sends_.peek(send_order_[next_to_post_ % kPlaces]);
  const auto& coming = receives_.peek(receive_order_[next_arrival_ % kPlaces]);
  return (next_to_post_ != next_send_ && sent.posted > 0) ||
         (is_posted(next_arrival_) && coming.received > 0);
}

// A device may try again for ever (Soft-RoCE does, with 7 retries).
void VerbsConnection::check_stall() {
  const double limit = parts_.domain->options().stall_s;
  if (limit <= 0 || lost_) {
    return;
  }
  if (moves_ != moves_then_ || still_since_ns_ < 0 || !is_under_way()) {
    moves_then_ = moves_;
    still_since_ns_ = is_under_way() ? now_ns() : -1;
    return;
  }
  if (static_cast<double>(now_ns() - still_since_ns_) >= limit * 1e9) {
    break_with(
        Code::timeout,
        strf("a transfer with %s began and nothing of it moved for %g s, by %s; %d sends and "
             "%d receives of this side are open: does the peer's process run, and does the "
             "network between these ports carry RDMA?",
             peer_.c_str(), limit, ports_text().c_str(), unsent_,
             static_cast<int>(next_receive_ - next_whole_)));
  }
}

void VerbsConnection::lose_to_peer() {
  if (lost_) {
    return;
  }
  lost_ = true;
  std::string why(farewell_.data(), farewell_bytes_);
  for (char& c : why) {  // it will be printed
    c = c >= ' ' && c <= '~' ? c : '?';
  }
  reason_ = {Code::peer_lost,
             why.empty()
                 ? strf("%s has closed the connection, or its process has ended", peer_.c_str())
                 : strf("%s has given the connection up, it says: %s", peer_.c_str(), why.c_str()),
             0, -1};
}

void VerbsConnection::lose(Error reason) {
  if (!lost_) {
    lost_ = true;
    reason_ = std::move(reason);
    say_farewell(reason_.text);
  }
}

// The other end may not see what this one does: a port that is down here, a device that failed. It
// leaves at once or not at all; the TCP connection has nothing else to send.
void VerbsConnection::say_farewell(const std::string& why) {
  const size_t bytes = std::min(why.size(), farewell_.size());
  Ticket ticket = 0;
  if (bytes > 0 && side_ended_ns_ < 0) {
    if (parts_.side->isend(why.data(), bytes, nullptr, &ticket) == Io::done) {
      (void)parts_.side->test(ticket, nullptr);
    }
  }
}

bool VerbsConnection::outstanding() const {
  return unsent_ > 0 || static_cast<int32_t>(next_receive_ - next_whole_) > 0;
}

void VerbsConnection::check_lost() {
  if (lost_ && outstanding()) {
    break_with(reason_.code,
               strf("%s; %d receives and %d sends of this side are open", reason_.text.c_str(),
                    std::max(static_cast<int32_t>(next_receive_ - next_whole_), 0), unsent_));
  }
}

}  // namespace prunex::transport::verbs
