// SPDX-License-Identifier: Apache-2.0
#include "topology/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "plugin/base/fd.h"

namespace prunex::topo {
namespace {

constexpr size_t kLineLimit = 65536;

struct CloseDir {
  void operator()(DIR* dir) const { closedir(dir); }
};

struct Free {
  void operator()(char* text) const { std::free(text); }
};

tl::unexpected<Error> refused(const std::string& path) {
  const int error = errno;
  return fail(Code::system, "cannot read '" + path + "': " + std::strerror(error), error);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// As people count: mlx5_2 before mlx5_10.
bool counts_before(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const size_t i_end = std::min(a.find_first_not_of("0123456789", i), a.size());
      const size_t j_end = std::min(b.find_first_not_of("0123456789", j), b.size());
      const unsigned long long x = std::strtoull(a.c_str() + i, nullptr, 10);
      const unsigned long long y = std::strtoull(b.c_str() + j, nullptr, 10);
      if (x != y) {
        return x < y;
      }
      i = i_end;
      j = j_end;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

}  // namespace

Result<std::string> read_file(const std::string& path, size_t limit) {
  // Non-blocking: a path that turns out to be a FIFO must not hang us.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    return refused(path);
  }
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return refused(path);
    }
    if (n == 0) {
      return text;
    }
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > limit) {
      return fail(Code::unsupported, strf("'%s' is larger than %zu bytes", path.c_str(), limit));
    }
  }
}

std::optional<std::string> read_line(const std::string& path) {
  auto text = read_file(path, kLineLimit);
  if (!text) {
    return std::nullopt;
  }
  text->resize(std::min(text->find('\n'), text->size()));
  return std::move(*text);
}

std::optional<long long> read_integer(const std::string& path) {
  const auto line = read_line(path);
  if (!line || line->empty()) {
    return std::nullopt;
  }
  errno = 0;
  char* end = nullptr;
  const long long value = std::strtoll(line->c_str(), &end, 0);
  if (errno != 0 || *end != '\0') {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, CloseDir> dir(opendir(path.c_str()));
  if (!dir) {
    return names;
  }
  while (const dirent* entry = readdir(dir.get())) {
    if (entry->d_name[0] != '.') {
      names.emplace_back(entry->d_name);
    }
  }
  std::sort(names.begin(), names.end(), counts_before);
  return names;
}

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, Free> real(::realpath(path.c_str(), nullptr));
  return real ? std::string(real.get()) : std::string();
}

}  // namespace prunex::topo
