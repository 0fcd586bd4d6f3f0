// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/elf_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace prunex {

Result<ElfFile> ElfFile::open(const std::string& path) {
  ElfFile out;
  out.fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!out.fd_ || ::fstat(out.fd_.get(), &status) != 0) {
    const int error = errno;
    return fail(Code::system, strf("cannot read it: %s", std::strerror(error)), error);
  }
  if (!S_ISREG(status.st_mode)) {  // a folder's size would pass for a truncated file's
    return fail(Code::invalid_argument, S_ISDIR(status.st_mode)
                                            ? "it is a folder: name the library file in it"
                                            : "it is no regular file");
  }
  out.size_ = static_cast<uint64_t>(status.st_size);
  if (out.size_ < sizeof out.header_) {
    return out.truncated(sizeof out.header_);
  }
  if (auto r = out.read(&out.header_, sizeof out.header_, 0); !r) {
    return tl::unexpected<Error>(r.error());
  }
  const Elf64_Ehdr& header = out.header_;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) ||
      (header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr))) {
    return fail(Code::invalid_argument, "it is no 64-bit ELF library");
  }
  return out;
}

tl::unexpected<Error> ElfFile::truncated(uint64_t needed) const {
  return fail(
      Code::unsupported,
      strf("library file truncated: it should hold at least %llu bytes, it has %llu; copy "
           "or install it again",
           static_cast<unsigned long long>(needed), static_cast<unsigned long long>(size_)));
}

Result<> ElfFile::read(void* to, size_t bytes, uint64_t offset) const {
  auto* const begin = static_cast<char*>(to);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(fd_.get(), begin + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno != EINTR) {
      const int error = errno;
      return fail(Code::system, strf("cannot read it: %s", std::strerror(error)), error);
    }
    if (n == 0) {  // it became shorter meanwhile
      return truncated(offset + bytes);
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return {};
}

Result<> check_elf_complete(const std::string& path) {
  const auto file = ElfFile::open(path);
  if (!file) {
    return tl::unexpected<Error>(file.error());
  }
  const auto segments = file->segments();
  if (!segments) {
    return tl::unexpected<Error>(segments.error());
  }
  const Elf64_Ehdr& header = file->header();
  uint64_t needed = ElfFile::end_of(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
  for (const Elf64_Phdr& segment : *segments) {
    needed = std::max(needed, ElfFile::end_of(segment.p_offset, segment.p_filesz));
  }
  return needed > file->size() ? Result<>(file->truncated(needed)) : Result<>();
}

}  // namespace prunex
