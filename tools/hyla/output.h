// How results reach people and programs: tables, a progress bar on a terminal, JSON and text files.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hyla::tool {

struct Column {
  std::string title;
  std::size_t width = 0;  // at least that of the title
  bool right = false;     // numbers
};

// Rows as they come, so that a pipe shows progress too. Colours only on a terminal.
class Table {
 public:
  Table(std::FILE* out, std::vector<Column> columns);
  void row(const std::vector<std::string>& cells);

 private:
  std::FILE* out_;
  std::vector<Column> columns_;
  bool header_done_ = false;
};

// "[#####.....] 3/12 text" on stderr while it is a terminal, nothing otherwise.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress();
  void show(const std::string& text);  // the step that begins
  void clear();                        // before other output
  void step() { ++done_; }

 private:
  std::size_t total_, done_ = 0;
  bool terminal_;
};

std::string good(std::FILE* out, const std::string& text);  // green on a terminal
std::string bad(std::FILE* out, const std::string& text);   // red on a terminal

// Throws InvalidArgument when `path` cannot be written later on. "-" is stdout; empty: no file.
void check_writable(const std::string& option, const std::string& path);
// All or nothing: a reader never sees half a file.
void write_text(const std::string& option, const std::string& path, const std::string& text);
void write_json(const std::string& path, const nlohmann::json& value);

// Where tables go: to stderr when JSON goes to stdout.
std::FILE* table_stream(const std::string& json_path);

std::string microseconds(double us);  // "12.3", "1234"

}  // namespace hyla::tool
