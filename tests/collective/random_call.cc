// SPDX-License-Identifier: Apache-2.0
#include "tests/collective/random_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/half.h"
#include "plugin/base/digest.h"
#include "tests/kernels/mask_reference.h"

namespace prunex::test {

using collective::Contract;
using collective::Scope;

namespace {

uint64_t below(Random& random, uint64_t n) { return random() % n; }

template <class T>
void put(void* buffer, size_t i, T v) {
  std::memcpy(static_cast<std::byte*>(buffer) + i * sizeof v, &v, sizeof v);
}

template <class T>
T get(const void* buffer, size_t i) {
  T v{};
  std::memcpy(&v, static_cast<const std::byte*>(buffer) + i * sizeof v, sizeof v);
  return v;
}

}  // namespace

void store(DType type, void* buffer, size_t i, Value value) {
  switch (type) {
    case DType::f32:
      return put(buffer, i, static_cast<float>(value.real));
    case DType::f64:
      return put(buffer, i, value.real);
    case DType::f16:
      return put(buffer, i, float_to_half(static_cast<float>(value.real)));
    case DType::bf16:
      return put(buffer, i, float_to_bfloat(static_cast<float>(value.real)));
    case DType::f8e4m3:
      return put(buffer, i, float_to_e4m3(static_cast<float>(value.real)));
    case DType::f8e5m2:
      return put(buffer, i, float_to_e5m2(static_cast<float>(value.real)));
    case DType::i8:
      return put(buffer, i, static_cast<int8_t>(value.integer));
    case DType::u8:
      return put(buffer, i, static_cast<uint8_t>(value.integer));
    case DType::i32:
      return put(buffer, i, static_cast<int32_t>(value.integer));
    case DType::i64:
      return put(buffer, i, value.integer);
    case DType::u32:
      return put(buffer, i, static_cast<uint32_t>(value.integer));
    case DType::u64:
      return put(buffer, i, static_cast<uint64_t>(value.integer));
  }
}

Value load(DType type, const void* buffer, size_t i) {
  switch (type) {
    case DType::f32:
      return {static_cast<double>(get<float>(buffer, i)), 0};
    case DType::f64:
      return {get<double>(buffer, i), 0};
    case DType::f16:
      return {static_cast<double>(half_to_float(get<uint16_t>(buffer, i))), 0};
    case DType::bf16:
      return {static_cast<double>(bfloat_to_float(get<uint16_t>(buffer, i))), 0};
    case DType::f8e4m3:
      return {static_cast<double>(e4m3_to_float(get<uint8_t>(buffer, i))), 0};
    case DType::f8e5m2:
      return {static_cast<double>(e5m2_to_float(get<uint8_t>(buffer, i))), 0};
    case DType::i8:
      return {0, get<int8_t>(buffer, i)};
    case DType::u8:
      return {0, get<uint8_t>(buffer, i)};
    case DType::i32:
      return {0, get<int32_t>(buffer, i)};
    case DType::i64:
      return {0, get<int64_t>(buffer, i)};
    case DType::u32:
      return {0, get<uint32_t>(buffer, i)};
    case DType::u64:
      return {0, static_cast<int64_t>(get<uint64_t>(buffer, i))};
  }
  return {};
}

RandomLayout random_layout(Random& random, uint64_t limit, int contract) {
  std::vector<Segment> segments;
  std::vector<Contract> by_offset;
  RandomLayout out;
  const uint64_t pieces = 1 + below(random, 6);
  for (uint64_t p = 0; p < pieces; ++p) {
    const uint64_t gap = below(random, 3) == 0 ? below(random, 8) : 0;
    out.fate.resize(out.fate.size() + gap, Fate::kept);
    Segment s;
    s.offset = out.fate.size();
    s.name = "parameter" + std::to_string(p);
    if (below(random, 4) == 0) {
      s.count = below(random, 1 + limit / pieces);  // dense, sometimes empty
      out.fate.resize(out.fate.size() + s.count, Fate::kept);
      segments.push_back(std::move(s));
      continue;
    }
    auto owned =
        testing::random_spec(random, static_cast<MaskKind>(below(random, 5)), 1 + limit / pieces);
    const MaskSpec& spec = owned.get();
    auto compiled = compile(spec);
    EXPECT_TRUE(compiled) << compiled.error().text;
    const std::vector<uint8_t> keep = testing::reference_keeps(spec);
    const auto promise =
        contract >= 0 ? static_cast<Contract>(contract) : static_cast<Contract>(below(random, 3));
    s.count = keep.size();
    s.mask = std::make_shared<const CompiledMask>(std::move(*compiled));
    for (const uint8_t k : keep) {
      out.fate.push_back(k != 0                         ? Fate::kept
                         : promise == Contract::project ? Fate::projected
                                                        : Fate::promised);
    }
    by_offset.resize(s.offset + 1, Contract::lossless);
    if (s.count > 0) {
      by_offset[s.offset] = promise;
    }
    segments.push_back(std::move(s));
  }
  std::shuffle(segments.begin(), segments.end(), random);
  auto layout = make_layout(std::move(segments), out.fate.size());
  EXPECT_TRUE(layout) << layout.error().text;
  std::vector<Contract> contracts;
  for (const Segment& s : layout->segments) {
    contracts.push_back(s.mask != nullptr ? by_offset[s.offset] : Contract::lossless);
  }
  out.masked = std::make_shared<const collective::MaskedLayout>(
      collective::make_masked_layout(std::move(*layout), std::move(contracts)));
  return out;
}

RandomLayout random_mask(Random& random, uint64_t count, double keep, Contract contract,
                         const std::string& name) {
  RandomLayout out;
  std::vector<uint8_t> cells(count);
  for (uint8_t& c : cells) {
    c = static_cast<double>(below(random, 1'000'000)) < keep * 1e6 ? 1 : 0;
    out.fate.push_back(c != 0                          ? Fate::kept
                       : contract == Contract::project ? Fate::projected
                                                       : Fate::promised);
  }
  MaskSpec spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 1;
  spec.sizes[0] = static_cast<int64_t>(count);
  spec.cells = cells;
  auto compiled = compile(spec);
  EXPECT_TRUE(compiled) << compiled.error().text;
  auto mask = std::make_shared<const CompiledMask>(std::move(*compiled));
  auto layout = make_layout({Segment{0, count, mask, name, false}}, count);
  EXPECT_TRUE(layout) << layout.error().text;
  out.masked = std::make_shared<const collective::MaskedLayout>(
      collective::make_masked_layout(std::move(*layout), {contract}));
  return out;
}

std::string RandomCall::text() const {
  constexpr const char* kScopes[] = {"world", "node", "leaders"};
  const Layout* l = layout.masked ? &layout.masked->layout : nullptr;
  return strf("%s of %llu x %s over %s%s%s, shift %zu, %zu segments keep %llu", name_of(op),
              static_cast<unsigned long long>(count), name_of(type),
              kScopes[static_cast<size_t>(scope)], in_place ? ", in place" : "",
              request ? ", by request" : "", shift, l != nullptr ? l->segments.size() : 0,
              static_cast<unsigned long long>(l != nullptr ? l->kept : count));
}

namespace {

Value kept_value(const RandomCall& call, Random& random) {
  const uint64_t bits = random();
  int64_t v = static_cast<int64_t>(bits % 17) - 8;
  if (call.op == Op::prod) {
    constexpr int64_t kFactors[] = {1, -1, 2, -2, 1, 1, -1, 0};
    v = kFactors[bits % 8];
  }
  if (call.type == DType::u8 || call.type == DType::u32 || call.type == DType::u64) {
    v = std::abs(v);
  }
  return {static_cast<double>(v), v};
}

Value projected_value(Random& random) {
  const uint64_t bits = random();
  switch (bits % 8) {
    case 0:
      return {std::numeric_limits<double>::quiet_NaN(), 1};
    case 1:
      return {std::numeric_limits<double>::infinity(), 2};
    case 2:
      return {-std::numeric_limits<double>::infinity(), 3};
    default:
      return {static_cast<double>(bits % 1000), static_cast<int64_t>(bits % 1000)};
  }
}

}  // namespace

void fill_inputs(RandomCall& call, Random& random, size_t ranks) {
  call.layout.fate.resize(call.count, Fate::kept);
  call.inputs.assign(ranks, std::vector<std::byte>(call.count * size_of(call.type)));
  for (std::vector<std::byte>& input : call.inputs) {
    for (size_t i = 0; i < call.count; ++i) {
      const Fate fate = call.layout.fate[i];
      store(call.type, input.data(), i,
            fate == Fate::kept       ? kept_value(call, random)
            : fate == Fate::promised ? Value{random() % 2 == 0 ? 0.0 : -0.0, 0}
                                     : projected_value(random));
    }
  }
}

namespace {

Value combine(Op op, Value a, Value b) {
  switch (op) {
    case Op::sum:
    case Op::avg:
      return {a.real + b.real, a.integer + b.integer};
    case Op::prod:
      return {a.real * b.real, a.integer * b.integer};
    case Op::max:
      return {std::max(a.real, b.real), std::max(a.integer, b.integer)};
    case Op::min:
      return {std::min(a.real, b.real), std::min(a.integer, b.integer)};
  }
  return {};
}

}  // namespace

std::vector<std::byte> expected(const RandomCall& call, const std::vector<int>& contributors) {
  std::vector<std::byte> out(call.count * size_of(call.type));
  for (size_t i = 0; i < call.count; ++i) {
    if (call.layout.fate[i] != Fate::kept) {
      continue;  // +0
    }
    Value v = load(call.type, call.inputs[static_cast<size_t>(contributors[0])].data(), i);
    for (size_t k = 1; k < contributors.size(); ++k) {
      v = combine(call.op, v,
                  load(call.type, call.inputs[static_cast<size_t>(contributors[k])].data(), i));
    }
    if (call.op == Op::avg) {
      v.real /= static_cast<double>(contributors.size());
      v.integer /= static_cast<int64_t>(contributors.size());
    }
    store(call.type, out.data(), i, v);
  }
  return out;
}

std::string compare(const RandomCall& call, const std::vector<std::byte>& want,
                    const std::byte* got, bool compact) {
  if (want.empty() || std::memcmp(want.data(), got, want.size()) == 0) {
    return {};
  }
  const size_t bytes = size_of(call.type);
  for (size_t i = 0; i < call.count; ++i) {
    const Value a = load(call.type, want.data(), i), b = load(call.type, got, i);
    const Fate fate = call.layout.fate[i];
    const bool exact = fate == Fate::projected || (fate == Fate::promised && compact);
    const bool same = exact ? std::memcmp(want.data() + i * bytes, got + i * bytes, bytes) == 0
                            : a.real == b.real && a.integer == b.integer;
    if (!same) {
      return strf("element %zu (%s): expected %g %lld, got %g %lld", i,
                  fate == Fate::kept        ? "kept"
                  : fate == Fate::projected ? "projected"
                                            : "promised zero",
                  a.real, static_cast<long long>(a.integer), b.real,
                  static_cast<long long>(b.integer));
    }
  }
  return {};
}

std::vector<int> contributors_of(const topo::World& world, int rank, Scope scope) {
  if (scope == Scope::leaders) {
    std::vector<int> leaders;
    for (const topo::Node& node : world.nodes) {
      leaders.push_back(node.leaders[0].rank);
    }
    return leaders;
  }
  if (scope == Scope::node) {
    return world.nodes[static_cast<size_t>(world.node_of[static_cast<size_t>(rank)])].ranks;
  }
  std::vector<int> all(static_cast<size_t>(world.size));
  for (size_t r = 0; r < all.size(); ++r) {
    all[r] = static_cast<int>(r);
  }
  return all;
}

namespace {

// A buffer of any alignment with guard bytes on both sides.
class Guarded {
 public:
  static constexpr size_t kGuard = 64;
  Guarded(size_t shift, size_t bytes) : bytes_(bytes), at_(kGuard + shift) {
    memory_.assign(at_ + bytes + kGuard, std::byte{0xA5});
  }
  [[nodiscard]] std::byte* data() { return memory_.data() + at_; }
  [[nodiscard]] bool intact() const {
    const auto is_guard = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(at_),
                       is_guard) &&
           std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes_), memory_.end(),
                       is_guard);
  }

 private:
  size_t bytes_, at_;
  std::vector<std::byte> memory_;
};

// Sums that are worth it are compacted, whatever the fixed table's exact limits are.
bool must_compact(const RandomCall& call) {
  const bool additive = call.op == Op::sum || call.op == Op::avg;
  return call.layout.masked != nullptr && additive && call.count * size_of(call.type) > 4096 &&
         call.layout.masked->layout.kept < call.count / 10 * 9;
}

}  // namespace

std::string perform(collective::Comm& comm, const RandomCall& call, uint64_t* digest) {
  const std::vector<std::byte>& input = call.inputs[static_cast<size_t>(comm.rank())];
  const size_t shift = call.shift * size_of(call.type);
  Guarded send(shift, input.size());
  Guarded recv(3 * shift + size_of(call.type), input.size());
  std::copy(input.begin(), input.end(), send.data());
  const std::vector<int> contributors = contributors_of(comm.world(), comm.rank(), call.scope);
  const bool contributes =
      std::find(contributors.begin(), contributors.end(), comm.rank()) != contributors.end();
  collective::CallSpec spec;
  spec.send = contributes || call.in_place ? send.data() : nullptr;
  spec.recv = call.in_place ? send.data() : recv.data();
  spec.count = call.count;
  spec.type = call.type;
  spec.op = call.op;
  spec.scope = call.scope;
  spec.masked = call.layout.masked;
  const uint64_t compact_before = comm.stats().calls_compact;
  const auto result = call.request ? comm.submit(spec)->wait() : comm.all_reduce(spec);
  if (!result) {
    return "failed: " + result.error().text;
  }
  if (!send.intact() || !recv.intact()) {
    return "wrote outside the buffer";
  }
  if (!call.in_place && !std::equal(input.begin(), input.end(), send.data())) {
    return "the send buffer was changed";
  }
  const std::byte* got = static_cast<const std::byte*>(spec.recv);
  *digest = digest_bytes(got, input.size());
  const bool compact = must_compact(call);
  if (compact && comm.stats().calls_compact != compact_before + 1) {
    return "went dense";
  }
  return compare(call, expected(call, contributors), got, compact);
}

}  // namespace prunex::test
