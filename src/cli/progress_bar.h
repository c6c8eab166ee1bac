#pragma once

#include <string>

#include "sluice/engine.h"

namespace sluice::cli {

/// One line of progress, `columns` wide at most: stage, bar, count, time left, link rate. Pure.
std::string progress_line(const Progress& progress, int columns);

/// Draws the line on standard error, over and over at one place, and wipes it when it goes. Draws nothing where standard error
/// is no terminal. Threads: one.
class ProgressBar {
 public:
  explicit ProgressBar(bool enabled);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void show(const Progress& progress);

 private:
  bool enabled_;
  std::string shown_;
};

}  // namespace sluice::cli
