// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/connect.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/transport/choose.h"

namespace prunex::nccl::coll {
namespace {

constexpr double kLongestConnectS = 30;  // NCCL's service thread stands still meanwhile

}  // namespace

Result<CollHandle> decode_handle(std::span<const std::byte> bytes) {
  auto inner = read_handle(bytes, HandleFor::coll);
  if (!inner) {
    return tl::unexpected(inner.error());
  }
  CollHandle out;
  out.transport = *std::move(inner);
  auto address = transport::meeting_address(out.transport);
  if (!address) {
    return tl::unexpected(address.error());
  }
  out.address = to_text(*address);
  return out;
}

Result<std::unique_ptr<CollComm>> connect(std::span<const void* const> handles, size_t self,
                                          ListenComm& listener) {
  const Config& config = listener.context->settings->config;
  const double limit = std::min(config.timeout_s, kLongestConnectS);
  const Deadline deadline = Deadline::after(limit);
  CollComm::Setup setup;
  setup.config = config;
  setup.stats = listener.context->stats;
  setup.self = self;
  setup.transport = listener.transport;
  std::vector<int> nodes;
  std::vector<std::string> inner;
  for (size_t n = 0; n < handles.size(); ++n) {
    auto handle =
        handles[n] == nullptr
            ? Result<CollHandle>(fail(Code::invalid_argument, "its handle is NULL"))
            : decode_handle(std::span(static_cast<const std::byte*>(handles[n]), kHandleBytes));
    if (!handle) {
      return fail(handle.error().code,
                  strf("CollNet connect: node %zu of %zu: %s", n, handles.size(),
                       handle.error().text.c_str()),
                  0, static_cast<int>(n));
    }
    nodes.push_back(static_cast<int>(n));
    inner.push_back(std::move(handle->transport));
    setup.addresses.push_back(std::move(handle->address));
  }
  if (handles.size() > 1) {
    auto links = collective::LeaderLinks::connect(*setup.transport, *listener.listener, self, nodes,
                                                  inner, deadline);
    if (!links) {
      Error e = links.error();
      const bool named = e.rank >= 0 && static_cast<size_t>(e.rank) < handles.size();
      const std::string who = named ? strf(" waits for node %d (%s)", e.rank,
                                           setup.addresses[static_cast<size_t>(e.rank)].c_str())
                                    : std::string();
      e.text = strf("CollNet connect of %zu nodes: node %zu%s: %s (it gives up after %g s)",
                    handles.size(), self, who.c_str(), e.text.c_str(), limit);
      return tl::unexpected(std::move(e));
    }
    setup.links = std::move(*links);
  }
  PRUNEX_LOG(info, "CollNet: node %zu of %zu (%s) is connected with all others", self,
             handles.size(), setup.addresses[self].c_str());
  return std::make_unique<CollComm>(std::move(setup));
}

}  // namespace prunex::nccl::coll
