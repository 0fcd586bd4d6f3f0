// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/error.h"

#include <string>

namespace prunex::api {
namespace {

thread_local std::string last_error;

}  // namespace

prunex_result_t to_c(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return PRUNEX_ERROR_INVALID_ARGUMENT;
    case Code::invalid_handle:
      return PRUNEX_ERROR_INVALID_HANDLE;
    case Code::config:
      return PRUNEX_ERROR_CONFIG;
    case Code::mismatch:
      return PRUNEX_ERROR_MISMATCH;
    case Code::timeout:
      return PRUNEX_ERROR_TIMEOUT;
    case Code::peer_lost:
      return PRUNEX_ERROR_PEER_LOST;
    case Code::system:
      return PRUNEX_ERROR_SYSTEM;
    case Code::memory:
      return PRUNEX_ERROR_MEMORY;
    case Code::unsupported:
      return PRUNEX_ERROR_UNSUPPORTED;
    case Code::busy:
      return PRUNEX_ERROR_BUSY;
    case Code::internal:
      return PRUNEX_ERROR_INTERNAL;
  }
  return PRUNEX_ERROR_INTERNAL;
}

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
}

prunex_result_t report(const Error& error) noexcept {
  set_last_error(error.text.c_str());
  return to_c(error.code);
}

}  // namespace prunex::api

extern "C" {

const char* prunex_last_error(void) { return prunex::api::last_error.c_str(); }

int prunex_version(void) {
  return PRUNEX_VERSION_MAJOR * 10000 + PRUNEX_VERSION_MINOR * 100 + PRUNEX_VERSION_PATCH;
}

const char* prunex_result_string(prunex_result_t result) {
  switch (result) {
    case PRUNEX_SUCCESS:
      return "success";
    case PRUNEX_ERROR_INVALID_ARGUMENT:
      return "invalid argument";
    case PRUNEX_ERROR_INVALID_HANDLE:
      return "invalid handle";
    case PRUNEX_ERROR_CONFIG:
      return "invalid configuration";
    case PRUNEX_ERROR_MISMATCH:
      return "ranks disagree about the call";
    case PRUNEX_ERROR_TIMEOUT:
      return "timed out waiting for a rank";
    case PRUNEX_ERROR_PEER_LOST:
      return "a rank was lost";
    case PRUNEX_ERROR_SYSTEM:
      return "system error";
    case PRUNEX_ERROR_MEMORY:
      return "out of memory";
    case PRUNEX_ERROR_UNSUPPORTED:
      return "not supported";
    case PRUNEX_ERROR_BUSY:
      return "busy";
    case PRUNEX_ERROR_INTERNAL:
      return "internal error";
  }
  return "unknown result";
}
}
