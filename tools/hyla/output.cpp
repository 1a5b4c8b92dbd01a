#include "output.h"

#include <fmt/core.h>
#include <hyla/error.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace hyla::tool {
namespace {

bool coloured(std::FILE* out) {
  return isatty(fileno(out)) != 0 && std::getenv("NO_COLOR") == nullptr;
}

constexpr std::size_t kBarWidth = 24;

// Width of the text as shown: colour codes take no room.
std::size_t shown_width(const std::string& text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else {
      ++width;
    }
  }
  return width;
}

int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 40) return 80;
  return size.ws_col;
}

}  // namespace

Table::Table(std::FILE* out, std::vector<Column> columns)
    : out_(out), columns_(std::move(columns)) {
  for (Column& column : columns_) column.width = std::max(column.width, column.title.size());
}

void Table::row(const std::vector<std::string>& cells) {
  const auto line = [&](const std::vector<std::string>& texts) {
    std::string result;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& text = i < texts.size() ? texts[i] : std::string();
      const std::size_t width = shown_width(text);
      const std::string pad(columns_[i].width > width ? columns_[i].width - width : 0, ' ');
      if (i > 0) result += "  ";
      result += columns_[i].right ? pad + text : text + pad;
    }
    while (!result.empty() && result.back() == ' ') result.pop_back();
    fmt::print(out_, "{}\n", result);
  };
  if (!header_done_) {
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    line(titles);
    header_done_ = true;
  }
  line(cells);
  std::fflush(out_);
}

Progress::Progress(std::size_t total)
    : total_(std::max<std::size_t>(total, 1)), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::show(const std::string& text) {
  if (!terminal_) return;
  const std::size_t filled = std::min(kBarWidth, done_ * kBarWidth / total_);
  std::string line = fmt::format("[{}{}] {}/{} {}", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), done_, total_, text);
  line.resize(std::min(line.size(), static_cast<std::size_t>(terminal_width() - 1)));
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!terminal_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

std::string good(std::FILE* out, const std::string& text) {
  return coloured(out) ? "\033[32m" + text + "\033[0m" : text;
}

std::string bad(std::FILE* out, const std::string& text) {
  return coloured(out) ? "\033[31m" + text + "\033[0m" : text;
}

void check_writable(const std::string& option, const std::string& path) {
  if (path.empty() || path == "-") return;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  if (!fs::is_directory(folder, error)) {
    throw InvalidArgument(option, "a file in a folder that exists", path);
  }
  if (fs::is_directory(path, error)) throw InvalidArgument(option, "a file", "the folder " + path);
  const bool exists = fs::exists(path, error);
  if (access((exists ? fs::path(path) : folder).c_str(), W_OK) != 0) {
    throw InvalidArgument(option, "a file that can be written", path);
  }
}

void write_text(const std::string& option, const std::string& path, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto write = [&](const std::string& to) {
    std::ofstream file(to, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    return static_cast<bool>(file.flush());
  };
  // Devices and pipes cannot be renamed onto.
  const bool special = fs::exists(path, error) && !fs::is_regular_file(path, error);
  const std::string temporary = special ? path : path + ".part";
  bool written = write(temporary);
  if (written && !special) {
    fs::rename(temporary, path, error);
    written = !error;
  }
  if (!written) {
    if (!special) fs::remove(temporary, error);
    throw InvalidArgument(option, "a file that can be written", path);
  }
}

void write_json(const std::string& path, const nlohmann::json& value) {
  if (path.empty()) return;
  const std::string text = value.dump(1) + "\n";
  if (path == "-") {
    fmt::print("{}", text);
    std::fflush(stdout);
  } else {
    write_text("--json", path, text);
  }
}

std::FILE* table_stream(const std::string& json_path) { return json_path == "-" ? stderr : stdout; }

std::string microseconds(double us) {
  return us < 10     ? fmt::format("{:.2f}", us)
         : us < 1000 ? fmt::format("{:.1f}", us)
                     : fmt::format("{:.0f}", us);
}

}  // namespace hyla::tool
