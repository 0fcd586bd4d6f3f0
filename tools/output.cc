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

#include "plugin/base/fd.h"

namespace prunex::tools {
namespace {

tl::unexpected<Error> cannot_write(const std::string& path, int error) {
  return fail(Code::system, "cannot write " + path + ": " + std::strerror(error), error);
}

Result<> write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) {
      return cannot_write(path, errno);
    }
    text.remove_prefix(n > 0 ? static_cast<size_t>(n) : 0);
  }
  return {};
}

// How to write to a path.
struct Target {
  std::string path;       // links resolved: rename must replace the file, not a link to it
  std::string temporary;  // empty: write to the path itself
};

Result<Target> target_of(const std::string& path) {
  Target target{path, {}};
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      return cannot_write(path, EISDIR);
    }
    if (::access(path.c_str(), W_OK) != 0) {
      return cannot_write(path, errno);
    }
    if (!S_ISREG(status.st_mode)) {
      return target;
    }
    char real[PATH_MAX];
    if (::realpath(path.c_str(), real) != nullptr) {
      target.path = real;
    }
  }
  target.temporary = target.path + strf(".tmp.%d", static_cast<int>(::getpid()));
  return target;
}

Fd create(const std::string& path) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

}  // namespace

Result<> check_writable(const std::string& path) {
  if (path == "-") {
    return {};
  }
  const Result<Target> target = target_of(path);
  if (!target) {
    return tl::unexpected(target.error());
  }
  if (!target->temporary.empty()) {
    if (!create(target->temporary)) {
      return cannot_write(path, errno);
    }
    ::unlink(target->temporary.c_str());
  }
  return {};
}

Result<> write_document(const std::string& path, std::string_view text) {
  if (path == "-") {
    return write_all(STDOUT_FILENO, text, "stdout");
  }
  const Result<Target> target = target_of(path);
  if (!target) {
    return tl::unexpected(target.error());
  }
  if (target->temporary.empty()) {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd ? write_all(fd.get(), text, path) : cannot_write(path, errno);
  }
  const Fd fd = create(target->temporary);
  if (!fd) {
    return cannot_write(path, errno);
  }
  Result<> written = write_all(fd.get(), text, path);
  if (written && ::rename(target->temporary.c_str(), target->path.c_str()) != 0) {
    written = cannot_write(path, errno);
  }
  if (!written) {
    ::unlink(target->temporary.c_str());
  }
  return written;
}

}  // namespace prunex::tools
