// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "plugin/base/fd.h"

namespace prunex::transport::shm {
namespace {

constexpr std::string_view kPrefix = "/dev/shm/prunex-";
constexpr size_t kNameDigits = 32;

tl::unexpected<Error> no_room(size_t bytes, int fd, int err) {
  struct statvfs s {};
  const unsigned long long free_bytes =
      fstatvfs(fd, &s) == 0 ? static_cast<unsigned long long>(s.f_bavail) * s.f_frsize : 0;
  return fail(
      Code::memory,
      strf("cannot reserve %zu bytes of shared memory: /dev/shm has %llu bytes free; enlarge "
           "it (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm) or remove "
           "files left there",
           bytes, free_bytes),
      err);
}

tl::unexpected<Error> no_descriptor(const char* what, const std::string& name, int err) {
  return fail(
      Code::system,
      strf("cannot %s shared memory %s: %s; the limit of open files is set with 'ulimit -n'", what,
           name.c_str(), strerror(err)),
      err);
}

Result<std::byte*> map(int fd, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    const int err = errno;
    return fail(
        Code::memory,
        strf("cannot map %zu bytes of shared memory: %s; see ulimit -v", bytes, strerror(err)),
        err);
  }
  return static_cast<std::byte*>(p);
}

}  // namespace

Result<std::string> random_name() {
  uint8_t bytes[kNameDigits / 2];
  // At most 256 bytes are never cut short once the kernel's pool is ready.
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return fail(Code::system, strf("getrandom failed: %s", strerror(errno)), errno);
  }
  std::string name(kPrefix);
  for (const uint8_t b : bytes) {
    constexpr char kHex[] = "0123456789abcdef";
    name += kHex[b >> 4];
    name += kHex[b & 15];
  }
  return name;
}

bool is_valid_name(std::string_view name) {
  return name.size() == kPrefix.size() + kNameDigits && name.substr(0, kPrefix.size()) == kPrefix &&
         name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

Result<Segment> Segment::create(size_t bytes) {
  if (bytes == 0 || bytes > static_cast<size_t>(std::numeric_limits<off_t>::max())) {
    return fail(Code::invalid_argument, strf("a shared segment cannot have %zu bytes", bytes));
  }
  auto name = random_name();
  if (!name) {
    return tl::unexpected<Error>(name.error());
  }
  const Fd fd(::open(name->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) {
    const int err = errno;
    if (err == EMFILE || err == ENFILE) {
      return no_descriptor("create", *name, err);
    }
    return fail(Code::system,
                strf("cannot create shared memory %s: %s; /dev/shm must be a writable tmpfs",
                     name->c_str(), strerror(err)),
                err);
  }
  int err = 0;
  do {
    err = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (err == EINTR);
  if (err != 0) {
    auto error =
        err == ENOSPC || err == ENOMEM || err == EFBIG
            ? no_room(bytes, fd.get(), err)
            : fail(Code::system,
                   strf("cannot reserve %zu bytes in %s: %s", bytes, name->c_str(), strerror(err)),
                   err);
    ::unlink(name->c_str());
    return error;
  }
  auto data = map(fd.get(), bytes);
  if (!data) {
    ::unlink(name->c_str());
    return tl::unexpected<Error>(data.error());
  }
  return Segment(*data, bytes, *std::move(name), true);
}

Result<Segment> Segment::attach(std::string_view name, size_t bytes) {
  if (bytes == 0 || !is_valid_name(name)) {
    return fail(Code::invalid_argument,
                strf("'%.*s' (%zu bytes) is not the name of a shared segment of this library",
                     static_cast<int>(name.size() < 100 ? name.size() : 100), name.data(), bytes));
  }
  std::string path(name);
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) {
    const int err = errno;
    if (err == EMFILE || err == ENFILE) {
      return no_descriptor("open", path, err);
    }
    return fail(Code::system,
                strf("cannot open shared memory %s: %s; its creator may have ended, or the two "
                     "processes do not share /dev/shm (containers need --ipc=host or one pod)",
                     path.c_str(), strerror(err)),
                err);
  }
  struct stat s {};
  if (fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid()) {
    return fail(Code::system, strf("shared memory %s is not a regular file of user %u",
                                   path.c_str(), static_cast<unsigned>(geteuid())));
  }
  if (s.st_size < 0 || static_cast<size_t>(s.st_size) < bytes) {
    return fail(Code::mismatch, strf("shared memory %s has %lld bytes, expected at least %zu",
                                     path.c_str(), static_cast<long long>(s.st_size), bytes));
  }
  auto data = map(fd.get(), bytes);
  if (!data) {
    return tl::unexpected<Error>(data.error());
  }
  return Segment(*data, bytes, std::move(path), false);
}

void Segment::unlink() {
  if (!name_.empty()) {
    ::unlink(name_.c_str());
    owns_name_ = false;
  }
}

void Segment::release() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
    data_ = nullptr;
  }
  if (owns_name_) {
    unlink();
  }
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      name_(std::move(other.name_)),
      owns_name_(std::exchange(other.owns_name_, false)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    name_ = std::move(other.name_);
    owns_name_ = std::exchange(other.owns_name_, false);
  }
  return *this;
}

Segment::~Segment() { release(); }

}  // namespace prunex::transport::shm
