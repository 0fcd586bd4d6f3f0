// SPDX-License-Identifier: Apache-2.0
// Reads a shared library's file without mapping it: one that was cut short kills whoever does.
#pragma once
#include <elf.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "plugin/base/fd.h"
#include "plugin/base/result.h"

namespace prunex {

class ElfFile {
 public:
  // Code::invalid_argument: it is something else than a 64-bit ELF file.
  [[nodiscard]] static Result<ElfFile> open(const std::string& path);

  [[nodiscard]] const Elf64_Ehdr& header() const { return header_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] Result<std::vector<Elf64_Phdr>> segments() const {
    return table<Elf64_Phdr>(header_.e_phoff, uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr));
  }
  [[nodiscard]] Result<std::vector<Elf64_Shdr>> sections() const {
    return table<Elf64_Shdr>(header_.e_shoff, uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr));
  }

  // `bytes` of the file from `offset` on; an error where it ends before.
  template <class T>
  [[nodiscard]] Result<std::vector<T>> table(uint64_t offset, uint64_t bytes) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (offset > size_ || bytes > size_ - offset) {
      return truncated(end_of(offset, bytes));
    }
    std::vector<T> out(bytes / sizeof(T));
    if (auto r = read(out.data(), out.size() * sizeof(T), offset); !r) {
      return tl::unexpected<Error>(r.error());
    }
    return out;
  }
  // Code::unsupported, of all that ends too early.
  [[nodiscard]] tl::unexpected<Error> truncated(uint64_t needed) const;

  // The sum, or the largest number there is: what a broken header says may be anything.
  [[nodiscard]] static uint64_t end_of(uint64_t offset, uint64_t bytes) {
    return offset > UINT64_MAX - bytes ? UINT64_MAX : offset + bytes;
  }

 private:
  Result<> read(void* to, size_t bytes, uint64_t offset) const;

  Fd fd_;
  uint64_t size_ = 0;
  Elf64_Ehdr header_{};
};

// Every table and segment that its header names lies within the file. The error does not name the
// file.
[[nodiscard]] Result<> check_elf_complete(const std::string& path);

}  // namespace prunex
