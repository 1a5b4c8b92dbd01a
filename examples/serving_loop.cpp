// Serves a small hybrid model with hyla and verifies every token: how the operations fit together.
//
// Requests arrive over time. Their prompts are prefilled in chunks, in the same steps in which
// other requests decode; drafts are verified and rejected tails are dropped; prompts with a common
// prefix share its state and its pages. At the end each request is recomputed from scratch.
//
// Read serving/model.h first (which operation runs on what), then serving/scheduler.h (who owns
// which slots and pages, and what happens to a draft) and serving/loop.h.
#include <charconv>
#include <cstdio>
#include <exception>
#include <string_view>

#include "serving/loop.h"

namespace {

constexpr const char* kUsage =
    "usage: serving_loop [--requests N] [--drafts N] [--seed N] [--quiet]\n"
    "  --requests N  how many arrive (1 to 1000, 12)\n"
    "  --drafts N    most draft tokens of a row; 0 decodes one token at a time (0 to 7, 3)\n"
    "  --seed N      of the weights and the prompts (1)\n"
    "  --quiet       no progress, only the summary\n";

template <class Number>
bool parse(std::string_view text, Number low, Number high, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
}

}  // namespace

int main(int argc, char** argv) try {
  serving::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    } else if (name == "--quiet") {
      options.quiet = true;
    } else if ((name == "--requests" && parse(value, 1, 1000, options.requests)) ||
               (name == "--drafts" && parse(value, 0, 7, options.drafts)) ||
               (name == "--seed" && parse(value, 0u, ~0u, options.seed))) {
      ++i;
    } else {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  return serving::run(options);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
