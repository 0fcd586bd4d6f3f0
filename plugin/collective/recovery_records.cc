// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/recovery_records.h"

#include <algorithm>
#include <bit>

#include "plugin/base/dtype.h"
#include "plugin/base/text.h"
#include "plugin/base/wire.h"
#include "plugin/collective/call.h"

namespace prunex::collective {
namespace {

constexpr size_t kNameLimit = 256;
constexpr size_t kSegmentLimit = 1 << 20;

const char* memory_name(const CallRecord& r) { return r.on_device != 0 ? "device" : "host"; }

std::string call_name(const CallRecord& r) {
  const auto c = static_cast<Collective>(r.collective);
  return c == Collective::broadcast ? strf("broadcast from root %u", r.root)
                                    : std::string(name_of(c));
}

}  // namespace

std::string write(const CallRecord& r) {
  WireAppender w;
  w.put(r.end);
  w.put(r.sequence);
  w.put(r.count);
  w.put(r.extra);
  w.put(r.root);
  w.put(r.collective);
  w.put(r.op);
  w.put(r.dtype);
  w.put(r.scope);
  w.put(r.on_mismatch);
  w.put(r.audited);
  w.put(r.on_device);
  w.put(static_cast<uint32_t>(r.segments.size()));
  for (const SegmentRecord& s : r.segments) {
    w.put(s.offset);
    w.put(s.count);
    w.put(s.mask);
    w.put(s.contract);
    w.put_string(std::string_view(s.name).substr(0, kNameLimit));
  }
  return w.take();
}

Result<CallRecord> read_call(std::string_view bytes) {
  WireReader r(bytes);
  CallRecord out;
  out.end = r.get<uint64_t>();
  out.sequence = r.get<uint64_t>();
  out.count = r.get<uint64_t>();
  out.extra = r.get<uint64_t>();
  out.root = r.get<uint32_t>();
  out.collective = r.get<uint8_t>();
  out.op = r.get<uint8_t>();
  out.dtype = r.get<uint8_t>();
  out.scope = r.get<uint8_t>();
  out.on_mismatch = r.get<uint8_t>();
  out.audited = r.get<uint8_t>();
  out.on_device = r.get<uint8_t>();
  const auto n = r.get<uint32_t>();
  for (uint32_t i = 0; r.ok() && i < n && i < kSegmentLimit; ++i) {
    SegmentRecord s;
    s.offset = r.get<uint64_t>();
    s.count = r.get<uint64_t>();
    s.mask = r.get<uint64_t>();
    s.contract = r.get<uint8_t>();
    s.name = r.get_string(kNameLimit);
    out.segments.push_back(std::move(s));
  }
  if (!r.ok() || r.left() != 0 || out.op >= kNumOps || out.dtype >= kNumDTypes || out.scope > 2 ||
      out.collective >= kNumCollectives) {
    return fail(Code::internal, strf("a call record of %zu bytes cannot be read", bytes.size()));
  }
  return out;
}

std::string name_of_segment(const std::string& name, size_t index) {
  return name.empty() ? strf("segment %zu", index) : strf("'%s'", name.c_str());
}

std::string describe(const Offence& o) {
  const bool none_finite = o.nonfinite == o.nonzero;
  std::string text =
      counted(o.nonzero, none_finite ? "dropped element" : "non-zero dropped element");
  if (none_finite) {
    text += o.nonzero == 1 ? " that is not finite" : " that are not finite";
  } else if (o.nonfinite > 0) {
    text += strf(" (%llu of them not finite)", static_cast<unsigned long long>(o.nonfinite));
  }
  text += strf(", %sat element %llu of the buffer", o.nonzero == 1 ? "" : "the first ",
               static_cast<unsigned long long>(o.element));
  // Infinities have no energy that could be compared.
  return none_finite || o.ratio < 0 ? text
                                    : text + strf(", with %.3g of the %senergy", o.ratio,
                                                  o.nonfinite > 0 ? "finite " : "");
}

Difference compare(int a, const CallRecord& x, int b, const CallRecord& y) {
  constexpr const char* kScopes[] = {"world", "node", "leaders"};
  const auto name = [](const auto& r, const char* what) {
    return what[0] == 'o' ? name_of(static_cast<Op>(r.op)) : name_of(static_cast<DType>(r.dtype));
  };
  if (x.collective != y.collective || x.root != y.root) {
    return {strf("rank %d calls %s, rank %d calls %s", a, call_name(x).c_str(), b,
                 call_name(y).c_str()),
            false};
  }
  if (x.on_device != y.on_device) {
    return {strf("rank %d passes buffers in %s memory, rank %d in %s memory: all ranks pass device "
                 "memory, or all host memory (pinned memory is the host's, managed memory the "
                 "device's)",
                 a, memory_name(x), b, memory_name(y)),
            false};
  }
  if (x.count != y.count) {
    return {strf("rank %d passes %s, rank %d passes %llu", a, counted(x.count, "element").c_str(),
                 b, static_cast<unsigned long long>(y.count)),
            false};
  }
  if (x.dtype != y.dtype) {
    return {strf("rank %d passes %s, rank %d passes %s", a, name(x, "dtype"), b, name(y, "dtype")),
            false};
  }
  if (x.op != y.op || x.scope != y.scope) {
    return {strf("rank %d calls %s over %s, rank %d calls %s over %s", a, name(x, "op"),
                 kScopes[x.scope], b, name(y, "op"), kScopes[y.scope]),
            false};
  }
  if (x.extra != y.extra) {
    return {strf("rank %d and rank %d differ in the arguments of the call (budgets, incumbents, "
                 "hysteresis or kind), or one of them was refused its own, a score that is not "
                 "finite, say: its error tells",
                 a, b),
            false};
  }
  for (size_t i = 0; i < std::min(x.segments.size(), y.segments.size()); ++i) {
    const SegmentRecord& s = x.segments[i];
    const SegmentRecord& t = y.segments[i];
    // A rank without a layout has one dense segment: that is a difference in masks, not in data.
    if (s.offset == t.offset && s.count == t.count && s.mask == t.mask &&
        s.contract == t.contract) {
      continue;
    }
    const std::string label = name_of_segment(s.name.empty() ? t.name : s.name, i);
    return {strf("rank %d and rank %d have different masks or layouts at parameter %s (elements "
                 "%llu+%llu mask %016llx, elements %llu+%llu mask %016llx)",
                 a, b, label.c_str(), static_cast<unsigned long long>(s.offset),
                 static_cast<unsigned long long>(s.count), static_cast<unsigned long long>(s.mask),
                 static_cast<unsigned long long>(t.offset),
                 static_cast<unsigned long long>(t.count), static_cast<unsigned long long>(t.mask)),
            true};
  }
  if (x.segments.size() != y.segments.size()) {
    return {strf("rank %d has %zu segments in its layout, rank %d has %zu", a, x.segments.size(), b,
                 y.segments.size()),
            true};
  }
  return {};
}

std::string write(const std::vector<Offence>& offences) {
  WireAppender w;
  w.put(static_cast<uint32_t>(offences.size()));
  for (const Offence& o : offences) {
    w.put(o.segment);
    w.put(o.element);
    w.put(o.nonzero);
    w.put(o.nonfinite);
    w.put(std::bit_cast<uint64_t>(o.ratio));
  }
  return w.take();
}

Result<std::vector<Offence>> read_offences(std::string_view bytes) {
  WireReader r(bytes);
  std::vector<Offence> out;
  const auto n = r.get<uint32_t>();
  for (uint32_t i = 0; r.ok() && i < n && i < kSegmentLimit; ++i) {
    Offence o;
    o.segment = r.get<uint32_t>();
    o.element = r.get<uint64_t>();
    o.nonzero = r.get<uint64_t>();
    o.nonfinite = r.get<uint64_t>();
    o.ratio = std::bit_cast<double>(r.get<uint64_t>());
    out.push_back(o);
  }
  if (!r.ok() || r.left() != 0) {
    return fail(Code::internal, strf("an audit record of %zu bytes cannot be read", bytes.size()));
  }
  return out;
}

}  // namespace prunex::collective
