// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/leader_links.h"

#include <algorithm>

#include "plugin/base/wire.h"

namespace prunex::collective {
namespace {

using transport::Connecting;
using transport::Connection;
using transport::Io;

struct Greeting {
  uint32_t node = 0;
  uint32_t channel = 0;
};

std::string greet(size_t node, size_t channel) {
  WireAppender w;
  w.put(static_cast<uint32_t>(node));
  w.put(static_cast<uint32_t>(channel));
  return w.take();
}

std::optional<Greeting> understand(std::string_view hello) {
  WireReader r(hello);
  Greeting g{r.get<uint32_t>(), r.get<uint32_t>()};
  if (!r.ok() || r.left() != 0 || g.channel >= kChannels) {
    return std::nullopt;
  }
  return g;
}

constexpr size_t kInboxBytes = CallHeader::kWireBytes + Tuning::kInlineLimit;

}  // namespace

Error peer_error(const Peer& peer, const Connection& link) {
  Error e = link.error();
  e.rank = peer.rank;
  if (e.code != Code::timeout) {
    e.code = Code::peer_lost;
  }
  e.text = strf("rank %d was lost: %s (%s)", peer.rank, e.text.c_str(), link.describe().c_str());
  return e;
}

Result<std::unique_ptr<LeaderLinks>> LeaderLinks::connect(transport::Transport& transport,
                                                          transport::Listener& listener,
                                                          size_t self,
                                                          const std::vector<int>& leader_ranks,
                                                          const std::vector<std::string>& handles,
                                                          Deadline deadline) {
  std::unique_ptr<LeaderLinks> links(new LeaderLinks(&transport));
  links->self_ = self;
  links->peers_.resize(leader_ranks.size());
  struct Pending {
    size_t node, channel;
    std::unique_ptr<Connecting> connecting;
  };
  std::vector<Pending> pending;
  size_t missing = 0;
  for (size_t n = 0; n < leader_ranks.size(); ++n) {
    links->peers_[n].rank = leader_ranks[n];
    if (n == self) {
      continue;
    }
    missing += kChannels;
    for (size_t c = 0; n < self && c < kChannels; ++c) {
      auto connecting = transport.connect(handles[n], greet(self, c),
                                          static_cast<double>(deadline.left_ns()) * 1e-9);
      if (!connecting) {
        return tl::unexpected(connecting.error());
      }
      pending.push_back({n, c, std::move(*connecting)});
    }
  }
  std::vector<pollfd> fds;
  while (missing > 0) {
    bool moved = false;
    for (size_t i = 0; i < pending.size();) {
      auto step = pending[i].connecting->step();
      if (!step) {
        Error e = step.error();
        e.rank = leader_ranks[pending[i].node];
        e.text = strf("connecting to rank %d: %s", e.rank, e.text.c_str());
        return tl::unexpected(std::move(e));
      }
      if (*step == nullptr) {
        ++i;
        continue;
      }
      links->peers_[pending[i].node].link[pending[i].channel] = std::move(*step);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      --missing;
      moved = true;
    }
    auto accepted = listener.accept();
    if (!accepted) {
      return tl::unexpected(accepted.error());
    }
    if (*accepted != nullptr) {
      moved = true;
      const auto g = understand((*accepted)->hello());
      // Whoever knows the cookie and still talks nonsense is dropped like a stray.
      if (g && g->node > self && g->node < links->peers_.size() &&
          links->peers_[g->node].link[g->channel] == nullptr) {
        links->peers_[g->node].link[g->channel] = std::move(*accepted);
        --missing;
      }
    }
    if (moved) {
      continue;
    }
    if (deadline.passed()) {
      std::string who;
      int first = -1;
      for (const Peer& p : links->peers_) {
        const bool here = std::all_of(std::begin(p.link), std::end(p.link),
                                      [](const auto& l) { return l != nullptr; });
        if (!here && p.rank != leader_ranks[self]) {
          who += strf("%s%d", who.empty() ? "" : ", ", p.rank);
          first = first < 0 ? p.rank : first;
        }
      }
      return fail(Code::timeout, strf("no connection with leader rank(s) %s in time", who.c_str()),
                  0, first);
    }
    fds.clear();
    listener.poll_fds(fds);
    for (const Pending& p : pending) {
      p.connecting->poll_fds(fds);
    }
    ::poll(fds.data(), fds.size(), 20);  // connects also retry by the clock
  }
  links->inboxes_.reserve(links->peers_.size() * kInboxBytes);
  for (size_t n = 0; n < links->peers_.size(); ++n) {
    if (n != self) {
      links->peers_[n].inbox = {links->inboxes_.data() + n * kInboxBytes, kInboxBytes};
      links->post_inbox(links->peers_[n]);
    }
  }
  links->outgoing_.reserve(kMessages * links->peers_.size());
  links->messages_.resize(kMessages);
  for (Message& m : links->messages_) {
    m.bytes.reserve(kInboxBytes);
  }
  return links;
}

void LeaderLinks::post_inbox(Peer& peer) {
  Connection& link = *peer.link[static_cast<size_t>(Channel::calls)];
  const Io io =
      link.irecv(peer.inbox.data(), peer.inbox.size(), inboxes_.region(), &peer.inbox_ticket);
  if (io != Io::done) {
    peer.inbox_ticket = 0;
    peer.closed = true;
  }
}

LeaderLinks::Message& LeaderLinks::free_message() {
  const auto free = std::find_if(messages_.begin(), messages_.end(),
                                 [](const Message& m) { return m.sends == 0; });
  return free != messages_.end() ? *free : messages_.emplace_back();
}

Result<> LeaderLinks::send_calls(const CallHeader& header, std::span<const std::byte> payload) {
  reap_outgoing();
  Message& message = free_message();
  std::vector<std::byte>& bytes = message.bytes;
  bytes.resize(CallHeader::kWireBytes + payload.size());
  CallHeader h = header;
  h.payload = static_cast<uint32_t>(payload.size());
  encode(h, std::span<std::byte, CallHeader::kWireBytes>(bytes.data(), CallHeader::kWireBytes));
  std::copy(payload.begin(), payload.end(), bytes.begin() + CallHeader::kWireBytes);
  Result<> result;
  for (size_t n = 0; n < peers_.size(); ++n) {
    if (n == self_) {
      continue;
    }
    Connection& link = this->link(n, Channel::calls);
    transport::Ticket ticket = 0;
    // At most a call and a commit per exchange are under way: the pool cannot be full. One broken
    // peer must not keep the others from hearing an abort.
    if (link.isend(bytes.data(), bytes.size(), nullptr, &ticket) != Io::done) {
      if (result) {
        result = tl::unexpected(peer_error(peers_[n], link));
      }
      continue;
    }
    bytes_sent += bytes.size();
    ++message.sends;
    outgoing_.push_back({n, ticket, &message});
  }
  reap_outgoing();
  return result;
}

void LeaderLinks::reap_outgoing() {
  std::erase_if(outgoing_, [this](const Outgoing& o) {
    size_t n = 0;
    if (link(o.node, Channel::calls).test(o.ticket, &n) == Io::again) {
      return false;
    }
    --o.message->sends;
    return true;
  });
}

Result<const CallHeader*> LeaderLinks::peek_call(size_t node) {
  Peer& peer = peers_[node];
  if (peer.waiting) {
    return &*peer.waiting;
  }
  Connection& link = this->link(node, Channel::calls);
  if (peer.closed) {
    return tl::unexpected(peer_error(peer, link));
  }
  size_t n = 0;
  const Io io = link.test(peer.inbox_ticket, &n);
  if (io == Io::again) {
    return nullptr;
  }
  if (io == Io::failed) {
    peer.closed = true;
    return tl::unexpected(peer_error(peer, link));
  }
  bytes_received += n;
  auto header = decode_call(peer.inbox.first(n));
  if (!header) {
    Error e = header.error();
    e.rank = peer.rank;
    e.text = strf("rank %d sent nonsense: %s", peer.rank, e.text.c_str());
    e.code = Code::peer_lost;
    return tl::unexpected(std::move(e));
  }
  peer.waiting = *header;
  return &*peer.waiting;
}

std::span<const std::byte> LeaderLinks::payload(size_t node) const {
  const Peer& peer = peers_[node];
  return peer.inbox.subspan(CallHeader::kWireBytes, peer.waiting->payload);
}

void LeaderLinks::take_call(size_t node) {
  peers_[node].waiting.reset();
  post_inbox(peers_[node]);
}

void LeaderLinks::progress() {
  for (size_t n = 0; n < peers_.size(); ++n) {
    if (n == self_) {
      continue;
    }
    for (const auto& l : peers_[n].link) {
      (void)l->progress();
    }
  }
  if (!outgoing_.empty()) {
    reap_outgoing();
  }
}

void LeaderLinks::progress_calls() {
  for (size_t n = 0; n < peers_.size(); ++n) {
    if (n != self_) {
      (void)link(n, Channel::calls).progress();
    }
  }
  reap_outgoing();
}

void LeaderLinks::poll_fds(std::vector<pollfd>& out) const {
  for (size_t n = 0; n < peers_.size(); ++n) {
    if (n != self_) {
      for (const auto& l : peers_[n].link) {
        l->poll_fds(out);
      }
    }
  }
}

}  // namespace prunex::collective
