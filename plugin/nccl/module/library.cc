// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/module/library.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>

namespace prunex::nccl::module_side {

constinit std::atomic<const InternalTable*> detail::checked_table{nullptr};

namespace {

constinit std::atomic<Logger> last_logger{nullptr};
constinit std::atomic<bool> told_misfit{false};

// Of the file that holds this address.
const char* file_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                    : "(unknown file)";
}

const char* own_file() { return file_of(&detail::checked_table); }

const char* library_file() {
  return file_of(reinterpret_cast<const void*>(&prunex_internal_table));
}

bool fits_us(const InternalTable* table) {
  return table != nullptr && table->bytes == sizeof(InternalTable) &&
         table->version == kTableVersion;
}

void tell_misfit(const InternalTable* table) {
  if (told_misfit.exchange(true)) {
    return;
  }
  char theirs[96] = "has no such table";
  if (table != nullptr) {  // these two fields have stood first since the first version
    std::snprintf(theirs, sizeof theirs, "has table version %u of %u bytes", table->version,
                  table->bytes);
  }
  PRUNEX_SAY(kLogWarn,
             "NET/PRUNEX : %s does not fit %s: the plugin was built for table version %u of %zu "
             "bytes, the library %s; install both files from one build",
             own_file(), library_file(), kTableVersion, sizeof(InternalTable), theirs);
}

}  // namespace

const InternalTable* detail::check_library() {
  const InternalTable* const table = prunex_internal_table(sizeof(InternalTable), kTableVersion);
  if (!fits_us(table)) {
    tell_misfit(table);
    return nullptr;
  }
  checked_table.store(table, std::memory_order_release);
  return table;
}

void remember_logger(Logger log) { last_logger.store(log, std::memory_order_release); }

Logger logger() { return last_logger.load(std::memory_order_acquire); }

void say(abi::LogLevel level, const char* file, int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (const Logger log = logger(); log != nullptr) {
    log(level, abi::kLogInit | abi::kLogNet, file, line, "%s", text);
  } else if (level == abi::kLogWarn) {
    std::fprintf(stderr, "PRUNEX WARN %s\n", text);
  }
}

void say_what_is_used(const char* kind, int version) {
  if (const InternalTable* const table = library()) {
    PRUNEX_SAY(kLogInfo, "NET/PRUNEX : %s_v%d of %s, libprunex %s of %s", kind, version, own_file(),
               table->release, table->file);
  }
}

}  // namespace prunex::nccl::module_side
