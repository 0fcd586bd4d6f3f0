// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/board.h"

#include <sys/mman.h>

#include <cerrno>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {

Result<std::unique_ptr<Board>> Board::open(Memory::Devices devices) {
  void* base =
      ::mmap(nullptr, kBoardBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return fail(Code::memory,
                strf("no %zu bytes for a connection: %s", kBoardBytes, errno_text(errno).c_str()),
                errno);
  }
  std::unique_ptr<Board> board(new Board(static_cast<std::byte*>(base)));
  auto memory = Memory::open(devices, base, kBoardBytes, Order::strict);
  if (!memory) {
    return tl::unexpected<Error>(memory.error());
  }
  board->memory_ = *std::move(memory);
  return board;
}

Board::~Board() {
  memory_.reset();
  ::munmap(base_, kBoardBytes);
}

}  // namespace prunex::transport::verbs
