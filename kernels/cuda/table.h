// SPDX-License-Identifier: Apache-2.0
// What libprunex-cuda.so offers: one table of functions behind one exported symbol. Both files are
// built from this header; size and version say when they were not.
//
// Results are cudaError_t (0: success); nothing throws and nothing is printed. Streams and events
// are CUDA's handles. Everything that takes a stream only enqueues: no allocation, no
// synchronisation, and it may be captured into a graph. Launches go to the current device, which
// must be the plan's. Pointers are device-accessible unless the comment says host.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/audit.h"
#include "kernels/cuda/keeps.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

inline constexpr uint32_t kTableVersion = 5;

struct Probe {
  int devices = 0;
  int driver =
      0;  // newest CUDA version that the driver serves, 1000 * major + 10 * minor; 0: no driver
  int runtime = 0;  // CUDA version that the library was built with
  int status = 0;   // cudaError_t of the device count
};

// When work that is enqueued after a network device said that it wrote to this device's memory is
// sure to see that (GPUDirect RDMA).
enum class RemoteWrites : int {
  never = 0,  // nothing makes it so
  flushed,    // after flush_remote_writes()
  ordered,    // at once
};

struct DeviceFacts {
  char name[64];
  char pci[16];  // "0000:18:00.0"
  int arch;      // compute capability, major * 10 + minor
  int sms;
  uint64_t memory_bytes;
  uint64_t bytes_per_second;  // theoretical, of the memory; 0 when the driver does not say
  RemoteWrites remote_writes;
};

enum class PointerKind : int { host = 0, pinned, device, managed };
struct PointerFacts {
  PointerKind kind;
  int device;  // -1: none
};

// A lowered layout in host memory (kernels/cuda/lower.h).
struct PlanImage {
  const Tile* tiles;
  size_t num_tiles;
  const Word* words;
  size_t num_words;
};

// Opaque; lives on one device and may be used by several streams at once.
struct Plan;

// Tiles [first_tile, last_tile) must hold the range's elements (tiles_of). With `record`, dropped
// elements are checked in the same pass, and the result is written there, in an order of additions
// that is the same each time; `scratch` then is scratch_bytes(), zeroed once, and used by one
// stream at a time. `record` may be pinned host memory.
struct MoveCall {
  const Plan* plan;
  DType type;
  Range range;
  uint32_t first_tile, last_tile;
  const void* from;  // pack: element 0 of the buffer; unpack: packed position range.kept_begin
  void* to;          // pack: packed position range.kept_begin; unpack: element 0 of the buffer
  AuditRecord* record;
  void* scratch;
  void* stream;
  // For bytes without a type: elements are what their size says, and a dropped one of which any bit
  // is set is counted (so is -0.0).
  bool exact = false;
};

// reduction.own >= 0: source[own] is element 0 of the plan's buffer; `move`'s `from` and `to` are
// not used. Else all sources are packed, `count` elements of each, and the plan may be null.
struct ReduceCall {
  MoveCall move;
  Reduction reduction;
  uint64_t count;
};

// Blocks of kZeroBlock bytes that hold anything but zeros, one behind the other: `bits` as by
// pack_blocks (kernels/exact.h), 64 blocks to each. `packed` is a multiple of 16, of 8 for
// pack_blocks.
struct BlockCall {
  const void* from;
  size_t blocks;
  uint64_t* bits;           // (blocks + 63) / 64
  void* packed;             // as many bytes as `from` at most
  uint64_t* packed_blocks;  // one; may be pinned host memory; may be null
  void* scratch;            // block_scratch_bytes(blocks)
  size_t scratch_bytes;
  void* stream;
};

// Kept elements of a byte mask (any byte that is not zero keeps), fewer than 2^31: older CUBs count
// in int, and would take fewer without a word.
inline constexpr uint64_t kMostCells = INT32_MAX;
struct ByteMaskCall {
  const uint8_t* cells;
  uint64_t count;
  void* scratch;  // mask_scratch_bytes(count)
  size_t scratch_bytes;
  void* stream;
};

// What lower_keeps() made, in host memory.
struct KeepImage {
  KeepArrays arrays;
  size_t num_tensors, num_tiles, num_rows, num_words;
};

struct KeepCall {
  const uint8_t* keeps;  // all keep vectors, as the tensors say; any byte that is not zero keeps
  void* scratch;         // keep_scratch_bytes(plan)
  size_t scratch_bytes;
  void* stream;
};

struct TopKCall {
  const double* scores;       // as norms() gives them
  const uint8_t* incumbents;  // null: none
  double factor;              // by which incumbents' scores are multiplied
  uint32_t groups, keep;
  uint8_t* keep_out;  // one byte per group
  void* scratch;      // top_k_scratch_bytes(groups)
  size_t scratch_bytes;
  void* stream;
};

struct NormCall {
  const void* data;
  DType type;  // a float type
  GroupShape shape;
  double* out;    // sums of squares, one per group
  void* scratch;  // norm_scratch_bytes(shape)
  size_t scratch_bytes;
  void* stream;
};

struct Table {
  uint32_t bytes;    // sizeof
  uint32_t version;  // kTableVersion
  const char* release;
  const char* archs;  // "80 90 100", in the order of the fat binary

  // ---- the machine; host side -----------------------------------------------------------------
  int (*probe)(Probe* out);
  int (*device_facts)(int device, DeviceFacts* out);
  int (*pointer_facts)(const void* p, PointerFacts* out);
  const char* (*error_text)(int error);
  int (*set_device)(int device);
  int (*get_device)(int* device);
  int (*allocate)(void** out, size_t bytes);         // of the device
  int (*allocate_pinned)(void** out, size_t bytes);  // of the host, visible to all devices
  int (*deallocate)(void* p);
  int (*deallocate_pinned)(void* p);
  // A descriptor by which other devices reach device memory (dmabuf), closed by the caller, and
  // where p lies in what it stands for.
  int (*export_dmabuf)(const void* p, size_t bytes, int* fd, uint64_t* offset);
  // What others wrote to the current device's memory by now is seen by all that it does later.
  // About as long as one read over its bus; waits for nothing that the device does.
  int (*flush_remote_writes)();
  // Non-blocking: never waits for the default stream. Of the greatest priority: others wait for
  // what runs there, and it is short.
  int (*stream_create)(void** out);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*stream_capturing)(void* stream, int* capturing);
  int (*event_create)(void** out);  // without timing
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_done)(void* event, int* done);
  int (*stream_wait)(void* stream, void* event);
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);  // any direction
  int (*fill)(void* to, int byte, size_t bytes, void* stream);

  // ---- these allocate and synchronise -----------------------------------------------------------
  // Runs or loads every kernel once on the current device, unless that was done: the first launch
  // of a kernel may wait for the device, on which others wait for who launches it. Not what top_k
  // takes for more groups than one block sorts. What makes plans does the same.
  int (*prepare)();
  int (*plan_create)(const PlanImage* image, Plan** out);  // on the current device
  int (*plan_destroy)(Plan* plan);
  // Room for masks of `count` elements that are compiled on the device (plan_from_bytes).
  int (*plan_reserve)(uint64_t count, uint32_t tile_elements, Plan** out);
  // The same for keep vectors of parameters whose shapes are known (plan_from_keeps).
  int (*plan_reserve_keeps)(const KeepImage* image, Plan** out);
  size_t (*plan_tiles)(const Plan* plan);

  // ---- enqueued ---------------------------------------------------------------------------------
  size_t (*scratch_bytes)();
  int (*pack)(const MoveCall* call);
  int (*unpack)(const MoveCall* call);
  int (*reduce)(const ReduceCall* call);

  size_t (*block_scratch_bytes)(size_t blocks);
  int (*pack_blocks)(const BlockCall* call);
  int (*unpack_blocks)(const BlockCall* call);  // the inverse: `packed` to `from`, which is written

  size_t (*mask_scratch_bytes)(uint64_t count);
  // Kept positions, ascending, and how many.
  int (*index_from_bytes)(const ByteMaskCall* call, uint32_t* index, uint32_t* kept);
  // Maximal runs of kept elements, ascending: up to (count + 1) / 2; and how many.
  int (*runs_from_bytes)(const ByteMaskCall* call, uint32_t* begin, uint32_t* length,
                         uint32_t* runs);
  // Tiles and words of a reserved plan, and how many elements it keeps.
  int (*plan_from_bytes)(const ByteMaskCall* call, Plan* plan, uint32_t* kept);

  size_t (*keep_scratch_bytes)(const Plan* plan);
  // Tiles and words of a plan that was reserved for keep vectors, and how many elements it keeps:
  // `kept` may be pinned host memory, or null.
  int (*plan_from_keeps)(const KeepCall* call, Plan* plan, uint64_t* kept);

  size_t (*norm_scratch_bytes)(const GroupShape* shape);
  int (*norms)(const NormCall* call);
  size_t (*top_k_scratch_bytes)(uint32_t groups);
  int (*top_k)(const TopKCall* call);
};

}  // namespace prunex::cuda

// Null when the library has no such table.
extern "C" __attribute__((visibility("default"))) const prunex::cuda::Table* prunex_cuda_table(
    uint32_t bytes, uint32_t version);
