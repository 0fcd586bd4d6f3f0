// SPDX-License-Identifier: Apache-2.0
#include "tools/library_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/elf_file.h"
#include "plugin/base/fd.h"
#include "plugin/nccl/abi/layout.h"

namespace prunex::tools {
namespace {

constexpr double kProbeSeconds = 20;
constexpr double kTrialSeconds = 60;  // a driver may have to wake a GPU or a NIC

// The folder above this program's: an installation's prefix, or the build tree.
std::string prefix() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  for (int up = 0; up < 2; ++up) {
    path.erase(std::min(path.rfind('/'), path.size()));
  }
  return path;
}

std::vector<std::string> own_folders() {
  const std::string installed = PRUNEX_LIBDIR;  // of this build, mostly relative to the prefix
  return {prefix() + "/plugin", installed.starts_with('/') ? installed : prefix() + "/" + installed,
          prefix() + "/lib", prefix() + "/lib64"};
}

std::vector<std::string> loader_path(const Environment& environment) {
  std::vector<std::string> out;
  const std::string paths = environment.lookup("LD_LIBRARY_PATH").value_or("");
  for (size_t begin = 0; begin < paths.size();) {
    const size_t end = std::min(paths.find(':', begin), paths.size());
    if (end > begin) {
      out.push_back(paths.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return out;
}

std::string canonical(const std::string& path) {
  char real[PATH_MAX];
  return ::realpath(path.c_str(), real) != nullptr ? std::string(real) : path;
}

// The last warning of an NCCL plugin, in the child.
char last_warning[512];

void keep_warning(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level == nccl::abi::kLogWarn) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_warning, sizeof last_warning, format, arguments);
    va_end(arguments);
  }
}

// Asks the plugin's network for its devices, as NCCL does first: "device …" each, or "error …".
std::string tell_devices(const nccl::abi::NetV12& net) {
  void* ctx = nullptr;
  int count = 0;
  if (net.init(&ctx, 0, nullptr, keep_warning, nullptr) != nccl::kSuccess ||
      net.devices(&count) != nccl::kSuccess) {
    return std::string("error its network cannot be used: ") + last_warning + "\n";
  }
  std::string text;
  for (int device = 0; device < count; ++device) {
    nccl::abi::PropertiesV12 properties{};
    if (net.get_properties(device, &properties) == nccl::kSuccess) {
      text += std::string("device ") + properties.name + "\n";
    }
  }
  return text;
}

// In the child: one line each, "path …", "error …", "version …", "symbol …", "device …".
std::string load_and_tell(const std::string& what, const std::vector<std::string>& symbols) {
  void* const handle = ::dlopen(what.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return std::string("error ") + ::dlerror() + "\n";
  }
  std::string text;
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0') {
    text += "path " + canonical(map->l_name) + "\n";
  }
  if (void* const version = ::dlsym(handle, "prunex_version"); version != nullptr) {
    text += strf("version %d\n", reinterpret_cast<int (*)()>(version)());
  }
  for (const std::string& symbol : symbols) {
    if (::dlsym(handle, symbol.c_str()) != nullptr) {
      text += "symbol " + symbol + "\n";
    }
  }
  if (void* const net = ::dlsym(handle, "ncclNetPlugin_v12"); net != nullptr) {
    text += tell_devices(*static_cast<const nccl::abi::NetV12*>(net));
  }
  return text;
}

// Everything the child writes, until it ends or the deadline passes.
std::string read_all(int fd, const Deadline& deadline) {
  std::string text;
  char buffer[4096];
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(deadline.left_ns() / 1'000'000)) <= 0) {
      return text;
    }
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) {
      return text;
    }
    text.append(buffer, static_cast<size_t>(n));
  }
}

void understand(const std::string& text, LibraryState& state) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::string value = line.substr(std::min(line.find(' ') + 1, line.size()));
    if (line.starts_with("path ")) {
      state.path = value;
    } else if (line.starts_with("error ")) {
      state.problem = value;
    } else if (line.starts_with("version ")) {
      state.version = std::atoi(value.c_str());
    } else if (line.starts_with("symbol ")) {
      state.symbols.push_back(value);
    } else if (line.starts_with("device ")) {
      state.devices.push_back(value);
    }
    begin = end + 1;
  }
}

struct Said {
  std::string text;     // empty: it came to no end
  std::string problem;  // then: why
};

// What `tell` says in a child process. `doing` names it in `problem`.
template <class Tell>
Said in_child(const std::string& doing, double seconds, Tell tell) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {{}, std::string("cannot try it: ") + std::strerror(errno)};
  }
  const Fd from(ends[0]);
  Fd to(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string text = tell();
    [[maybe_unused]] const ssize_t written = ::write(to.get(), text.data(), text.size());
    ::_exit(0);
  }
  to.reset();
  if (pid < 0) {
    return {{}, std::string("cannot try it: ") + std::strerror(errno)};
  }
  const Deadline deadline = Deadline::after(seconds);
  Said said{read_all(from.get(), deadline), {}};
  const bool late = said.text.empty() && deadline.passed();
  ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (said.text.empty()) {
    said.problem = late ? strf("%s has no end within %.0f s", doing.c_str(), seconds)
                   : WIFSIGNALED(status)
                       ? strf(
                             "%s ends the process with signal %d (%s): its file may be "
                             "broken, install it again",
                             doing.c_str(), WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                       : doing + " says nothing";
  }
  return said;
}

void load_in_child(const std::string& what, const std::vector<std::string>& symbols,
                   LibraryState& state) {
  const Said said =
      in_child("loading it", kProbeSeconds, [&] { return load_and_tell(what, symbols); });
  understand(said.text, state);
  if (said.text.empty()) {
    state.problem = said.problem;
  }
}

}  // namespace

LibraryState probe_file(const std::string& path, const std::vector<std::string>& symbols) {
  LibraryState state;
  state.tried.push_back(path);
  state.path = canonical(path);
  if (const Result<> complete = check_elf_complete(state.path); !complete) {
    state.problem = complete.error().text;
  } else {
    load_in_child(state.path, symbols, state);
  }
  return state;
}

LibraryState probe_library(const std::string& name, const std::vector<std::string>& symbols,
                           const Environment& environment, SearchOrder order) {
  std::vector<std::string> folders = own_folders();
  const std::vector<std::string> path = loader_path(environment);
  folders.insert(order == SearchOrder::own_first ? folders.end() : folders.begin(), path.begin(),
                 path.end());
  std::vector<std::string> tried;
  for (const std::string& folder : folders) {
    tried.push_back(folder + "/" + name);
    if (::access(tried.back().c_str(), F_OK) == 0) {
      LibraryState state = probe_file(tried.back(), symbols);
      state.tried = std::move(tried);
      return state;
    }
  }
  LibraryState state;
  state.tried = std::move(tried);
  state.tried.push_back("the loader's folders");
  load_in_child(name, symbols, state);
  if (state.path.empty() && state.problem.empty()) {
    state.problem = "the loader does not say where it found it";
  }
  return state;
}

std::string beside_this_program(const std::string& name) {
  for (const std::string& folder : own_folders()) {
    const std::string candidate = folder + "/" + name;
    if (::access(candidate.c_str(), F_OK) == 0) {
      return canonical(candidate);
    }
  }
  return {};
}

std::string trial(const std::string& doing, const std::function<void()>& what) {
  return in_child(doing, kTrialSeconds,
                  [&] {
                    const int nowhere = ::open("/dev/null", O_WRONLY);
                    (void)::dup2(nowhere, STDERR_FILENO);  // it will be said once more
                    what();
                    return std::string("done");
                  })
      .problem;
}

}  // namespace prunex::tools
