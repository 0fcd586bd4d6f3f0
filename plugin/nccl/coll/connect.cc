// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/connect.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/wire.h"
#include "plugin/nccl/net/connect.h"
#include "plugin/transport/socket/wire.h"

namespace prunex::nccl::coll {
namespace {

constexpr uint32_t kMagic = 0x4c4f4350;  // "PCOL"
constexpr uint16_t kVersion = 1;
constexpr size_t kPrefixBytes = 8;
constexpr double kLongestConnectS = 30;  // NCCL's service thread stands still meanwhile

}  // namespace

Result<std::unique_ptr<CollListener>> listen(std::shared_ptr<Context> context, int device,
                                             std::span<std::byte> handle) {
  auto network = open_device(*context, device);
  if (!network) {
    return tl::unexpected(network.error());
  }
  auto out = std::make_unique<CollListener>();
  out->context = std::move(context);
  out->transport = std::move(*network);
  auto listener = out->transport->listen();
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  out->listener = std::move(*listener);
  const std::string inner = out->listener->handle();
  if (inner.size() > handle.size() - kPrefixBytes) {
    return fail(Code::internal, strf("a listener's handle of %zu bytes does not fit NCCL's %zu",
                                     inner.size(), handle.size()));
  }
  std::fill(handle.begin(), handle.end(), std::byte{0});
  WireWriter w(handle);
  w.put(kMagic);
  w.put(kVersion);
  w.put(static_cast<uint16_t>(inner.size()));
  std::memcpy(handle.data() + kPrefixBytes, inner.data(), inner.size());
  return out;
}

Result<CollHandle> decode_handle(std::span<const std::byte> bytes) {
  WireReader r(bytes);
  const auto magic = r.get<uint32_t>();
  const auto version = r.get<uint16_t>();
  const auto inner = r.get<uint16_t>();
  if (!r.ok() || magic != kMagic) {
    return fail(Code::mismatch,
                "its handle is none of this plugin's CollNet: that node uses another network "
                "plugin, or the handle was damaged; set NCCL_NET_PLUGIN=prunex on all nodes");
  }
  if (version != kVersion) {
    return fail(Code::mismatch,
                strf("its CollNet handle has version %u, this process speaks version %u: install "
                     "the same prunex on all nodes",
                     version, kVersion));
  }
  if (inner > r.left()) {
    return fail(Code::mismatch, strf("its CollNet handle says %u bytes and has %zu: it was damaged "
                                     "on the way",
                                     inner, r.left()));
  }
  CollHandle out;
  out.transport.assign(reinterpret_cast<const char*>(bytes.data()) + kPrefixBytes, inner);
  auto listener = transport::decode_handle(out.transport);
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  out.address = to_text(listener->address);
  return out;
}

Result<std::unique_ptr<CollComm>> connect(std::span<const void* const> handles, size_t self,
                                          CollListener& listener) {
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
