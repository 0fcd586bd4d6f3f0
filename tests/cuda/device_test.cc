// SPDX-License-Identifier: Apache-2.0
// On a GPU: pack, audit, unpack and reduce equal the host's scalar kernels, also when captured into
// a graph. Without one, every test skips and says why.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"
#include "tools/cuda_device.cuh"

namespace prunex::test {
namespace {

using tools::cuda_library;
using tools::CudaLibrary;
using tools::DeviceMemory;
using tools::DevicePlan;

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = cuda_library();
    ASSERT_FALSE(library.broken) << library.missing;
    if (!library.missing.empty()) {
      GTEST_SKIP() << library.missing;
    }
    host::use_version(host::Version::scalar);
    scratch_ = std::make_unique<DeviceMemory>(table().scratch_bytes());
    scratch_->fill(0);
  }
  static const cuda::Table& table() { return *cuda_library().table; }

  // Packs with and without audit, and unpacks, one slice.
  void check(const Case& c, DType type, const std::vector<std::byte>& buffer, const Slice& s,
             const DevicePlan& plan, size_t shift);

  RestoreIsa restore_;
  std::unique_ptr<DeviceMemory> scratch_;
};

void CudaDevice::check(const Case& c, DType type, const std::vector<std::byte>& buffer,
                       const Slice& s, const DevicePlan& plan, size_t shift) {
  SCOPED_TRACE(testing::Message() << c.name << " " << prunex::name_of(type) << " kept ["
                                  << s.kept_begin << ", " << s.kept_end << ") shift " << shift);
  const size_t bytes = (s.kept_end - s.kept_begin) * size_of(type);
  std::vector<std::byte> want(bytes + 1), want_back(buffer.size() + 1, std::byte{0xa5});
  AuditCount dropped;
  pack(c.layout, type, buffer.data(), s, want.data(), &dropped);
  unpack(c.layout, type, want.data(), s, want_back.data());
  want.resize(bytes);
  want_back.resize(buffer.size());

  const DeviceMemory from(buffer, shift), to(bytes, shift), back(buffer.size(), shift);
  const DeviceMemory record(sizeof(cuda::AuditRecord));
  cuda::MoveCall call = plan.call(type, s, from.data(), to.data());
  ASSERT_EQ(table().pack(&call), cudaSuccess);
  EXPECT_EQ(to.get(), want) << "pack";
  to.fill(0xa5);
  call.record = record.as<cuda::AuditRecord>();
  call.scratch = scratch_->data();
  ASSERT_EQ(table().pack(&call), cudaSuccess);
  EXPECT_EQ(to.get(), want) << "pack with audit";
  const cuda::AuditRecord found = record.get_as<cuda::AuditRecord>()[0];
  EXPECT_EQ(found.lossless, dropped.lossless);
  EXPECT_EQ(found.projected, dropped.projected);
  back.fill(0xa5);
  const cuda::MoveCall spread = plan.call(type, s, to.data(), back.data());
  ASSERT_EQ(table().unpack(&spread), cudaSuccess);
  EXPECT_EQ(back.get(), want_back) << "unpack";
}

TEST_F(CudaDevice, every_structure_type_and_alignment) {
  Rng rng(1);
  for (const Case& c : all_cases(41)) {
    const DevicePlan plan(c.layout, below(rng, 2) == 0 ? 512 : 4096);
    for (const DType type : kAllTypes) {
      std::vector<std::byte> buffer(c.layout.count * size_of(type));
      fill(c, type, rng, 6, buffer.data());
      for (const size_t shift : {size_t{0}, size_of(type), size_t{3}}) {
        check(c, type, buffer, cut(c, 0, c.layout.kept), plan, shift);
      }
    }
  }
}

// -0.0 in a dropped place is found by an exact audit alone.
TEST_F(CudaDevice, exact_audit_counts_signs) {
  MaskBuilder b(4096);
  b.panel(0, 64, 64, 32, -1);
  const Case c = make_case("halves", {b.build()}, {4096});
  const DevicePlan plan(c.layout, 1024);
  std::vector<float> values(4096, 0.0F);
  for (size_t i = 40; i < values.size(); i += 64) {
    values[i] = -0.0F;
  }
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  const DeviceMemory from(bytes, 0), to(c.layout.kept * 4), record(sizeof(cuda::AuditRecord));
  cuda::MoveCall call = plan.call(DType::f32, cut(c, 0, c.layout.kept), from.data(), to.data());
  call.record = record.as<cuda::AuditRecord>();
  call.scratch = scratch_->data();
  for (const bool exact : {false, true}) {
    call.exact = exact;
    ASSERT_EQ(table().pack(&call), cudaSuccess);
    EXPECT_EQ(record.get_as<cuda::AuditRecord>()[0].lossless, exact ? 64u : 0u);
  }
}

TEST_F(CudaDevice, slices) {
  Rng rng(2);
  for (const Case& c : all_cases(42)) {
    const DevicePlan plan(c.layout, 1024);
    for (int i = 0; i < 4; ++i) {
      const DType type = kAllTypes[below(rng, 10)];
      std::vector<std::byte> buffer(c.layout.count * size_of(type));
      fill(c, type, rng, 6, buffer.data());
      const uint64_t begin = below(rng, c.layout.kept + 1);
      const uint64_t end = begin + below(rng, c.layout.kept - begin + 1);
      check(c, type, buffer, cut(c, begin, end, static_cast<double>(i) / 4), plan, 0);
    }
  }
}

// The record is the same each time, energy to the last bit, and names the first offender.
TEST_F(CudaDevice, audit_is_reproducible) {
  Rng rng(3);
  MaskBuilder b(1 << 20);
  b.panel(0, 1024, 1024, 1024, b.pattern(random_bits(rng, 1024, 0.5)));
  const Case c = make_case("large", {b.build()}, {1 << 20});
  std::vector<std::byte> buffer(c.layout.count * 4);
  fill(c, DType::f32, rng, 3, buffer.data());
  const AuditReport want = audit_segment(c.layout, 0, DType::f32, buffer.data());
  const DevicePlan plan(c.layout, 4096);
  const DeviceMemory from(buffer, 0), to(c.layout.kept * 4), record(sizeof(cuda::AuditRecord));
  cuda::MoveCall call = plan.call(DType::f32, cut(c, 0, c.layout.kept), from.data(), to.data());
  call.record = record.as<cuda::AuditRecord>();
  call.scratch = scratch_->data();
  std::vector<std::byte> first;
  for (int i = 0; i < 20; ++i) {
    record.fill(0xff);
    ASSERT_EQ(table().pack(&call), cudaSuccess);
    const std::vector<std::byte> bytes = record.get();
    first = first.empty() ? bytes : first;
    ASSERT_EQ(bytes, first);
  }
  const cuda::AuditRecord found = record.get_as<cuda::AuditRecord>()[0];
  EXPECT_EQ(found.lossless, want.nonzero);
  EXPECT_EQ(found.nonfinite, want.nonfinite);
  EXPECT_EQ(found.first, want.first_element);
}

TEST_F(CudaDevice, reduction_as_on_the_host) {
  Rng rng(4);
  for (const Case& c : all_cases(43)) {
    const DType type = kAllTypes[below(rng, 10)];
    const size_t size = size_of(type);
    std::vector<std::vector<std::byte>> memory(1 + below(rng, 5));
    const size_t own = below(rng, memory.size());
    for (size_t s = 0; s < memory.size(); ++s) {
      memory[s].resize((s == own ? c.layout.count : c.layout.kept) * size);
      for (std::byte& byte : memory[s]) {
        byte = static_cast<std::byte>(below(rng, 4) * 16);
      }
    }
    std::vector<const void*> pointers;
    std::vector<std::unique_ptr<DeviceMemory>> sources;
    cuda::ReduceCall call{};
    for (size_t s = 0; s < memory.size(); ++s) {
      pointers.push_back(memory[s].data());
      sources.push_back(std::make_unique<DeviceMemory>(memory[s], 0));
      call.reduction.source[s] = sources.back()->data();
    }
    const Slice all = cut(c, 0, c.layout.kept);
    std::vector<std::byte> want(c.layout.kept * size + 1);
    reduce_pack(want.data(), type, pointers, own, c.layout, type, memory[own].data(), all, Op::sum);
    want.resize(c.layout.kept * size);
    const DevicePlan plan(c.layout, 2048);
    const DeviceMemory out(want.size());
    call.move = plan.call(type, all, nullptr, nullptr);
    call.reduction.out = out.data();
    call.reduction.divisor = 1;
    call.reduction.sources = static_cast<int>(memory.size());
    call.reduction.own = static_cast<int>(own);
    call.reduction.in = call.reduction.out_type = type;
    call.reduction.op = Op::sum;
    ASSERT_EQ(table().reduce(&call), cudaSuccess);
    EXPECT_EQ(out.get(), want) << c.name << " " << prunex::name_of(type);
  }
}

// Captured once, launched thrice on changing data.
TEST_F(CudaDevice, graph_capture) {
  Rng rng(5);
  const std::vector<Case> cases = all_cases(44);
  const Case& c = cases.back();
  const Slice all = cut(c, 0, c.layout.kept);
  const DevicePlan plan(c.layout, 1024);
  const DeviceMemory from(c.layout.count * 4), to(c.layout.kept * 4), back(c.layout.count * 4);
  const DeviceMemory record(sizeof(cuda::AuditRecord));
  void* stream = nullptr;
  ASSERT_EQ(table().stream_create(&stream), cudaSuccess);
  const auto s = static_cast<cudaStream_t>(stream);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  cuda::MoveCall call = plan.call(DType::f32, all, from.data(), to.data(), stream);
  call.record = record.as<cuda::AuditRecord>();
  call.scratch = scratch_->data();
  EXPECT_EQ(table().pack(&call), cudaSuccess);
  const cuda::MoveCall spread = plan.call(DType::f32, all, to.data(), back.data(), stream);
  EXPECT_EQ(table().unpack(&spread), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte> buffer(c.layout.count * 4), packed(c.layout.kept * 4 + 1);
    fill(c, DType::f32, rng, 5, buffer.data());
    from.put(buffer.data());
    ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
    AuditCount dropped;
    pack(c.layout, DType::f32, buffer.data(), all, packed.data(), &dropped);
    std::vector<std::byte> want_back(buffer.size());
    unpack(c.layout, DType::f32, packed.data(), all, want_back.data());
    EXPECT_EQ(back.get(), want_back) << "round " << round;
    EXPECT_EQ(record.get_as<cuda::AuditRecord>()[0].lossless, dropped.lossless);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  table().stream_destroy(stream);
}

// Somebody's error before a call is not the call's, and the call's is not found by whoever asks
// next.
TEST_F(CudaDevice, errors_are_told_by_the_call_alone) {
  const Case c = make_case("dense", {nullptr}, {100});
  const DevicePlan plan(c.layout, 1024);
  const DeviceMemory from(400), to(400);
  cuda::MoveCall call = plan.call(DType::f32, cut(c, 0, 100), from.data(), to.data());
  ASSERT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
  EXPECT_EQ(table().pack(&call), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice) << "whose it was";
  EXPECT_NE(table().set_device(1000), cudaSuccess);
  cuda::DeviceFacts facts{};
  EXPECT_NE(table().device_facts(1000, &facts), cudaSuccess);
  void* too_much = nullptr;
  EXPECT_NE(table().allocate(&too_much, size_t{1} << 60), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What a thread does beside its launches while a graph is captured in global mode, as torch does.
TEST_F(CudaDevice, calls_beside_a_capture) {
  const Case c = make_case("dense", {nullptr}, {100});
  void *stream = nullptr, *event = nullptr, *memory = nullptr;
  ASSERT_EQ(table().stream_create(&stream), cudaSuccess);
  ASSERT_EQ(table().event_create(&event), cudaSuccess);
  const auto s = static_cast<cudaStream_t>(stream);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  int done = 0, capturing = 0;
  EXPECT_EQ(table().event_done(event, &done), cudaSuccess);
  EXPECT_EQ(table().stream_capturing(stream, &capturing), cudaSuccess);
  EXPECT_EQ(capturing, 1);
  EXPECT_EQ(table().allocate(&memory, 256), cudaSuccess);
  EXPECT_EQ(table().deallocate(memory), cudaSuccess);
  EXPECT_EQ(table().allocate_pinned(&memory, 256), cudaSuccess);
  EXPECT_EQ(table().deallocate_pinned(memory), cudaSuccess);
  EXPECT_EQ(table().prepare(), cudaSuccess);
  { const DevicePlan plan(c.layout, 1024); }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess) << "the capture goes on";
  cudaGraphDestroy(graph);
  EXPECT_EQ(table().event_destroy(event), cudaSuccess);
  EXPECT_EQ(table().stream_destroy(stream), cudaSuccess);
}

TEST_F(CudaDevice, wrong_calls_are_refused) {
  const Case c = make_case("dense", {nullptr}, {100});
  const DevicePlan plan(c.layout, 1024);
  const DeviceMemory memory(400);
  cuda::MoveCall call = plan.call(DType::f32, cut(c, 0, 100), memory.data(), memory.data());
  call.last_tile = 1000;
  EXPECT_EQ(table().pack(&call), cudaErrorInvalidValue);
  EXPECT_EQ(table().unpack(&call), cudaErrorInvalidValue);
  cuda::ReduceCall reduce{};
  EXPECT_EQ(table().reduce(&reduce), cudaErrorInvalidValue) << "no sources";
}

}  // namespace
}  // namespace prunex::test
