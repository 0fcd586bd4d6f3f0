// SPDX-License-Identifier: Apache-2.0
#include "tools/net_builtin.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <vector>

#include "plugin/base/elf_file.h"

namespace prunex::tools {
namespace {

tl::unexpected<Error> broken(const std::string& path, const Error& why) {
  return fail(why.code, path + ": " + why.text);
}

bool is_name(const std::vector<char>& names, size_t at, const std::string& name) {
  return at < names.size() && names.size() - at > name.size() &&
         std::memcmp(names.data() + at, name.c_str(), name.size() + 1) == 0;
}

// As NCCL's releases typedef ncclNet_t; its own networks always have the newest table.
int table_of_release(int release) {
  struct Range {
    int first, api;
  };
  constexpr Range kRanges[] = {{23100, 0}, {23000, 12}, {22800, 11}, {22600, 10},
                               {22400, 9}, {22000, 8},  {21900, 7}};
  for (const Range& range : kRanges) {
    if (release >= range.first) {
      return range.api;
    }
  }
  return 0;
}

}  // namespace

Result<size_t> local_symbol(const std::string& path, const std::string& name) {
  const auto file = ElfFile::open(path);
  const auto sections = file ? file->sections() : tl::unexpected<Error>(file.error());
  if (!sections) {
    return broken(path, sections.error());
  }
  for (const Elf64_Shdr& section : *sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections->size()) {
      continue;
    }
    const Elf64_Shdr& strings = (*sections)[section.sh_link];
    const auto symbols = file->table<Elf64_Sym>(section.sh_offset, section.sh_size);
    const auto names = file->table<char>(strings.sh_offset, strings.sh_size);
    if (!symbols || !names) {
      return broken(path, symbols ? names.error() : symbols.error());
    }
    for (const Elf64_Sym& symbol : *symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_shndx != SHN_UNDEF &&
          is_name(*names, symbol.st_name, name)) {
        return static_cast<size_t>(symbol.st_value);
      }
    }
  }
  return fail(Code::unsupported,
              strf("%s lists no symbol %s: the file was stripped, or is not libnccl; NVIDIA's "
                   "packages (nvidia-nccl-cu13 on PyPI) have it",
                   path.c_str(), name.c_str()));
}

Result<BuiltinNet> find_builtin(void* library, const std::string& path,
                                const std::string& network) {
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  int release = 0;
  if (get_version == nullptr || get_version(&release) != 0) {
    return fail(Code::unsupported,
                strf("--network %s is inside NCCL: %s has no ncclGetVersion, give --plugin the "
                     "path of libnccl.so.2",
                     network.c_str(), path.c_str()));
  }
  BuiltinNet out;
  out.api = table_of_release(release);
  if (out.api == 0) {
    return fail(Code::unsupported, strf("%s is NCCL %d; the tables of its own networks are known "
                                        "here for NCCL 2.19 to 2.30",
                                        path.c_str(), release));
  }
  struct link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
    return fail(Code::system, strf("dlinfo of %s: %s", path.c_str(), ::dlerror()));
  }
  const auto at = local_symbol(map->l_name, network == "IB" ? "ncclNetIb" : "ncclNetSocket");
  if (!at) {
    return tl::unexpected(at.error());
  }
  // The file may have been replaced since it was loaded: a table starts with its network's name.
  const char* const memory = reinterpret_cast<const char*>(map->l_addr) + *at;
  Dl_info info{};
  if (::dladdr(memory, &info) == 0 || info.dli_fbase != reinterpret_cast<void*>(map->l_addr)) {
    return fail(Code::unsupported,
                strf("%s: %s changed after it was loaded", network.c_str(), map->l_name));
  }
  out.table = memory;
  return out;
}

}  // namespace prunex::tools
