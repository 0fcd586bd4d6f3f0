// SPDX-License-Identifier: Apache-2.0
// What the socket transport asks of the kernel for one TCP stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/address.h"

namespace prunex::transport {

struct SocketOptions;

[[nodiscard]] SocketAddress peer_address(int fd);  // empty if the socket has none

// Prepares a connected socket for the data path: one of `streams` of its connection.
void tune_for_data(int fd, const SocketOptions& options, size_t streams);

// The kernel sends on the socket no faster than so many bytes per second, this end only. False: it
// cannot do that.
[[nodiscard]] bool pace(int fd, uint64_t bytes_per_s);

// What a broken connection's errno says about the other end.
[[nodiscard]] const char* cause_of(int error);

// For how long sent data have gone without any acknowledgement; 0: nothing is out, or all is well.
// A peer that acknowledges but does not read is well.
[[nodiscard]] double unanswered_s(int fd);

// Says that no more will be sent, and stays until what was is out, for at most kLingerS; after that
// the kernel goes on by itself. Closing at once would lose it when the peer still sends: input that
// nobody reads makes the kernel reset the connection.
inline constexpr double kLingerS = 1;
void close_gracefully(std::span<const int> fds);

}  // namespace prunex::transport
