// SPDX-License-Identifier: Apache-2.0
// libibverbs as data: filled at run time from the library, or by a fake in tests. Nothing here is
// linked against it. Posting and polling need no entry: they go through context->ops.
#pragma once
#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "plugin/base/result.h"

namespace prunex::transport::verbs {

// Every libibverbs has these (rdma-core of 2017 and before).
#define PRUNEX_VERBS_NEEDED(X)                                                                    \
  X(get_device_list)                                                                              \
  X(free_device_list)                                                                             \
  X(get_device_name)                                                                              \
  X(open_device)                                                                                  \
  X(close_device)                                                                                 \
  X(query_device)                                                                                 \
  X(query_gid)                                                                                    \
  X(query_pkey)                                                                                   \
  X(alloc_pd)                                                                                     \
  X(dealloc_pd)                                                                                   \
  X(reg_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(destroy_cq) \
      X(get_cq_event) X(ack_cq_events) X(create_qp) X(modify_qp) X(destroy_qp) X(get_async_event) \
          X(ack_async_event) X(wc_status_str)

struct Api {
#define PRUNEX_VERBS_MEMBER(name) decltype(&::ibv_##name) name = nullptr;
  PRUNEX_VERBS_NEEDED(PRUNEX_VERBS_MEMBER)
#undef PRUNEX_VERBS_MEMBER
  // The exported function fills the older, shorter structure; port_of() calls it as it must be.
  int (*query_port)(ibv_context*, uint8_t, _compat_ibv_port_attr*) = nullptr;

  // Newer or optional ones: nullptr where the library has none.
  decltype(&::_ibv_query_gid_ex) query_gid_ex = nullptr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;
  decltype(&::ibv_fork_init) fork_init = nullptr;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;  // takes optional access flags
};

// The library's functions, looked up once per process; it stays loaded. Fails with the dynamic
// linker's own words.
[[nodiscard]] Result<const Api*> load_api();
// From another file; for tests and for load_api().
[[nodiscard]] Result<Api> open_library(const std::string& library);

// 0 or an errno.
[[nodiscard]] int port_of(const Api& api, ibv_context* context, uint8_t port, ibv_port_attr* out);

}  // namespace prunex::transport::verbs
