// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/plan_maker.h"

#include <utility>

#include "kernels/cuda/keep_masks.h"
#include "kernels/cuda/lower_keeps.h"
#include "plugin/device/backend.h"

namespace prunex::device {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// What making one plan takes, and the plan until it is whole.
class Making {
 public:
  explicit Making(const cuda::Table& table) : table_(table) {}
  ~Making() {
    if (stream_ != nullptr) {
      (void)table_.stream_synchronize(stream_);
      (void)table_.stream_destroy(stream_);
    }
    destroy_plan(table_, made_);
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  Result<MadePlan> run(const cuda::LoweredKeeps& lowered, const std::vector<uint8_t>& keeps,
                       uint64_t* kept) {
    const cuda::KeepImage image{lowered.arrays(), lowered.tensors.size(), lowered.places.size(),
                                lowered.tensor_of_row.size(), lowered.tensor_of_word.size()};
    int error = table_.plan_reserve_keeps(&image, &made_.plan);
    const size_t scratch = error == 0 ? aligned(table_.keep_scratch_bytes(made_.plan)) : 0;
    error = error != 0 ? error : table_.allocate(&made_.memory, scratch + kAlign + keeps.size());
    error = error != 0 ? error : table_.stream_create(&stream_);
    error = error != 0 ? error : compile(scratch, keeps, kept);
    if (auto made = check_cuda(table_, error, "making a plan of keep vectors"); !made) {
      return tl::unexpected(made.error());
    }
    return std::exchange(made_, {});
  }

 private:
  // The memory: scratch, how many elements stay, the keep vectors.
  int compile(size_t scratch, const std::vector<uint8_t>& keeps, uint64_t* kept) {
    auto* const memory = static_cast<std::byte*>(made_.memory);
    std::byte *const count = memory + scratch, *const bytes = count + kAlign;
    int error = keeps.empty() ? 0 : table_.copy(bytes, keeps.data(), keeps.size(), stream_);
    const cuda::KeepCall call{reinterpret_cast<const uint8_t*>(bytes), memory, scratch, stream_};
    error = error != 0
                ? error
                : table_.plan_from_keeps(&call, made_.plan, reinterpret_cast<uint64_t*>(count));
    error = error != 0 ? error : table_.copy(kept, count, sizeof *kept, stream_);
    return error != 0 ? error : table_.stream_synchronize(stream_);
  }

  const cuda::Table& table_;
  MadePlan made_;
  void* stream_ = nullptr;
};

Result<MadePlan> by_device(const cuda::Table& table, const Layout& layout,
                           const cuda::LayoutKeeps& keeps, cuda::LoweredKeeps lowered) {
  uint64_t kept = 0;
  auto made = Making(table).run(lowered, keeps.keeps, &kept);
  if (!made) {
    return made;
  }
  made->lowered = std::move(lowered.tiles);
  made->lowered.kept = layout.kept;
  if (kept != layout.kept) {
    destroy_plan(table, *made);
    return fail(Code::internal, strf("the device's plan keeps %llu elements, the masks keep %llu",
                                     static_cast<unsigned long long>(kept),
                                     static_cast<unsigned long long>(layout.kept)));
  }
  return made;
}

Result<MadePlan> by_host(const cuda::Table& table, const Layout& layout, uint32_t tile_elements) {
  MadePlan out;
  out.lowered = cuda::lower(layout, tile_elements);
  auto& [count, kept, tiles, words] = out.lowered;
  const cuda::PlanImage image{tiles.data(), tiles.size(), words.data(), words.size()};
  if (auto made = check_cuda(table, table.plan_create(&image, &out.plan), "making a plan"); !made) {
    return tl::unexpected(made.error());
  }
  words = {};
  return out;
}

}  // namespace

void destroy_plan(const cuda::Table& table, MadePlan& made) {
  if (made.plan != nullptr) {
    (void)table.plan_destroy(made.plan);
  }
  if (made.memory != nullptr) {
    (void)table.deallocate(made.memory);
  }
  made = {};
}

Result<MadePlan> make_plan(const cuda::Table& table, const Layout& layout, uint32_t tile_elements) {
  if (auto keeps = cuda::keeps_of(layout)) {
    if (auto lowered = cuda::lower_keeps(keeps->tensors, tile_elements)) {
      return by_device(table, layout, *keeps, *std::move(lowered));
    }
  }
  return by_host(table, layout, tile_elements);
}

}  // namespace prunex::device
