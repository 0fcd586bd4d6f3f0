// SPDX-License-Identifier: Apache-2.0
// Random all-reduces with what they must give, computed element by element without any of the code
// under test but the half-precision conversions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plugin/collective/comm.h"
#include "plugin/collective/masked_layout.h"

namespace prunex::test {

using Random = std::mt19937_64;

// What becomes of an element.
enum class Fate : uint8_t { kept = 0, promised, projected };  // the last two are dropped

struct RandomLayout {
  std::shared_ptr<const collective::MaskedLayout> masked;
  std::vector<Fate> fate;  // by element
};

// Segments of all mask kinds, dense ones, empty ones and gaps, unaligned, in any order; about
// `limit` elements. contract: -1: mixed.
[[nodiscard]] RandomLayout random_layout(Random& random, uint64_t limit, int contract = -1);

// One mask over the whole buffer, element by element.
[[nodiscard]] RandomLayout random_mask(Random& random, uint64_t count, double keep,
                                       collective::Contract contract,
                                       const std::string& name = "weight");

// A number that every type here represents, as sums, products and quotients of nine of them do.
struct Value {
  double real = 0;
  int64_t integer = 0;  // for integer types
};

// Element `i` of a buffer of `type`.
void store(DType type, void* buffer, size_t i, Value value);
[[nodiscard]] Value load(DType type, const void* buffer, size_t i);

struct RandomCall {
  uint64_t count = 0;
  DType type = DType::f32;
  Op op = Op::sum;
  collective::Scope scope = collective::Scope::world;
  bool in_place = false, request = false;
  size_t shift = 0;                            // elements between an aligned address and the buffer
  RandomLayout layout;                         // no masked: dense
  std::vector<std::vector<std::byte>> inputs;  // by rank
  [[nodiscard]] std::string text() const;
};

// layout.masked, count, type, op and scope are given; fills the inputs. Kept elements are integers,
// promised ones are zeros of either sign, projected ones anything.
void fill_inputs(RandomCall& call, Random& random, size_t ranks);

// The result, encoded, when `contributors` take part.
[[nodiscard]] std::vector<std::byte> expected(const RandomCall& call,
                                              const std::vector<int>& contributors);

// Empty: `got` is right. Zeros may have either sign but in places that must be +0.
[[nodiscard]] std::string compare(const RandomCall& call, const std::vector<std::byte>& want,
                                  const std::byte* got, bool compact);

// Runs the call on this rank with guard bytes around its buffers and compares everything.
// digest: of the output. Empty: all is well.
[[nodiscard]] std::string perform(collective::Comm& comm, const RandomCall& call, uint64_t* digest);

// Whose buffers are added up on behalf of `rank`.
[[nodiscard]] std::vector<int> contributors_of(const topo::World& world, int rank,
                                               collective::Scope scope);

}  // namespace prunex::test
