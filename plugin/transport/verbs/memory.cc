// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/memory.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited"
                                : strf("%llu", static_cast<unsigned long long>(limit));
}

// A library or a device that knows no relaxed order gives the strict one.
ibv_mr* register_with(Device& device, void* data, size_t bytes, Order order) {
  const Api& api = device.api();
  if (order == Order::relaxed && api.reg_mr_iova2 != nullptr && !device.refuses_relaxed) {
    ibv_mr* region =
        api.reg_mr_iova2(device.domain(), data, bytes, reinterpret_cast<uintptr_t>(data),
                         static_cast<unsigned>(kAccess) | IBV_ACCESS_RELAXED_ORDERING);
    if (region != nullptr) {
      return region;
    }
    if (errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS) {
      return nullptr;
    }
    device.refuses_relaxed = true;
  }
  errno = 0;
  return api.reg_mr(device.domain(), data, bytes, kAccess);
}

Error refusal(const Device& device, size_t bytes, int error) {
  std::string text = strf("%zu bytes cannot be registered with %s: %s", bytes,
                          device.port().name().c_str(), errno_text(error).c_str());
  if (error == ENOMEM || error == EAGAIN || error == EPERM) {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
    text += strf(
        "; this process may lock %s bytes of memory (hard limit %s): raise it in the launcher "
        "(ulimit -l unlimited; LimitMEMLOCK=infinity for a service), or give the container "
        "CAP_IPC_LOCK",
        limit_text(limit.rlim_cur).c_str(), limit_text(limit.rlim_max).c_str());
  }
  return {Code::memory, std::move(text), error, -1};
}

Error dmabuf_refusal(const Device& device, size_t bytes, int error) {
  utsname kernel{};
  (void)::uname(&kernel);
  const char* why = error == ENOSYS ? "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 has)"
                    : error == EOPNOTSUPP
                        ? "the device, its driver or the kernel cannot; mlx5 can from Linux 5.12 on"
                        : "is the descriptor a dmabuf, and can the device reach that memory?";
  return {error == EOPNOTSUPP || error == ENOSYS ? Code::unsupported : Code::memory,
          strf("%zu bytes of device memory cannot be registered with %s by dmabuf on Linux %s: %s; "
               "%s; data go through host memory instead",
               bytes, device.port().name().c_str(), kernel.release, errno_text(error).c_str(), why),
          error, -1};
}

}  // namespace

Result<std::shared_ptr<const Memory>> Memory::open(Devices devices, void* data, size_t bytes,
                                                   Order order, size_t said) {
  std::shared_ptr<Memory> out(new Memory(data, bytes, order, false));
  for (const auto& device : devices) {
    ibv_mr* region = register_with(*device, data, bytes, order);
    if (region == nullptr) {
      return tl::unexpected<Error>(refusal(*device, said > 0 ? said : bytes, errno));
    }
    out->parts_.push_back({device, region});
  }
  return out;
}

Result<std::shared_ptr<const Memory>> Memory::open(Devices devices, const DmaBuf& buffer,
                                                   void* data, size_t bytes) {
  std::shared_ptr<Memory> out(new Memory(data, bytes, Order::strict, true));
  for (const auto& device : devices) {
    const auto call = device->api().reg_dmabuf_mr;
    errno = ENOSYS;
    ibv_mr* region = call == nullptr ? nullptr
                                     : call(device->domain(), buffer.offset, bytes,
                                            reinterpret_cast<uintptr_t>(data), buffer.fd, kAccess);
    if (region == nullptr) {
      return tl::unexpected<Error>(dmabuf_refusal(*device, bytes, errno));
    }
    out->parts_.push_back({device, region});
  }
  return out;
}

Memory::~Memory() {
  for (const Part& p : parts_) {
    p.device->api().dereg_mr(p.region);
  }
}

bool Memory::holds(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  return at >= begin_ && at - begin_ <= bytes_ && bytes <= bytes_ - (at - begin_);
}

}  // namespace prunex::transport::verbs
