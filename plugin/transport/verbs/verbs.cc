// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/verbs.h"

#include "plugin/transport/verbs/device.h"
#include "plugin/transport/verbs/meeting.h"

namespace prunex::transport {
namespace verbs {
namespace {

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(std::shared_ptr<Device> device, std::unique_ptr<Transport> meeting)
      : device_(std::move(device)), meeting_(std::move(meeting)) {}
  [[nodiscard]] std::string_view name() const override { return "verbs"; }

  Result<std::unique_ptr<Listener>> listen() override {
    auto meeting = meeting_->listen();
    if (!meeting) {
      return meeting;
    }
    return std::make_unique<VerbsListener>(device_, *std::move(meeting));
  }

  Result<std::unique_ptr<Connecting>> connect(std::string_view handle, std::string_view hello,
                                              double timeout_s) override {
    auto inner = unwrap_handle(handle);
    if (!inner) {
      return tl::unexpected<Error>(inner.error());
    }
    auto meeting = meeting_->connect(*inner, hello, timeout_s);
    if (!meeting) {
      return meeting;
    }
    return VerbsConnecting::open(device_, *std::move(meeting), timeout_s);
  }

  Result<std::unique_ptr<Region>> register_memory(void* data, size_t bytes) override {
    if (data == nullptr || bytes == 0) {
      return fail(Code::invalid_argument,
                  strf("%zu bytes at %p cannot be registered", bytes, data));
    }
    auto memory = Memory::open(device_, data, bytes);
    if (!memory) {
      return tl::unexpected<Error>(memory.error());
    }
    return std::make_unique<VerbsRegion>(*std::move(memory));
  }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<Transport> meeting_;
};

Result<const Api*> api_of(const VerbsOptions& options) {
  return options.api != nullptr ? Result<const Api*>(options.api) : load_api();
}

Result<> check_settings(const VerbsOptions& o) {
  if (o.service_level > 15 || o.timeout > 31 || o.retry_count > 7) {
    return fail(Code::config,
                strf("service level %u (0 to 15), timeout %u (0 to 31) or retry count %u (0 to 7) "
                     "is out of range: PRUNEX_IB_SL, PRUNEX_IB_TIMEOUT, PRUNEX_IB_RETRY_CNT",
                     unsigned{o.service_level}, unsigned{o.timeout}, unsigned{o.retry_count}));
  }
  return {};
}

}  // namespace
}  // namespace verbs

Result<std::vector<verbs::PortInfo>> list_verbs_ports(const VerbsOptions& options) {
  auto api = verbs::api_of(options);
  if (!api) {
    return tl::unexpected<Error>(api.error());
  }
  return verbs::list_ports(**api);
}

Result<std::unique_ptr<Transport>> open_verbs_transport(const VerbsOptions& options,
                                                        std::vector<std::string>* notes) {
  if (auto r = verbs::check_settings(options); !r) {
    return tl::unexpected<Error>(r.error());
  }
  auto api = verbs::api_of(options);
  if (!api) {
    return tl::unexpected<Error>(api.error());
  }
  auto ports = verbs::list_ports(**api);
  if (!ports) {
    return tl::unexpected<Error>(ports.error());
  }
  auto selection = verbs::select_ports(*ports, options.hca);
  if (!selection) {
    return tl::unexpected<Error>(selection.error());
  }
  if (notes != nullptr) {
    *notes = selection->notes;
  }
  if (options.rail >= selection->ports.size()) {
    return fail(Code::invalid_argument,
                strf("rail %zu of %zu RDMA ports", options.rail, selection->ports.size()));
  }
  SocketOptions meeting_options = options.socket;
  meeting_options.streams = 1;
  auto meeting = open_socket_transport(meeting_options);
  if (!meeting) {
    return meeting;
  }
  auto device = verbs::Device::open(**api, (*ports)[selection->ports[options.rail]], options);
  if (!device) {
    return tl::unexpected<Error>(device.error());
  }
  return std::unique_ptr<Transport>(
      std::make_unique<verbs::VerbsTransport>(*std::move(device), *std::move(meeting)));
}

}  // namespace prunex::transport
