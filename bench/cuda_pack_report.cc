// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda_pack_report.h"

#include <algorithm>

#include "plugin/base/result.h"

namespace prunex::bench {
namespace {

// Sectors of ascending runs of elements; neighbours share one at most.
class Sectors {
 public:
  explicit Sectors(size_t element) : element_(element) {}
  void add(uint64_t begin, uint64_t count) {
    if (count == 0) {
      return;
    }
    const uint64_t first = begin * element_ / kSector;
    const uint64_t last = ((begin + count) * element_ - 1) / kSector;
    touched_ += last - first + (first == next_ - 1 ? 0 : 1);
    next_ = last + 1;
  }
  [[nodiscard]] uint64_t bytes() const { return touched_ * kSector; }

 private:
  size_t element_;
  uint64_t touched_ = 0, next_ = 0;  // next_ 0: none yet
};

void add_row(Sectors& sectors, const Pattern& pattern, uint64_t at) {
  for (uint64_t c = 0; c < pattern.columns; ++c) {
    if ((pattern.bits[c / 64] >> (c % 64) & 1) != 0) {
      sectors.add(at + c, 1);
    }
  }
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' || c == '\\'                  ? std::string{'\\', c}
           : static_cast<unsigned char>(c) < 0x20 ? " "
                                                  : std::string{c};
  }
  return out + "\"";
}

double rate(double bytes, double seconds) { return seconds > 0 ? bytes / seconds / 1e9 : 0; }

}  // namespace

uint64_t touched_bytes(const Layout& layout, size_t element) {
  Sectors sectors(element);
  for (const Segment& segment : layout.segments) {
    if (segment.mask == nullptr) {
      sectors.add(segment.offset, segment.count);
      continue;
    }
    for (const Panel& panel : segment.mask->panels) {
      for (uint64_t r = 0; r < panel.rows; ++r) {
        const uint64_t at = segment.offset + panel.offset + r * panel.row_stride;
        if (panel.pattern < 0) {
          sectors.add(at, panel.columns);
        } else {
          add_row(sectors, segment.mask->patterns[static_cast<size_t>(panel.pattern)], at);
        }
      }
    }
  }
  return sectors.bytes();
}

size_t sets_for(uint64_t touched, uint64_t cache, uint64_t footprint, uint64_t memory) {
  const uint64_t wanted = touched == 0 ? 2 : (kCaches * cache + touched - 1) / touched;
  const uint64_t fit = footprint == 0 ? wanted : memory / footprint;
  return static_cast<size_t>(std::max<uint64_t>(2, std::min(wanted, fit)));
}

const char* name_of(Step step) {
  switch (step) {
    case Step::pack:
      return "pack";
    case Step::audit:
      return "audit";
    case Step::unpack:
      return "unpack";
    case Step::compile:
      return "compile";
  }
  return "?";
}

double share(const Row& row) { return row.seconds > 0 ? row.copy_seconds / row.seconds : 0; }

double added(const Row& row) {
  const double pack = row.pack_bytes > 0 ? row.pack_seconds / row.pack_bytes : 0;
  return pack > 0 && row.bytes > 0 ? row.seconds / row.bytes / pack - 1 : 0;
}

Goal goal_of(const Row& row) {
  // What was not measured has reached nothing.
  const bool measured = row.seconds > 0;
  if (row.step == Step::compile) {
    return {true, measured && row.seconds <= kCompileSeconds,
            strf("<= %.0f us", kCompileSeconds * 1e6)};
  }
  if (row.step == Step::audit) {
    return {true, measured && row.pack_seconds > 0 && added(row) <= kAuditAdds,
            strf("<= +%.0f %%", kAuditAdds * 100)};
  }
  const double least = row.run >= kLongRun ? kLongRunShare : row.model ? kModelShare : 0;
  if (least == 0) {
    return {};
  }
  return {true, measured && share(row) >= least, strf("copy >= %.2f", least)};
}

std::string heading(const Device& device) {
  return strf("# %s, sm_%d, %d SMs, L2 %.1f MB; each step in turn on buffers of %llu x the L2\n",
              device.name.c_str(), device.arch, device.sms, static_cast<double>(device.cache) / 1e6,
              static_cast<unsigned long long>(kCaches)) +
         "# bytes: 32-byte sectors read + bytes written; copy: a device copy that moves as many\n"
         "# audit: time per byte against pack's\n" +
         strf("%-26s %-5s %-8s %5s %9s %9s %9s %9s %7s  %-13s %s\n", "subject", "type", "step",
              "bufs", "MB", "us", "GB/s", "copy GB/s", "of copy", "goal", "");
}

std::string line_of(const Row& row) {
  const Goal goal = goal_of(row);
  const std::string of = row.copy_seconds > 0 ? strf("%.3f", share(row)) : "-";
  const std::string copy =
      row.copy_seconds > 0 ? strf("%.1f", rate(row.bytes, row.copy_seconds)) : "-";
  const std::string more = row.step == Step::audit ? strf(" (%+.1f %%)", added(row) * 100) : "";
  return strf("%-26s %-5s %-8s %5zu %9.2f %9.2f %9.1f %9s %7s  %-13s %s%s", row.subject.c_str(),
              row.type.c_str(), name_of(row.step), row.sets, row.bytes / 1e6, row.seconds * 1e6,
              rate(row.bytes, row.seconds), copy.c_str(), of.c_str(),
              goal.set ? goal.text.c_str() : "-",
              !goal.set      ? ""
              : goal.reached ? "reached"
                             : "NOT REACHED",
              more.c_str());
}

int missed(const std::vector<Row>& rows) {
  return static_cast<int>(std::count_if(rows.begin(), rows.end(), [](const Row& row) {
    const Goal goal = goal_of(row);
    return goal.set && !goal.reached;
  }));
}

std::string summary(const std::vector<Row>& rows) {
  const auto set = static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [](const Row& row) { return goal_of(row).set; }));
  return strf("%d goals, %d reached, %d missed", set, set - missed(rows), missed(rows));
}

std::string json_of(const Device& device, const std::vector<Row>& rows) {
  std::string out = strf(
      "{\"schema\": \"prunex-cuda-pack\", \"version\": 1, \"device\": %s, \"arch\": %d, "
      "\"sms\": %d, \"l2_bytes\": %llu, \"quick\": %s, \"goals_missed\": %d, \"rows\": [",
      quoted(device.name).c_str(), device.arch, device.sms,
      static_cast<unsigned long long>(device.cache), device.quick ? "true" : "false", missed(rows));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    const Goal goal = goal_of(r);
    out += strf(
        "%s\n  {\"subject\": %s, \"dtype\": %s, \"step\": \"%s\", \"buffers\": %zu, "
        "\"bytes\": %.0f, \"us\": %.3f, \"gbytes_per_s\": %.2f, ",
        i == 0 ? "" : ",", quoted(r.subject).c_str(), quoted(r.type).c_str(), name_of(r.step),
        r.sets, r.bytes, r.seconds * 1e6, rate(r.bytes, r.seconds));
    out += r.copy_seconds > 0
               ? strf("\"copy_us\": %.3f, \"of_copy\": %.4f, ", r.copy_seconds * 1e6, share(r))
               : std::string("\"copy_us\": null, \"of_copy\": null, ");
    out += r.step == Step::audit
               ? strf("\"added\": %.4f, \"pack_us\": %.3f, ", added(r), r.pack_seconds * 1e6)
               : std::string();
    out += goal.set ? strf("\"goal\": %s, \"reached\": %s}", quoted(goal.text).c_str(),
                           goal.reached ? "true" : "false")
                    : std::string("\"goal\": null, \"reached\": null}");
  }
  return out + "\n]}\n";
}

}  // namespace prunex::bench
