#include "cli/device_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice::cli {
namespace {

std::string rate(double bytes_per_s) {
  if (bytes_per_s >= 1e8) return fmt::format("{:.3g} GB/s", bytes_per_s / 1e9);
  return fmt::format("{:.3g} MB/s", bytes_per_s / 1e6);
}

std::string link(double pageable, double pinned) {
  if (pageable <= 0) return "takes no time";
  return rate(pageable) + (pinned > 0 ? fmt::format(", {} from pinned memory", rate(pinned)) : "");
}

std::string flops(double per_s) {
  if (per_s <= 0) return "takes no time";
  if (per_s >= 1e12) return fmt::format("{:.3g} TFLOP/s", per_s / 1e12);
  return fmt::format("{:.3g} GFLOP/s", per_s / 1e9);
}

std::string line(const char* what, const std::string& text) { return fmt::format("  {:<14}{}\n", what, text); }

std::string measured_lines(const DeviceMeasurement& m) {
  std::string out;
  out += line("largest buffer",
              fmt::format("  {} by asking{}", format_bytes(m.largest_buffer), m.largest_at_least ? ", all that was free" : ""));
  out += line("copies in",
              fmt::format("  {}; {:.2g} us each beside that", link(m.to_device, m.to_device_pinned), m.latency_s * 1e6));
  std::string back = link(m.from_device, m.from_device_pinned);
  if (const auto from = back.find("from pinned"); from != std::string::npos) back.replace(from, 4, "to");
  out += line("copies out", "  " + back);
  if (m.overlap >= 0) out += fmt::format("  copies overlap compute: {:.2f}\n", m.overlap);
  out += line("compute", fmt::format("  {} (f32 products)", flops(m.flops_per_s)));
  if (!m.raw_types.empty()) out += line("weights", fmt::format("  whole blocks of {}", fmt::join(m.raw_types, ", ")));
  if (!m.by_tensor_types.empty()) out += line("", fmt::format("  tensor by tensor: {}", fmt::join(m.by_tensor_types, ", ")));
  if (!m.unsupported_types.empty()) out += line("", fmt::format("  not supported: {}", fmt::join(m.unsupported_types, ", ")));
  return out;
}

}  // namespace

std::string device_text(const DeviceSummary& d) {
  std::string out = fmt::format("{}: {} ({}", d.name, d.description, d.kind);
  if (d.threads > 0) out += fmt::format(", {} thread{}", d.threads, d.threads == 1 ? "" : "s");
  if (!d.device_id.empty() && d.device_id != d.name) out += ", " + d.device_id;
  out += ")\n";
  out += line("memory", d.memory_known ? fmt::format("  {} free of {}{}", format_bytes(d.free), format_bytes(d.total),
                                                     d.host_memory ? ", which is the host's" : "")
                                       : fmt::format("  not known, give --device-budget: {}", d.memory_doubt));
  out += line("buffers", fmt::format("  of up to {} preferred, aligned to {} bytes", format_bytes(d.max_buffer), d.alignment));
  if (d.kind != "simulated") {
    std::vector<std::string> uses;
    if (d.maps_host_memory) uses.emplace_back("uses host memory in place");
    if (d.pinned) uses.emplace_back("pins host memory");
    if (d.async) uses.emplace_back("queues work");
    if (d.events) uses.emplace_back("has events");
    if (!uses.empty()) out += line("driver", fmt::format("  {}", fmt::join(uses, ", ")));
  }
  if (d.measured)
    out += measured_lines(*d.measured);
  else if (d.kind != "simulated")
    out += line("rates", "  not measured yet: sluice devices --measure");
  if (!d.note.empty()) out += line("note", "  " + d.note);
  return out;
}

std::string disk_text(const DiskRate& disk) {
  return fmt::format("{}: {}, {} read\n", disk.path, rate(disk.bytes_per_s), format_bytes(disk.bytes));
}

}  // namespace sluice::cli
