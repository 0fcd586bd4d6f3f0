// SPDX-License-Identifier: Apache-2.0
#include "tools/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace prunex::tools {
namespace {

tl::unexpected<Error> cannot_write(const std::string& path) {
  const int error = errno;
  return fail(Code::system, "cannot write " + path + ": " + std::strerror(error), error);
}

Result<> write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) {
      return cannot_write(path);
    }
    text.remove_prefix(n > 0 ? static_cast<size_t>(n) : 0);
  }
  return {};
}

}  // namespace

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  if (path == "-") {
    return file;
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      errno = EISDIR;
      return cannot_write(path);
    }
    if (::access(path.c_str(), W_OK) != 0) {
      return cannot_write(path);
    }
    if (!S_ISREG(status.st_mode)) {  // a pipe, /dev/null: nothing to rename
      file.fd_.reset(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (!file.fd_) {
        return cannot_write(path);
      }
      return file;
    }
    char real[PATH_MAX];  // rename must replace the file, not a link to it
    if (::realpath(path.c_str(), real) != nullptr) {
      file.path_ = real;
    }
  }
  std::string temporary = file.path_ + strf(".tmp.%d", static_cast<int>(::getpid()));
  file.fd_.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.fd_) {
    return cannot_write(path);
  }
  file.temporary_ = std::move(temporary);
  return file;
}

Result<> OutputFile::commit(std::string_view text) {
  if (!fd_) {
    if (std::fflush(stdout) != 0) {
      return cannot_write("stdout");
    }
    return write_all(STDOUT_FILENO, text, "stdout");
  }
  if (const Result<> written = write_all(fd_.get(), text, path_); !written) {
    return written;
  }
  if (temporary_.empty()) {
    return {};
  }
  if (::fsync(fd_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return cannot_write(path_);
  }
  temporary_.clear();
  return {};
}

Result<> check_writable(const std::string& path) {
  const Result<OutputFile> file = OutputFile::open(path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  return {};
}

}  // namespace prunex::tools
