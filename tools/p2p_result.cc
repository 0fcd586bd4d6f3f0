// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_result.h"

#include <algorithm>
#include <bit>

#include "plugin/base/wire.h"

namespace prunex::tools {

std::string encode(const EndResult& r) {
  WireAppender out;
  for (const uint64_t v : {r.sent, r.received, r.warmup_done, r.errors, uint64_t{r.has_kinds},
                           r.pack_ns, r.unpack_ns}) {
    out.put(v);
  }
  for (const double v :
       {r.send_seconds, r.receive_seconds, r.density, r.send_peak, r.receive_peak}) {
    out.put(std::bit_cast<uint64_t>(v));
  }
  for (size_t i = 0; i < 3; ++i) {
    out.put(r.kinds.messages[i]);
    out.put(r.kinds.logical[i]);
    out.put(r.kinds.wire[i]);
  }
  r.time.encode(out);
  return out.take();
}

bool decode(std::string_view bytes, EndResult& r) {
  WireReader in(bytes);
  r.sent = in.get<uint64_t>();
  r.received = in.get<uint64_t>();
  r.warmup_done = in.get<uint64_t>();
  r.errors = in.get<uint64_t>();
  r.has_kinds = in.get<uint64_t>() != 0;
  r.pack_ns = in.get<uint64_t>();
  r.unpack_ns = in.get<uint64_t>();
  for (double* v :
       {&r.send_seconds, &r.receive_seconds, &r.density, &r.send_peak, &r.receive_peak}) {
    *v = std::bit_cast<double>(in.get<uint64_t>());
  }
  for (size_t i = 0; i < 3; ++i) {
    r.kinds.messages[i] = in.get<uint64_t>();
    r.kinds.logical[i] = in.get<uint64_t>();
    r.kinds.wire[i] = in.get<uint64_t>();
  }
  return r.time.decode(in) && in.left() == 0;
}

P2pPart part_of(const P2pSpec& spec, const EndResult& sender, const EndResult& receiver,
                uint64_t bytes, bool sender_clock) {
  P2pPart p;
  p.iterations = receiver.received;
  p.warmup_done = sender.warmup_done;
  p.bytes = receiver.received * bytes;
  // Whoever sends first sees whole round trips, the other one half of them less.
  p.seconds = spec.latency   ? sender.receive_seconds
              : sender_clock ? sender.send_seconds
                             : receiver.receive_seconds;
  p.average_MBps = p.seconds > 0 ? static_cast<double>(p.bytes) / p.seconds * 1e-6 : 0;
  p.peak_MBps =
      (sender_clock ? sender.send_peak : receiver.receive_peak) * static_cast<double>(bytes) * 1e-6;
  p.time = sender.time;
  if (sender.has_kinds) {
    p.kinds = sender.kinds;
  }
  p.pack_ns = sender.pack_ns;
  p.unpack_ns = receiver.unpack_ns;
  p.density = sender.density;
  if (spec.check) {
    p.errors = receiver.errors;
  }
  return p;
}

P2pPart sum_of(const P2pPart& a, const P2pPart& b) {
  P2pPart s = a;
  s.iterations += b.iterations;
  s.warmup_done += b.warmup_done;
  s.bytes += b.bytes;
  s.seconds = std::max(a.seconds, b.seconds);
  s.average_MBps = s.seconds > 0 ? static_cast<double>(s.bytes) / s.seconds * 1e-6 : 0;
  s.peak_MBps += b.peak_MBps;
  s.time.add(b.time);
  if (s.kinds && b.kinds) {
    for (size_t i = 0; i < 3; ++i) {
      s.kinds->messages[i] += b.kinds->messages[i];
      s.kinds->logical[i] += b.kinds->logical[i];
      s.kinds->wire[i] += b.kinds->wire[i];
    }
  }
  s.pack_ns += b.pack_ns;
  s.unpack_ns += b.unpack_ns;
  s.density = (a.density + b.density) / 2;
  if (s.errors && b.errors) {
    *s.errors += *b.errors;
  }
  return s;
}

}  // namespace prunex::tools
