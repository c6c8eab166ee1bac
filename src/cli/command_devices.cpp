#include <fmt/format.h>

#include <cstdio>

#include "base/terminal.h"
#include "cli/cache_folder.h"
#include "cli/commands.h"
#include "cli/device_json.h"
#include "cli/device_text.h"
#include "cli/interrupt.h"
#include "cli/report_json.h"

namespace sluice::cli {
namespace {

/// What is being measured, on standard error: over and over at one place on a terminal, else a line for each device.
class MeasuringLine {
 public:
  MeasuringLine() = default;
  MeasuringLine(const MeasuringLine&) = delete;
  MeasuringLine& operator=(const MeasuringLine&) = delete;
  ~MeasuringLine() { wipe(); }
  void show(const std::string& device, const std::string& doing) {
    if (!terminal_) {
      if (device != device_) fmt::print(stderr, "measuring {}, which takes seconds\n", device);
    } else {
      wipe();
      shown_ = fmt::format("measuring {}: {}", device, doing);
      fmt::print(stderr, "{}", shown_);
      std::fflush(stderr);
    }
    device_ = device;
  }

 private:
  void wipe() {
    if (!shown_.empty()) fmt::print(stderr, "\r{:{}}\r", "", shown_.size());
    shown_.clear();
  }
  const bool terminal_ = stderr_is_terminal();
  std::string device_, shown_;
};

}  // namespace

Status show_devices(const DevicesCommand& command) {
  const CancelToken cancel;
  cancel_on_interrupt(cancel);
  std::vector<DeviceSummary> list;
  std::optional<DiskRate> disk;
  {
    MeasuringLine measuring;
    DevicesOptions options;
    options.device = command.device;
    options.measure = command.measure;
    options.cache_folder = cache_folder();
    options.progress = [&](const std::string& device, const std::string& doing) { measuring.show(device, doing); };
    options.log = LogSink([](LogLevel, std::string_view text) { fmt::print(stderr, "sluice: {}\n", text); }, LogLevel::warning);
    options.cancel = cancel;
    SLUICE_ASSIGN(list, devices(options));
    if (!command.file.empty()) {
      measuring.show(command.file, "reading");
      SLUICE_ASSIGN(disk, measure_disk(command.file));
    }
  }
  if (command.json) {
    auto array = nlohmann::json::array();
    for (const auto& device : list) array.push_back(to_json(device));
    fmt::print("{}\n", dump({{"devices", std::move(array)}, {"disk", disk ? to_json(*disk) : nlohmann::json(nullptr)}}));
    return {};
  }
  for (std::size_t i = 0; i < list.size(); ++i) fmt::print("{}{}", i == 0 ? "" : "\n", device_text(list[i]));
  if (disk) fmt::print("\n{}", disk_text(*disk));
  return {};
}

}  // namespace sluice::cli
