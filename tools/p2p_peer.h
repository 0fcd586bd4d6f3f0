// SPDX-License-Identifier: Apache-2.0
// How the two ends of `prunex bench p2p` speak with each other beside the network that they
// measure: one TCP connection, messages one by one. Both ends must be of one version.
#pragma once
#include <cstdint>
#include <string>

#include "plugin/base/address.h"
#include "plugin/base/fd.h"
#include "plugin/base/result.h"

namespace prunex::tools {

inline constexpr uint32_t kP2pProtocol = 3;
inline constexpr double kP2pHelloSeconds = 3;  // from a connection to its hello

struct P2pHello {
  uint32_t protocol = kP2pProtocol;
  std::string release;  // "0.1.0"
};
[[nodiscard]] std::string encode(const P2pHello& hello);
// What is no hello is a mismatch; the text says what came instead.
[[nodiscard]] Result<P2pHello> decode_p2p_hello(std::string_view bytes);
[[nodiscard]] P2pHello own_p2p_hello();
[[nodiscard]] Result<> compare(const P2pHello& mine, const P2pHello& theirs);

class P2pPeer {
 public:
  // Rank 0 listens at the root, rank 1 comes there. They exchange hellos; whoever connects and
  // speaks something else is a failure on both ends.
  // timeout_s: for that, and for how long the other end may stand still afterwards.
  [[nodiscard]] static Result<P2pPeer> meet(int rank, const std::string& root, double timeout_s);

  // Both ends call this; each gets what the other gave.
  [[nodiscard]] Result<std::string> exchange(std::string_view mine, double timeout_s = 60);
  [[nodiscard]] Result<> barrier(double timeout_s = 60);
  [[nodiscard]] bool gone() const;                                       // the other end has closed
  [[nodiscard]] const std::string& release() const { return release_; }  // of the other end
  [[nodiscard]] double patience_s() const { return patience_s_; }

 private:
  explicit P2pPeer(Fd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] Result<> greet();

  Fd fd_;
  std::string release_;
  double patience_s_ = 0;
};

}  // namespace prunex::tools
