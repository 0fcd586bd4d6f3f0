// SPDX-License-Identifier: Apache-2.0
#include "bench/soak_link.h"

#include <utility>

namespace prunex::soak {
namespace {

constexpr size_t kGuard = 64;  // bytes behind a message that nobody may touch
constexpr std::byte kPoison{0xA5};

uint64_t mask_seed(uint64_t link_seed, int side) {
  return mix(link_seed, 1000 + static_cast<uint64_t>(side));
}

}  // namespace

Link::Link(tools::NetApi& api, const tools::PluginLibrary& library, uint64_t seed, int side,
           uint64_t messages)
    : api_(api), library_(library), seed_(seed), side_(side), messages_(messages) {}

Link::~Link() {
  library_.withdraw(mask_);
  for (void* mr : {plain_mr_, masked_mr_, small_mr_}) {
    if (mr != nullptr) {
      (void)api_.dereg_mr(send_, mr);
    }
  }
  if (in_mr_ != nullptr) {
    (void)api_.dereg_mr(recv_, in_mr_);
  }
  if (send_ != nullptr) {
    (void)api_.close_send(send_);
  }
  if (recv_ != nullptr) {
    (void)api_.close_recv(recv_);
  }
  if (listen_ != nullptr) {
    (void)api_.close_listen(listen_);
  }
}

Result<> Link::listen(std::string* handle) {
  if (const int r = api_.listen(0, handle_.data(), &listen_); r != 0) {
    return tl::unexpected(net_error(api_, "listen", r));
  }
  handle->assign(handle_.data(), handle_.size());
  return {};
}

void Link::aim(const std::string& handle) {
  std::memcpy(handle_.data(), handle.data(), std::min(handle.size(), handle_.size()));
}

Result<bool> Link::connect() {
  if (send_ == nullptr) {
    if (const int r = api_.connect(0, handle_.data(), &send_); r != 0) {
      return tl::unexpected(net_error(api_, "connect", r));
    }
  }
  if (recv_ == nullptr) {
    if (const int r = api_.accept(listen_, &recv_); r != 0) {
      return tl::unexpected(net_error(api_, "accept", r));
    }
  }
  if (send_ == nullptr || recv_ == nullptr) {
    return false;
  }
  if (auto prepared = prepare(); !prepared) {
    return tl::unexpected(prepared.error());
  }
  return true;
}

Result<> Link::prepare() {
  for (auto [slots, bytes] :
       {std::pair{&plain_, kMost}, {&masked_, kMost}, {&in_, kMost + kGuard}}) {
    auto made = tools::make_slots(bytes, kInflight);
    if (!made) {
      return tl::unexpected(made.error());
    }
    *slots = std::move(*made);
  }
  auto small = tools::make_slots(kSmallSlot, kInflight);
  auto scratch = tools::P2pBuffer::make(kMost);
  if (!small || !scratch) {
    return fail(Code::memory, "no memory");
  }
  small_ = std::move(*small);
  scratch_ = std::move(*scratch);
  for (size_t run = 0; run * kMaskRun < kMost * kInflight; ++run) {
    if (keeps(mask_seed(seed_, side_), run)) {
      masked_.kept.push_back({run * kMaskRun, kMaskRun});
    }
  }
  if (library_.is_prunex()) {
    auto mask = library_.publish(masked_);
    if (!mask) {
      return tl::unexpected(mask.error());
    }
    mask_ = *mask;
  }
  int r = api_.reg_mr(send_, plain_.buffer.data(), plain_.buffer.size(), &plain_mr_);
  r = r != 0 ? r : api_.reg_mr(send_, masked_.buffer.data(), masked_.buffer.size(), &masked_mr_);
  r = r != 0 ? r : api_.reg_mr(send_, small_.buffer.data(), kLlBytes, &small_mr_);
  r = r != 0 ? r : api_.reg_mr(recv_, in_.buffer.data(), in_.buffer.size(), &in_mr_);
  return r == 0 ? Result<>() : tl::unexpected(net_error(api_, "regMr", r));
}

std::byte* Link::place_of(uint64_t number, const Plan& plan, void** mr, size_t* offset) {
  const size_t slot = static_cast<size_t>(number % kInflight);
  *offset = slot * masked_.stride + plan.offset;
  switch (plan.kind) {
    case Kind::masked:
    case Kind::dirty:
      *mr = masked_mr_;
      return masked_.buffer.data() + *offset;
    case Kind::low_latency:
      *mr = small_mr_;
      return small_.slot(number, kInflight);
    case Kind::dense:
    case Kind::zero_blocks:
      break;
  }
  *mr = plain_mr_;
  return plain_.slot(number, kInflight);
}

Result<bool> Link::post_sends() {
  bool moved = false;
  while (posted_ < messages_ && posted_ - sent_ < kInflight) {
    const Plan plan = plan_of(seed_, side_, posted_);
    void* mr = nullptr;
    size_t offset = 0;
    std::byte* const at = place_of(posted_, plan, &mr, &offset);
    write_message(plan, mask_seed(seed_, side_), offset, at);
    void** const request = &sends_[posted_ % kInflight];
    if (const int r = api_.isend(send_, at, plan.bytes, mr, request); r != 0) {
      return tl::unexpected(net_error(api_, "isend", r));
    }
    if (*request == nullptr) {
      break;
    }
    ++counts_.sent[static_cast<size_t>(plan.kind)];
    ++posted_;
    moved = true;
  }
  return moved;
}

Result<bool> Link::post_receives() {
  bool moved = false;
  while (awaited_ < messages_ && awaited_ - received_ < kInflight) {
    const Plan plan = plan_of(seed_, 1 - side_, awaited_);
    std::byte* const at = in_.slot(awaited_, kInflight);
    std::memset(at, static_cast<int>(kPoison), plan.bytes + kGuard);
    const size_t capacity = plan.seed % 2 == 0 ? plan.bytes : kMost;  // never more than there is
    void** const request = &receives_[awaited_ % kInflight];
    if (const int r = api_.irecv(recv_, at, capacity, in_mr_, request); r != 0) {
      return tl::unexpected(net_error(api_, "irecv", r));
    }
    if (*request == nullptr) {
      break;
    }
    ++awaited_;
    moved = true;
  }
  return moved;
}

Result<> Link::check(uint64_t number, int bytes) {
  const Plan plan = plan_of(seed_, 1 - side_, number);
  const std::byte* const at = in_.slot(number, kInflight);
  const size_t offset = static_cast<size_t>(number % kInflight) * masked_.stride + plan.offset;
  write_message(plan, mask_seed(seed_, 1 - side_), offset, scratch_.data());
  bool guard = true;
  for (size_t i = 0; i < kGuard; ++i) {
    guard = guard && at[plan.bytes + i] == kPoison;
  }
  if (static_cast<size_t>(bytes) == plan.bytes && guard &&
      std::memcmp(at, scratch_.data(), plan.bytes) == 0) {
    ++counts_.messages;
    counts_.bytes += plan.bytes;
    return {};
  }
  ++counts_.wrong;
  size_t first = 0;
  while (first < plan.bytes && at[first] == scratch_.data()[first]) {
    ++first;
  }
  return fail(
      Code::internal,
      strf("WRONG BYTES: message %llu of seed %llu, %s, %zu bytes: %d came, the first wrong "
           "byte is %zu, guard %s",
           static_cast<unsigned long long>(number), static_cast<unsigned long long>(seed_),
           kKindNames[static_cast<size_t>(plan.kind)], plan.bytes, bytes, first,
           guard ? "whole" : "overwritten"));
}

Result<bool> Link::reap() {
  bool moved = false;
  for (int done = 1; done != 0 && sent_ < posted_;) {
    if (const int r = api_.test(sends_[sent_ % kInflight], &done, nullptr); r != 0) {
      return tl::unexpected(net_error(api_, "test of a send", r));
    }
    sent_ += done != 0 ? 1 : 0;
    moved = moved || done != 0;
  }
  for (int done = 1; done != 0 && received_ < awaited_;) {
    int bytes = -1;
    if (const int r = api_.test(receives_[received_ % kInflight], &done, &bytes); r != 0) {
      return tl::unexpected(net_error(api_, "test of a receive", r));
    }
    if (done != 0) {
      if (auto right = check(received_, bytes); !right) {
        return tl::unexpected(right.error());
      }
      ++received_;
      moved = true;
    }
  }
  return moved;
}

Result<bool> Link::step() {
  auto received = post_receives();
  if (!received) {
    return received;
  }
  auto sent = post_sends();
  if (!sent) {
    return sent;
  }
  auto reaped = reap();
  return reaped ? Result<bool>(*received || *sent || *reaped) : reaped;
}

}  // namespace prunex::soak
