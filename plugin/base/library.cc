// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <memory>
#include <new>

#include "plugin/base/elf_file.h"

namespace prunex {
namespace {

// The folders where the loader looks for what this code opens, in its order. Its cache and its
// subfolders for special processors are not among them: what is only there goes unchecked.
std::string find(const std::string& name) {
  Dl_info own{};
  void* map = nullptr;
  Dl_serinfo size{};
  if (::dladdr1(reinterpret_cast<const void*>(&open_shared), &own, &map, RTLD_DL_LINKMAP) == 0 ||
      ::dlinfo(map, RTLD_DI_SERINFOSIZE, &size) != 0) {
    return {};
  }
  const std::unique_ptr<void, void (*)(void*)> memory(::operator new(size.dls_size),
                                                      [](void* p) { ::operator delete(p); });
  auto* const list = new (memory.get()) Dl_serinfo(size);
  if (::dlinfo(map, RTLD_DI_SERINFO, list) != 0) {
    return {};
  }
  const Dl_serpath* const folders = list->dls_serpath;
  for (unsigned i = 0; i < list->dls_cnt; ++i) {
    std::string file = std::string(folders[i].dls_name) + "/" + name;
    if (::access(file.c_str(), F_OK) == 0) {
      return file;
    }
  }
  return {};
}

}  // namespace

Result<void*> open_shared(const std::string& library, int flags) {
  flags |= RTLD_NOW | RTLD_LOCAL;
  if (void* const loaded = ::dlopen(library.c_str(), flags | RTLD_NOLOAD); loaded != nullptr) {
    return loaded;
  }
  const std::string file = library.find('/') != std::string::npos ? library : find(library);
  if (!file.empty()) {
    const auto whole = check_elf_complete(file);
    if (!whole && whole.error().code == Code::unsupported) {
      return fail(Code::unsupported, file + ": " + whole.error().text);
    }
  }
  (void)::dlerror();
  if (void* const opened = ::dlopen(library.c_str(), flags); opened != nullptr) {
    return opened;
  }
  const char* const why = ::dlerror();
  return fail(Code::unsupported, why != nullptr ? why : library + " cannot be opened");
}

}  // namespace prunex
