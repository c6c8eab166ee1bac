#include "cli/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/terminal.h"

namespace sluice::cli {
namespace {

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

}  // namespace

std::string progress_line(const Progress& progress, int columns) {
  const int total = std::max(progress.total, 0), done = std::clamp(progress.done, 0, total);
  std::string tail = fmt::format(" {}/{}", done, total);
  if (progress.eta_s > 0) tail += fmt::format(", {} left", duration(progress.eta_s));
  if (progress.link_bytes_per_s >= 1)
    tail += fmt::format(", link {}/s", format_bytes(static_cast<Bytes>(progress.link_bytes_per_s)));
  const std::string head = fmt::format("{:<8}", progress.stage);
  const int room = columns - 1 - static_cast<int>(head.size() + tail.size()) - 2;
  std::string line = head;
  if (room >= 4) {
    const int width = std::min(room, 40);
    const int full = std::clamp(static_cast<int>(width * progress.fraction), 0, width);
    line +=
        "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - full), '-') + "]";
  }
  line += tail;
  if (static_cast<int>(line.size()) > columns - 1) line.resize(static_cast<std::size_t>(std::max(columns - 1, 0)));
  return line;
}

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && stderr_is_terminal()) {}

ProgressBar::~ProgressBar() {
  if (!shown_.empty()) std::fputs("\r\033[K", stderr);
}

void ProgressBar::show(const Progress& progress) {
  if (!enabled_) return;
  auto line = progress_line(progress, terminal_columns());
  if (line == shown_) return;
  fmt::print(stderr, "\r{}\033[K", line);
  std::fflush(stderr);
  shown_ = std::move(line);
}

}  // namespace sluice::cli
