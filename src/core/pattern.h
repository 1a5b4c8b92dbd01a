// Shapes as text that the compiler reads: letters and numbers separated by blanks, "B 1 H K". ">=B"
// means at least that many, "B+1" one more. Read at compile time, because a call matches a dozen
// tensors and its whole time on the host is a few microseconds.
#pragma once

#include <hyla/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hyla::core {

// What patterns call their sizes. A name that is missing here does not compile.
inline constexpr auto kLetters = std::to_array<std::string_view>({
    "B",
    "C",
    "D",
    "DV",
    "H",
    "HV",
    "HV*V",
    "Hk",
    "Hq",
    "Hs",
    "K",
    "L",
    "M",
    "N",
    "P",
    "R/2",
    "S",
    "T",
    "V",
    "W",
    "2*H*K+HV*V",
    "checkpoints",
    "columns",
    "heads",
    "max_pages",
    "out_slots",
    "positions",
    "rows",
    "slots",
    "steps",
    "tokens",
    "total",
    "total_kv",
    // The documented recurrence kernel.
    "batch_size",
    "conv_dim",
    "max_slots",
    "num_value_heads",
    "total_seq_len",
    "value_dim",
    "KEY_HEAD_DIM",
    "VALUE_HEAD_DIM",
});
static_assert(kLetters.size() <= 64, "Shapes keeps a bit for each");

class Letter {
 public:
  template <std::size_t N>
  consteval Letter(const char (&name)[N]) : Letter(std::string_view(name, N - 1)) {}
  consteval explicit Letter(std::string_view name) {
    while (kLetters.at(index_) != name) ++index_;
  }

  constexpr std::size_t index() const { return index_; }
  constexpr std::string_view name() const { return kLetters[index_]; }

 private:
  std::size_t index_ = 0;
};

class Pattern {
 public:
  struct Word {
    std::uint8_t letter = 0;  // index of it
    bool is_number = false, at_least = false;
    std::uint8_t plus = 0;  // 0 or 1
    std::int32_t number = 0;
  };

  template <std::size_t N>
  consteval Pattern(const char (&text)[N]) : Pattern(std::string_view(text, N - 1)) {}
  consteval explicit Pattern(std::string_view text) {
    while (!text.empty()) {
      const std::size_t blank = text.find(' ');
      words_.at(static_cast<std::size_t>(rank_++)) = word(text.substr(0, blank));
      text = blank == text.npos ? std::string_view() : text.substr(blank + 1);
    }
  }

  constexpr int rank() const { return rank_; }
  constexpr const Word& operator[](int d) const { return words_[static_cast<std::size_t>(d)]; }
  // The pattern of a vector along the last dimension.
  constexpr Pattern last() const {
    Pattern result;
    result.words_[0] = (*this)[rank_ - 1];
    result.rank_ = 1;
    return result;
  }

 private:
  constexpr Pattern() = default;

  static consteval Word word(std::string_view text) {
    Word result;
    if (text.starts_with(">=")) {
      result.at_least = true;
      text.remove_prefix(2);
    }
    if (text.ends_with("+1")) {
      result.plus = 1;
      text.remove_suffix(2);
    }
    result.is_number = text.find_first_not_of("0123456789") == text.npos;
    if (result.is_number) {
      for (const char digit : text) result.number = result.number * 10 + (digit - '0');
    } else {
      result.letter = static_cast<std::uint8_t>(Letter(text).index());
    }
    return result;
  }

  std::array<Word, TensorView::kMaxRank> words_{};
  int rank_ = 0;
};

}  // namespace hyla::core
