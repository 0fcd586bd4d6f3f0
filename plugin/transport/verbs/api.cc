// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/api.h"

#include <dlfcn.h>

#include <type_traits>

#include "plugin/base/library.h"

namespace prunex::transport::verbs {

Result<Api> open_library(const std::string& library) {
  const auto opened = open_shared(library);
  if (!opened) {
    return fail(Code::unsupported, "RDMA is not used: " + opened.error().text);
  }
  void* const handle = *opened;
  Api api;
  std::string missing;
  const auto look_up = [&](auto& function, const char* name, bool needed) {
    (void)dlerror();
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && needed && missing.empty()) {
      const char* why = dlerror();
      missing = why != nullptr ? why : name;
    }
  };
#define PRUNEX_VERBS_LOOK_UP(name) look_up(api.name, "ibv_" #name, true);
  PRUNEX_VERBS_NEEDED(PRUNEX_VERBS_LOOK_UP)
#undef PRUNEX_VERBS_LOOK_UP
  look_up(api.query_port, "ibv_query_port", true);
  look_up(api.query_gid_ex, "_ibv_query_gid_ex", false);
  look_up(api.reg_dmabuf_mr, "ibv_reg_dmabuf_mr", false);
  look_up(api.reg_mr_iova2, "ibv_reg_mr_iova2", false);
  look_up(api.fork_init, "ibv_fork_init", false);
  if (!missing.empty()) {
    dlclose(handle);
    return fail(Code::unsupported, strf("RDMA is not used: %s lacks a function: %s",
                                        library.c_str(), missing.c_str()));
  }
  // Training processes fork (data loaders). On kernels that do not copy registered pages for the
  // child at once (before 5.12), the device would go on with pages that only the child has. Before
  // anything is registered; a library that did so already keeps what it chose.
  if (api.fork_init != nullptr) {
    (void)api.fork_init();
  }
  return api;  // it stays open: its providers may leave threads and handlers behind
}

Result<const Api*> load_api() {
  static const Result<Api> loaded = open_library("libibverbs.so.1");
  if (!loaded) {
    return tl::unexpected<Error>(loaded.error());
  }
  return &*loaded;
}

int port_of(const Api& api, ibv_context* context, uint8_t port, ibv_port_attr* out) {
  *out = {};
  verbs_context* extended = verbs_get_ctx_op(context, query_port);
  if (extended != nullptr) {
    return extended->query_port(context, port, out, sizeof *out);
  }
  return api.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(out));
}

}  // namespace prunex::transport::verbs
