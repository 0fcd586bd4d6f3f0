// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/host.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "kernels/pack.h"
#include "plugin/base/log.h"
#include "plugin/base/sockets.h"
#include "plugin/device/architectures.h"
#include "plugin/device/backend.h"

namespace prunex::nccl {
namespace {

constexpr size_t kWantedDescriptors = 65536;

constinit std::atomic<Logger> g_logger{nullptr};

// NCCL's levels and the subsystem NET (and INIT, under which people look for a plugin's start).
void to_nccl(LogLevel level, const char* file, int line, const char* text) {
  constexpr unsigned long kNet = 0x10, kInit = 0x1;
  const int nccl_level = level == LogLevel::warn ? 2 : level == LogLevel::info ? 3 : 5;
  if (const Logger logger = g_logger.load(std::memory_order_acquire)) {
    logger(nccl_level, kNet | kInit, file, line, "NET/PRUNEX : %s", text);
  }
}

void take_logger(Logger logger) {
  if (logger != nullptr) {
    g_logger.store(logger, std::memory_order_release);
    set_log_sink(to_nccl);
  }
}

// Sizes as NCCL takes them: plain bytes. What it does not understand it does not use either.
size_t fifo_size(const Environment& environment, const char* name, size_t fallback) {
  const auto text = environment.lookup(name);
  size_t value = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc{}) {
    return fallback;
  }
  return value > 0 ? value : fallback;
}

// A GPU that polls a buffer (LL, LL128) would read what a copy has half written.
Result<> check_staged_gpu(const Config& config, const Environment& environment) {
  if (!config.staged_gpu) {
    return {};
  }
  const std::string proto = environment.lookup("NCCL_PROTO").value_or("");
  if (::strcasecmp(proto.c_str(), "Simple") != 0) {
    return fail(Code::config,
                strf("PRUNEX_STAGED_GPU=1 needs NCCL_PROTO=Simple on all ranks (it is %s): only "
                     "that protocol waits until a message is whole",
                     proto.empty() ? "not set" : proto.c_str()));
  }
  if (auto table = device::cuda_table(); !table) {
    return fail(table.error().code, "PRUNEX_STAGED_GPU=1: " + table.error().text);
  }
  return {};
}

// NCCL opens the network on the communicator's device. Without kernels for that it has to do the
// copies itself, and can: before anything is connected, and not in mid-training.
bool takes_device(const Config& config) {
  auto table = device::cuda_table();
  int device = 0;
  if (!config.staged_gpu || !table || (*table)->get_device(&device) != 0) {
    return false;
  }
  const auto runs = device::check_architecture(**table, device);
  if (!runs) {
    PRUNEX_LOG(warn, "PRUNEX_STAGED_GPU=1 has no effect here, NCCL copies device memory itself: %s",
               runs.error().text.c_str());
  }
  return runs.has_value();
}

Result<std::shared_ptr<const Settings>> load_settings() {
  const Environment environment = process_environment();
  auto loaded = load_config(environment);
  if (!loaded) {
    return tl::unexpected(loaded.error());
  }
  auto out = std::make_shared<Settings>();
  out->config = loaded->config;
  set_log_level(out->config.debug);
  for (const std::string& warning : loaded->warnings) {
    PRUNEX_LOG(warn, "%s", warning.c_str());
  }
  for (const ConfigValue& value : loaded->values) {
    if (value.source != "default") {
      PRUNEX_LOG(info, "%s=%s (from %s)", value.name.c_str(), value.value.c_str(),
                 value.source.c_str());
    }
  }
  const FifoBytes standard;
  out->fifo.ll = fifo_size(environment, "NCCL_LL_BUFFSIZE", standard.ll);
  out->fifo.ll128 = fifo_size(environment, "NCCL_LL128_BUFFSIZE", standard.ll128);
  out->fifo.simple = fifo_size(environment, "NCCL_BUFFSIZE", standard.simple);
  if (auto isa = select_isa(out->config.isa); !isa) {
    return tl::unexpected(isa.error());
  }
  if (auto possible = check_staged_gpu(out->config, environment); !possible) {
    return tl::unexpected(possible.error());
  }
  out->takes_device = takes_device(out->config);
  auto found = find_devices(out->config);
  if (!found) {
    return tl::unexpected(found.error());
  }
  transport::tell(found->rdma);
  out->devices = std::move(found->devices);
  return std::shared_ptr<const Settings>(std::move(out));
}

}  // namespace

Host& Host::instance() {
  static Host* const host = new Host;  // never destroyed
  return *host;
}

Result<std::shared_ptr<Context>> Host::open(uint64_t comm_id, int traffic_class, Logger logger) {
  const std::lock_guard lock(mutex_);
  take_logger(logger);
  if (contexts_.empty()) {
    auto settings = load_settings();
    if (!settings) {
      return tl::unexpected(settings.error());
    }
    settings_ = std::move(*settings);
    raise_descriptor_limit(kWantedDescriptors);
    start_metrics(settings_->config.metrics_file);
    std::string list;
    for (const Device& d : settings_->devices) {
      list += strf("%s%s %s%s", list.empty() ? "" : ", ", d.name.c_str(), d.rdma ? "by RDMA, " : "",
                   host_text(d.address).c_str());
    }
    PRUNEX_LOG(info, "using %zu device%s: %s", settings_->devices.size(),
               settings_->devices.size() == 1 ? "" : "s", list.c_str());
  }
  auto context = std::make_shared<Context>(comm_id);
  context->traffic_class = traffic_class;
  context->settings = settings_;
  contexts_.push_back(context);
  register_stats(context->stats);
  return context;
}

void Host::close(void* context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(contexts_, [&](const auto& c) { return c.get() == context; });
}

std::shared_ptr<Context> Host::find(void* context) const {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(contexts_.begin(), contexts_.end(),
                               [&](const auto& c) { return c.get() == context; });
  return at == contexts_.end() ? nullptr : *at;
}

std::shared_ptr<const Settings> Host::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

const char* Host::lasting(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return texts_.insert(text).first->c_str();
}

namespace {

// A thread serves one communicator, or a few in turn.
struct Said {
  const void* context = nullptr;
  TransferHint hint{};
};
constinit thread_local std::array<Said, 4> t_said{};
constinit thread_local size_t t_next = 0;

constexpr TransferHint kNothing{~0U, ~0U, ~0U};

}  // namespace

void set_thread_hint(const void* context, const TransferHint& hint) {
  for (Said& said : t_said) {
    if (said.context == context) {
      said.hint = hint;
      return;
    }
  }
  t_said[t_next++ % t_said.size()] = {context, hint};
}

TransferHint thread_hint(const void* context) {
  for (const Said& said : t_said) {
    if (said.context == context && context != nullptr) {
      return said.hint;
    }
  }
  return kNothing;
}

}  // namespace prunex::nccl
