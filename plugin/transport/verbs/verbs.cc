// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/verbs.h"

#include <algorithm>

#include "plugin/transport/verbs/domain.h"
#include "plugin/transport/verbs/meeting.h"
#include "plugin/transport/verbs/ports.h"

namespace prunex::transport {
namespace verbs {
namespace {

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(std::shared_ptr<Domain> domain, std::unique_ptr<Transport> meeting)
      : domain_(std::move(domain)), meeting_(std::move(meeting)) {}
  [[nodiscard]] std::string_view name() const override { return "verbs"; }

  Result<std::unique_ptr<Listener>> listen() override {
    auto meeting = meeting_->listen();
    if (!meeting) {
      return meeting;
    }
    return std::make_unique<VerbsListener>(domain_, *std::move(meeting));
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
    return VerbsConnecting::open(domain_, *std::move(meeting), timeout_s);
  }

  Result<std::unique_ptr<Region>> register_memory(void* data, size_t bytes) override {
    return domain_->add(data, bytes, Order::strict);
  }
  Result<std::unique_ptr<Region>> register_relaxed(void* data, size_t bytes) override {
    return domain_->add(data, bytes,
                        domain_->options().relaxed_order ? Order::relaxed : Order::strict);
  }
  Result<std::unique_ptr<Region>> register_dmabuf(int fd, uint64_t offset, void* data,
                                                  size_t bytes) override {
    return domain_->add(DmaBuf{fd, offset}, data, bytes);
  }

 private:
  std::shared_ptr<Domain> domain_;
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
  if (o.queue_pairs < 1 || o.queue_pairs > kMaxQueuePairs) {
    return fail(Code::config, strf("%zu queue pairs per connection: 1 to %zu, in "
                                   "PRUNEX_IB_QPS",
                                   o.queue_pairs, kMaxQueuePairs));
  }
  return {};
}

Result<std::vector<size_t>> rails_of(const VerbsOptions& o, size_t ports) {
  const std::vector<size_t> rails = o.rails.empty() ? std::vector<size_t>{o.rail} : o.rails;
  for (const size_t rail : rails) {
    if (rail >= ports) {
      return fail(Code::invalid_argument, strf("rail %zu of %zu RDMA ports", rail, ports));
    }
    if (std::count(rails.begin(), rails.end(), rail) > 1) {
      return fail(Code::invalid_argument, strf("rail %zu is named twice", rail));
    }
  }
  if (rails.size() > kMaxRails) {
    return fail(Code::config,
                strf("%zu RDMA ports for one connection; at most %zu", rails.size(), kMaxRails));
  }
  return rails;
}

Result<std::shared_ptr<Domain>> open_domain(const Api& api, const std::vector<PortInfo>& ports,
                                            const Selection& selection,
                                            const VerbsOptions& options) {
  auto rails = rails_of(options, selection.ports.size());
  if (!rails) {
    return tl::unexpected<Error>(rails.error());
  }
  std::vector<std::shared_ptr<Device>> devices;
  for (const size_t rail : *rails) {
    auto device = Device::open(api, ports[selection.ports[rail]], options);
    if (!device) {
      return tl::unexpected<Error>(device.error());
    }
    devices.push_back(*std::move(device));
  }
  return std::make_shared<Domain>(std::move(devices));
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
  SocketOptions meeting_options = options.socket;
  meeting_options.streams = 1;
  auto meeting = open_socket_transport(meeting_options);
  if (!meeting) {
    return meeting;
  }
  auto domain = verbs::open_domain(**api, *ports, *selection, options);
  if (!domain) {
    return tl::unexpected<Error>(domain.error());
  }
  return std::unique_ptr<Transport>(
      std::make_unique<verbs::VerbsTransport>(*std::move(domain), *std::move(meeting)));
}

}  // namespace prunex::transport
