// SPDX-License-Identifier: Apache-2.0
// The two ends of a connection as NCCL knows them. Each is driven by one thread at a time, by
// test() of any of its requests: nothing moves unless somebody asks.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/base/process.h"
#include "plugin/nccl/net/device_codec.h"
#include "plugin/nccl/net/host.h"
#include "plugin/nccl/net/memory.h"
#include "plugin/nccl/net/message.h"
#include "plugin/nccl/net/object.h"
#include "plugin/nccl/net/side_buffers.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

class NetComm;

template <class T>
class Fifo {  // of at most kMaxRequests
 public:
  [[nodiscard]] bool empty() const { return count_ == 0; }
  template <class F>
  [[nodiscard]] bool any_of(F&& is) const {
    for (size_t i = 0; i < count_; ++i) {
      if (is(*at(i))) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] T* front() const { return ring_[head_]; }
  [[nodiscard]] T* at(size_t i) const { return ring_[(head_ + i) % ring_.size()]; }
  void push(T* one) { ring_[(head_ + count_++) % ring_.size()] = one; }
  void pop() {
    head_ = (head_ + 1) % ring_.size();
    --count_;
  }

 private:
  std::array<T*, kMaxRequests> ring_{};
  size_t head_ = 0, count_ = 0;
};

struct Request : Object {
  static constexpr Tag kTag = Tag::request;
  Request() : Object(kTag) {}
  NetComm* owner = nullptr;
  bool used = false, done = false;
  size_t bytes = 0;  // logical; of a receive, once it is done
};

// Of a message that is not on its way yet: whether NCCL took its buffer away.
template <class Kind>
[[nodiscard]] bool lost_its_buffer(const Kind& one) {
  return one.registered && one.known.expired();
}
[[nodiscard]] Error buffer_was_taken();

// Copying, scanning and expanding per call of test(), bytes: NCCL's progress thread serves others.
inline constexpr size_t kCallBudget = size_t{256} << 10;

struct Link {  // what both ends are made of
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Connection> connection;
};

class NetComm : public Object {
 public:
  NetComm(Tag tag, Link link);
  virtual ~NetComm();
  int test(Request& request, int* done, int* bytes);

  [[nodiscard]] const Context& context() const { return *link_.context; }
  [[nodiscard]] const std::shared_ptr<transport::Transport>& transport() const {
    return link_.transport;
  }
  [[nodiscard]] LaneOfComm& lane() { return lane_; }
  [[nodiscard]] SideBuffers& side_buffers() { return side_buffers_; }
  [[nodiscard]] bool from_before_fork() const { return made_at_ != forks_counted(); }

 protected:
  // Moves what can be moved, until `wanted` is done, if there is one: what else has come by then is
  // told when somebody asks for it.
  virtual int pump(const Request* wanted) = 0;
  // A request that is not in use, or null; it is in use from now on.
  template <class Kind>
  [[nodiscard]] static Kind* claim(std::array<Kind, kMaxRequests>& all) {
    for (Kind& one : all) {
      if (!one.used) {
        one.used = true;
        one.done = false;
        return &one;
      }
    }
    return nullptr;
  }
  [[nodiscard]] transport::Connection& connection() { return *link_.connection; }
  [[nodiscard]] ContextStats& stats() { return *link_.context->stats; }
  // The connection is of no use any more: says why once, answers the code for ever.
  int broken(const Error& why);
  // Nobody writes to this side's memory from then on.
  void disconnect() { link_.connection.reset(); }
  int broken_connection() { return broken(connection().error()); }

  // kSuccess, or why nothing can be done with this comm any more.
  int usable() { return from_before_fork() ? broken(made_before_fork("connection")) : status_; }
  // Whether any buffers of this process were taken back since the last question.
  bool were_buffers_taken() {
    const uint32_t now = buffers_taken();
    return std::exchange(taken_seen_, now) != now;
  }

 private:
  Link link_;
  LaneOfComm lane_;
  SideBuffers side_buffers_{*link_.transport};
  int status_ = kSuccess;
  uint32_t made_at_ = forks();
  uint32_t taken_seen_ = buffers_taken();
};

class SendComm final : public NetComm {
 public:
  static constexpr Tag kTag = Tag::send;
  explicit SendComm(Link link);
  ~SendComm() override;  // what was asked to be sent is sent, for a second at most

  int isend(void* data, size_t bytes, const Memory* memory, void** request);

 private:
  // Host memory: undecided, then ready, or
  //   placing   until there is a side buffer for it
  //   encoding
  // Device memory: undecided, then
  //   placing   until there is pinned memory for it
  //   packing   until the kernels are done; then ready, or copying
  //   copying   until the pinned memory holds it
  // or ready at once, where the network reads it itself.
  enum class Stage : uint8_t { undecided, placing, packing, copying, encoding, ready };
  enum class Way : uint8_t { raw, blocks, masked };  // of device memory
  struct Send : Request {
    const std::byte* data = nullptr;    // where the network reads it, if as it is
    const std::byte* origin = nullptr;  // where NCCL has it
    DeviceLane* lane = nullptr;         // of device memory
    bool registered = false;
    std::weak_ptr<const Registration> known;  // of `origin`
    bool direct = false;                      // in device memory, which the network reads itself
    Protocol protocol = Protocol::unknown;
    Stage stage = Stage::undecided;
    Way way = Way::raw;
    transport::Ticket ticket = 0;
    std::optional<MaskedPiece> piece;  // of a registered tensor
    MaskCounts* counts = nullptr;      // of its mask
    std::shared_ptr<std::atomic<uint64_t>> violations;
    SideBuffer side;                               // holds what the host encoded, if it did
    std::byte* staged = nullptr;                   // piece of the lane's memory
    std::shared_ptr<const device::MaskPlan> plan;  // placing
    DevicePacking packing;
    std::span<const std::byte> encoded;  // in `side` or `staged`; empty: raw
    WireKind kind = WireKind::raw;
    [[nodiscard]] size_t wire_bytes() const { return encoded.empty() ? bytes : encoded.size(); }
  };

  int pump(const Request* wanted) override;
  int advance();  // posts what can be posted
  transport::Io post_raw(Send& send, const Memory* memory);
  bool prepare(Send& send, size_t* budget);  // false: not ready to be posted
  transport::Io post(Send& send);
  [[nodiscard]] bool passes_over(size_t bytes);
  [[nodiscard]] bool is_looked_at(size_t bytes) const;  // for zeros, if its protocol allows it
  // Whether a buffer was taken away before its message was on its way.
  [[nodiscard]] bool buffer_gone() const;
  void decide(Send& send);
  void find_mask(Send& send);
  void begin_encoding(Send& send);
  bool encode(Send& send, size_t* budget);
  bool violated(Send& send, size_t* budget);
  void count_violation(Send& send);
  void send_raw(Send& send);
  void free_side(Send& send);
  int reap(const Request* wanted);

  // Of device memory.
  void start_on_device();
  static bool find_plan(Send& send);
  void decide_on_device(Send& send, bool may_pay);
  [[nodiscard]] size_t room_on_device(const Send& send);
  void place(Send& send);
  void send_direct(Send& send);
  void copy_from_device(Send& send);
  LaneState state_on_device(Send& send);
  bool arrived_from_device(Send& send);
  bool packed_by_device(Send& send);
  void free_staged(Send& send);

  [[nodiscard]] size_t slot_of(const Send& s) const {
    return static_cast<size_t>(&s - sends_.data());
  }

  std::array<Send, kMaxRequests> sends_;
  Fifo<Send> waiting_, posted_;   // in the order of isend()
  size_t encoded_in_flight_ = 0;  // by the host
  MessageEncoder encoder_;
  Backoff backoff_;
};

class RecvComm final : public NetComm {
 public:
  static constexpr Tag kTag = Tag::recv;
  explicit RecvComm(Link link);
  ~RecvComm() override {  // before its buffers go
    disconnect();
    lane().drain();
  }

  int irecv(void* data, size_t bytes, const Memory* memory, bool polled, void** request);
  int flush(const Memory& memory);

 private:
  struct Recv : Request, transport::Aside {
    Room room(size_t bytes) override;
    std::byte* data = nullptr;  // where it is to be
    size_t capacity = 0;
    DeviceLane* lane = nullptr;  // of device memory
    bool direct = false;         // of which the network writes to `data` itself
    bool registered = false;
    std::weak_ptr<const Registration> known;  // of `data`
    bool polled = false;                      // somebody reads the buffer while it is written
    transport::Ticket ticket = 0;
    SideBuffer side;              // of host memory: its encoded form
    std::byte* staged = nullptr;  // of device memory: the message, or its encoded form
    size_t staged_bytes = 0, side_bytes = 0;
    bool expanded = false;  // `data` is, or is to be; else `staged` holds the message
    std::shared_ptr<const device::MaskPlan> plan;  // that the kernels use
    [[nodiscard]] std::span<const std::byte> encoded() const {
      return {staged != nullptr ? staged : side.memory, side_bytes};
    }
  };

  int pump(const Request* wanted) override;
  [[nodiscard]] size_t slot_of(const Recv& r) const {
    return static_cast<size_t>(&r - recvs_.data());
  }
  bool find_room(Recv& recv);
  int finish(Recv& recv);
  void begin_decoding(Recv& recv);
  void free_encoded(Recv& recv);
  int reap_copies();
  int arrive(const Request* wanted);
  int decode(size_t* budget);

  std::array<Recv, kMaxRequests> recvs_;
  Fifo<Recv> posted_, encoded_;  // in the order of irecv()
  Fifo<Recv> copying_;           // to device memory, in the order of the lane's stream
  SideBuffer bounce_;            // for polled buffers
  MessageDecoder decoder_;       // uses masks that are registered here, too
  DeviceUnpacking unpacking_;
  bool decoding_ = false;
};

}  // namespace prunex::nccl
