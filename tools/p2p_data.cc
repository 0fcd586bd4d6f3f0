// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_data.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "plugin/base/sockets.h"

namespace prunex::tools {
namespace {

constexpr size_t kElement = sizeof(float);

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E37'79B9'7F4A'7C15U + 1) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15U);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9U;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBU;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }

 private:
  uint64_t state_;
};

// No byte of random data is zero: a message without zero blocks by any measure.
void fill_random(std::byte* at, size_t bytes, Random& random) {
  constexpr uint64_t kOnes = 0x0101'0101'0101'0101U;
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random.next() | kOnes;
    std::memcpy(at + i, &word, std::min<size_t>(8, bytes - i));
  }
}

// Which runs of a message are kept: an exact number of them, the first one always.
std::vector<uint8_t> choose_runs(size_t runs, double density, Random& random) {
  std::vector<uint8_t> keep(runs, 0);
  auto wanted = static_cast<size_t>(std::llround(density * static_cast<double>(runs)));
  wanted = std::clamp<size_t>(wanted, 1, runs);
  keep[0] = 1;
  size_t left = wanted - 1;
  for (size_t i = 1; i < runs && left > 0; ++i) {
    if (random.below(runs - i) < left) {
      keep[i] = 1;
      --left;
    }
  }
  return keep;
}

}  // namespace

Result<P2pBuffer> P2pBuffer::make(size_t bytes) {
  void* const memory = ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(Code::memory,
                strf("no memory for %zu bytes of messages: %s", bytes, errno_text(errno).c_str()));
  }
  P2pBuffer out;
  out.data_ = static_cast<std::byte*>(memory);
  out.size_ = std::max<size_t>(bytes, 1);
  return out;
}

void P2pBuffer::reset() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
    data_ = nullptr;
  }
}

Result<P2pSlots> make_slots(size_t bytes, int slots) {
  P2pSlots out;
  out.bytes = bytes;
  out.stride = (bytes + 63) / 64 * 64;
  auto buffer = P2pBuffer::make(out.stride * static_cast<size_t>(slots) + 32);
  if (!buffer) {
    return tl::unexpected(buffer.error());
  }
  out.buffer = std::move(*buffer);
  std::memset(out.buffer.data(), 0,
              out.buffer.size());  // the pages are there before the clock runs
  return out;
}

void fill_slots(const P2pSpec& spec, int sender, int slots, P2pSlots& into) {
  Random random(spec.seed * 2 + static_cast<uint64_t>(sender) + (uint64_t{into.bytes} << 20));
  const size_t run = spec.pattern == P2pPattern::dense ? into.bytes : spec.run;
  const size_t runs = (into.bytes + run - 1) / run;
  uint64_t kept = 0;
  into.kept.clear();
  for (int s = 0; s < slots; ++s) {
    const size_t base = static_cast<size_t>(s) * into.stride;
    const std::vector<uint8_t> keep = choose_runs(runs, spec.density, random);
    for (size_t i = 0; i < runs; ++i) {
      const size_t begin = base + i * run, length = std::min(run, into.bytes - i * run);
      if (keep[i] == 0) {
        std::memset(into.buffer.data() + begin, 0, length);
        continue;
      }
      fill_random(into.buffer.data() + begin, length, random);
      kept += length;
      if (!into.kept.empty() && into.kept.back().begin + into.kept.back().count == begin) {
        into.kept.back().count += length;
      } else {
        into.kept.push_back({begin, length});
      }
    }
  }
  into.density =
      static_cast<double>(kept) / (static_cast<double>(into.bytes) * static_cast<double>(slots));
}

void stamp(std::byte* message, size_t bytes, uint64_t number) {
  const uint64_t marked = number | 0x8080'8080'8080'8080U;
  std::memcpy(message, &marked, std::min(bytes, sizeof marked));
}

uint64_t wrong_bytes(const std::byte* got, std::byte* expected, size_t bytes, uint64_t number) {
  stamp(expected, bytes, number);
  if (std::memcmp(got, expected, bytes) == 0) {
    return 0;
  }
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) {
    wrong += got[i] != expected[i] ? 1 : 0;
  }
  return wrong;
}

PluginLibrary::PluginLibrary(void* library) {
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        ::dlsym(library, name));  // the library's own and those it needs
  };
  find(register_, "prunex_register_mask");
  find(unregister_, "prunex_unregister_mask");
  find(stats_, "prunex_net_stats");
  find(last_error_, "prunex_last_error");
}

bool PluginLibrary::stats(prunex_net_stats_t* out) const {
  *out = prunex_net_stats_t{};
  out->struct_size = sizeof *out;
  return stats_ != nullptr && stats_(out) == PRUNEX_SUCCESS;
}

Result<prunex_mask_t> PluginLibrary::publish(const P2pSlots& slots) const {
  if (register_ == nullptr || last_error_ == nullptr) {
    return fail(Code::unsupported,
                "--pattern mask needs PruneX's own plugin: this one has no prunex_register_mask");
  }
  const auto elements =
      static_cast<int64_t>(slots.stride / kElement * ((slots.buffer.size() - 32) / slots.stride));
  std::vector<prunex_range_t> ranges;
  for (const prunex_range_t& bytes : slots.kept) {
    ranges.push_back({bytes.begin / kElement, bytes.count / kElement});
  }
  prunex_tensor_t tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = PRUNEX_FLOAT32;
  tensor.ndim = 1;
  tensor.sizes = &elements;
  prunex_mask_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_RANGES;
  desc.contract = PRUNEX_LOSSLESS;
  desc.name = "bench p2p";
  desc.declared_kept = -1;
  desc.ranges = ranges.data();
  desc.num_ranges = ranges.size();
  prunex_mask_t mask = 0;
  if (register_(slots.buffer.data(), &tensor, &desc, &mask) != PRUNEX_SUCCESS) {
    return fail(Code::internal, strf("registering the mask: %s", last_error_()));
  }
  return mask;
}

void PluginLibrary::withdraw(prunex_mask_t mask) const {
  if (mask != 0 && unregister_ != nullptr) {
    (void)unregister_(mask);
  }
}

}  // namespace prunex::tools
