// SPDX-License-Identifier: Apache-2.0
// What libibverbs and the kernel say of devices and their ports.
#pragma once
#include <functional>
#include <vector>

#include "plugin/transport/verbs/api.h"
#include "plugin/transport/verbs/devices.h"

namespace prunex::transport::verbs {

[[nodiscard]] Result<std::vector<PortInfo>> list_ports(const Api& api);
// An error where the devices cannot be listed.
[[nodiscard]] Result<> for_each_device(const Api& api,
                                       const std::function<void(ibv_device*)>& visit);

// The tables of the opened port `out` names, of so many entries.
void read_gids(const Api& api, ibv_context* context, int entries, PortInfo* out);
void read_pkeys(const Api& api, ibv_context* context, int entries, PortInfo* out);
[[nodiscard]] int mtu_bytes(ibv_mtu mtu);

}  // namespace prunex::transport::verbs
