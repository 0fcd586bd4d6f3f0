// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/mask_memory.h"

#include "plugin/device/backend.h"
#include "plugin/device/on_device.h"

namespace prunex::api {
namespace {

// The default stream would wait for everybody's.
Result<> copy_here(const cuda::Table& table, void* to, const void* from, size_t bytes,
                   const char* name) {
  const auto step = [&](int error) { return device::check_cuda(table, error, name); };
  void* stream = nullptr;
  if (auto made = step(table.stream_create(&stream)); !made) {
    return made;
  }
  auto copied = step(table.copy(to, from, bytes, stream)).and_then([&] {
    return step(table.stream_synchronize(stream));
  });
  (void)table.stream_destroy(stream);
  return copied;
}

template <class T>
Result<> fetch(const T*& array, size_t n, std::vector<T>& memory, const char* name) {
  auto place = device::place_of_one(n != 0 ? array : nullptr, name);
  if (!place || place->memory == device::Memory::host) {
    return place ? Result<>() : tl::unexpected(place.error());
  }
  auto table = device::cuda_table();
  if (!table) {
    return tl::unexpected(table.error());
  }
  memory.resize(n);
  const device::OnDevice on(**table, place->device);
  auto copied = copy_here(**table, memory.data(), array, n * sizeof(T), name);
  array = memory.data();
  return copied;
}

}  // namespace

Result<> HostDescription::read(const prunex_mask_desc_t& desc) {
  desc_ = desc;
  auto good = fetch(desc_.cells, desc_.cells_len, cells_, "desc.cells");
  if (good) {
    good = fetch(desc_.ranges, desc_.num_ranges, ranges_, "desc.ranges");
  }
  for (size_t d = 0; good && d < PRUNEX_MAX_DIMS; ++d) {
    good = fetch(desc_.keep[d], desc_.keep_len[d], keep_[d], strf("desc.keep[%zu]", d).c_str());
  }
  return good;
}

}  // namespace prunex::api
