// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/cuda_library.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>
#include <vector>

#include "plugin/base/library.h"
#include "plugin/base/log.h"
#include "plugin/device/release.h"

namespace prunex::device {
namespace {

constexpr int kOldestDriver = 11000;  // 1000 * major + 10 * minor
constexpr int kMemoryType = 2;        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kMemoryDevice = 2;

std::string version_text(int version) { return strf("%d.%d", version / 1000, version % 1000 / 10); }

const char* linker_error() {
  const char* why = ::dlerror();
  return why != nullptr ? why : "unknown error of the dynamic linker";
}

std::string file_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                    : "(unknown file)";
}

std::string own_file() { return file_of(reinterpret_cast<const void*>(&open_cuda)); }

std::string folder_of(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

template <class F>
F look_up(void* library, const char* name) {
  return reinterpret_cast<F>(::dlsym(library, name));
}

Result<int> driver_version(const std::string& file) {
  const auto driver = open_shared(file);
  if (!driver) {
    return fail(Code::unsupported, "no CUDA driver: " + driver.error().text);
  }
  const auto get = look_up<int (*)(int*)>(*driver, "cuDriverGetVersion");
  int version = 0;
  if (get == nullptr || get(&version) != 0) {
    return fail(Code::unsupported, strf("%s does not say its version", file.c_str()));
  }
  if (version < kOldestDriver) {
    return fail(Code::unsupported,
                strf("the CUDA driver %s serves CUDA %s; at least %s is needed", file.c_str(),
                     version_text(version).c_str(), version_text(kOldestDriver).c_str()));
  }
  return version;
}

void* open_library(const std::string& asked, const std::string& owner, std::string* why) {
  constexpr const char* kName = "libprunex-cuda.so";
  std::vector<std::string> files = {asked};
  if (asked.empty()) {
    // One that this process has opened itself comes first.
    if (void* const open = ::dlopen(kName, RTLD_NOW | RTLD_NOLOAD); open != nullptr) {
      return open;
    }
    files = {folder_of(owner) + kName, kName};
  }
  for (const std::string& file : files) {
    auto library = open_shared(file);
    if (library) {
      return *library;
    }
    *why = std::move(library.error().text);
  }
  return nullptr;
}

Result<> check_table(const cuda::Table* table, const std::string& file, const std::string& owner) {
  if (table == nullptr || table->bytes != sizeof(cuda::Table) ||
      table->version != cuda::kTableVersion) {
    const std::string theirs =
        table == nullptr ? std::string("has no such table")
                         : strf("has table version %u of %u bytes", table->version, table->bytes);
    return fail(Code::unsupported,
                strf("%s does not fit %s: the latter was built for table version %u of %zu bytes, "
                     "the former %s; install both files from one build",
                     file.c_str(), owner.c_str(), cuda::kTableVersion, sizeof(cuda::Table),
                     theirs.c_str()));
  }
  return {};
}

}  // namespace

const char* release_of(const cuda::Table& table) {
  return table.release != nullptr ? table.release : "(unknown)";
}

bool same_release(const cuda::Table& table) {
  return std::strcmp(release_of(table), release()) == 0;
}

Result<const cuda::Table*> open_cuda(const CudaFiles& files) {
  auto driver = driver_version(files.driver);
  if (!driver) {
    return tl::unexpected(driver.error());
  }
  const std::string owner = files.owner.empty() ? own_file() : files.owner;
  std::string why;
  void* const library = open_library(files.library, owner, &why);
  if (library == nullptr) {
    return fail(Code::unsupported, strf("device memory needs libprunex-cuda.so beside %s: %s",
                                        owner.c_str(), why.c_str()));
  }
  const auto entry =
      look_up<decltype(&prunex_cuda_table)>(library, "prunex_cuda_table");  // it stays open
  if (entry == nullptr) {
    return fail(Code::unsupported, strf("not a library of ours: %s", linker_error()));
  }
  const std::string file = file_of(reinterpret_cast<const void*>(entry));
  const cuda::Table* const table = entry(sizeof(cuda::Table), cuda::kTableVersion);
  if (auto fits = check_table(table, file, owner); !fits) {
    return tl::unexpected(fits.error());
  }
  cuda::Probe probe;
  (void)table->probe(&probe);
  if (probe.runtime / 1000 > *driver / 1000) {
    return fail(Code::unsupported,
                strf("%s was built with CUDA %s, the driver %s serves %s: update the driver, or "
                     "install a build for that CUDA",
                     file.c_str(), version_text(probe.runtime).c_str(), files.driver.c_str(),
                     version_text(*driver).c_str()));
  }
  if (probe.devices == 0) {
    return fail(Code::unsupported,
                strf("%s finds no GPU: %s", file.c_str(), table->error_text(probe.status)));
  }
  if (!same_release(*table)) {
    PRUNEX_LOG(warn, "%s is of release %s, %s of %s: install both files from one build",
               file.c_str(), release_of(*table), owner.c_str(), release());
  }
  return table;
}

bool driver_present() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver != nullptr) {
    ::dlclose(driver);
  }
  return driver != nullptr;
}

bool driver_says_device(const void* p) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    return false;
  }
  const auto get =
      look_up<int (*)(void*, int, unsigned long long)>(driver, "cuPointerGetAttribute");
  unsigned type = 0;
  const bool device = get != nullptr &&
                      get(&type, kMemoryType, reinterpret_cast<unsigned long long>(p)) == 0 &&
                      type == kMemoryDevice;
  ::dlclose(driver);
  return device;
}

}  // namespace prunex::device
