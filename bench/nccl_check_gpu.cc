// SPDX-License-Identifier: Apache-2.0
#include "bench/nccl_check_gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>

#include "plugin/base/result.h"

namespace prunex::check {

void give_up(const char* what, const std::string& why) {
  std::printf("%s: %s\n", what, why.c_str());
  std::fflush(stdout);
  ::_exit(1);
}

const cuda::Table* open_table(const std::string& file, std::string* why) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = ::dlerror();
    return nullptr;
  }
  const auto entry =
      reinterpret_cast<decltype(&prunex_cuda_table)>(::dlsym(library, "prunex_cuda_table"));
  const cuda::Table* const table =
      entry == nullptr ? nullptr : entry(sizeof(cuda::Table), cuda::kTableVersion);
  if (table == nullptr) {
    *why = file + " has no table that fits";
  }
  return table;
}

std::vector<float> values_of(bool zeros, int rank, int round) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    values[i] = value_of(zeros, rank, round, i);
  }
  return values;
}

Gpu::Gpu(const Places& places) {
  std::string why;
  table_ = open_table(places.cuda, &why);
  if (table_ == nullptr) {
    give_up("CUDA library", why);
  }
  library_ = ::dlopen(places.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    give_up("libprunex", ::dlerror());
  }
  check("device", table_->set_device(0));
  check("stream", table_->stream_create(&stream_));
}

float* Gpu::allocate() const {
  void* p = nullptr;
  check("allocate", table_->allocate(&p, kBytes));
  return static_cast<float*>(p);
}

void Gpu::copy(void* to, const void* from) const {
  check("copy", table_->copy(to, from, kBytes, stream_));
  check("synchronize", table_->stream_synchronize(stream_));
}

void Gpu::fill(float* to) const { check("fill", table_->fill(to, 0xEE, kBytes, stream_)); }

void Gpu::check(const char* what, int error) const {
  if (error != 0) {
    give_up(what, table_->error_text(error));
  }
}

void Gpu::publish(const float* base, prunex_contract_t contract) const {
  const int64_t sizes[] = {static_cast<int64_t>(kRows), static_cast<int64_t>(kColumns)};
  prunex_tensor_t tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = PRUNEX_FLOAT32;
  tensor.ndim = 2;
  tensor.sizes = sizes;
  std::vector<uint8_t> rows(kRows);
  for (size_t r = 0; r < kRows; ++r) {
    rows[r] = kept(r) ? 1 : 0;
  }
  prunex_mask_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.contract = contract;
  desc.declared_kept = -1;
  desc.keep[0] = rows.data();
  desc.keep_len[0] = rows.size();
  prunex_mask_t mask = 0;
  must("prunex_register_mask",
       prunex<decltype(prunex_register_mask)>("prunex_register_mask")(base, &tensor, &desc, &mask));
}

void Gpu::must(const char* what, prunex_result_t result) const {
  if (result != PRUNEX_SUCCESS) {
    give_up(what, prunex<decltype(prunex_last_error)>("prunex_last_error")());
  }
}

void* Gpu::look_up(const char* name) const {
  void* const function = ::dlsym(library_, name);
  if (function == nullptr) {
    give_up("libprunex", std::string("does not export ") + name);
  }
  return function;
}

}  // namespace prunex::check
