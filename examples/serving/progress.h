// A bar on a terminal, a line for every quarter in a pipe or a file.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace serving {

class Progress {
 public:
  Progress(std::string label, bool quiet) : label_(std::move(label)), quiet_(quiet) {
#if __has_include(<unistd.h>)
    terminal_ = isatty(STDOUT_FILENO) != 0;
#endif
  }

  void show(int done, int total, const std::string& note = {}) {
    if (quiet_ || total == 0) return;
    const int percent = int(100LL * done / total);
    if (terminal_) {
      const int filled = percent * kWidth / 100;
      const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
      std::printf("\r%-9s [%s] %3d %%  %-40s", label_.c_str(), bar.c_str(), percent, note.c_str());
      if (done == total) std::printf("\n");
    } else if (percent / 25 > shown_) {
      shown_ = percent / 25;
      std::printf("%-9s %3d %%  %s\n", label_.c_str(), percent, note.c_str());
    }
    std::fflush(stdout);
  }

 private:
  static constexpr int kWidth = 30;
  std::string label_;
  bool quiet_, terminal_ = false;
  int shown_ = 0;
};

}  // namespace serving
