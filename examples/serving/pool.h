// Numbers that stand for memory (state slots, KV pages), counted by how many hold them, and the
// cache of prompt prefixes whose memory is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace serving {

// Hands out ids first, ..., size - 1. Memory behind an id is never cleared: who takes it writes
// before reading, or says that it has no initial state.
class Pool {
 public:
  Pool(int first, int size) : holders_(size, 0), first_(first) {
    for (int id = size - 1; id >= first; --id) free_.push_back(id);
  }

  int free() const { return int(free_.size()); }
  int used() const { return capacity() - free(); }
  int peak() const { return peak_; }
  int capacity() const { return int(holders_.size()) - first_; }

  int take() {
    const int id = free_.back();
    free_.pop_back();
    holders_[id] = 1;
    peak_ = std::max(peak_, used());
    return id;
  }
  void share(int id) { ++holders_[id]; }
  void drop(int id) {
    if (--holders_[id] == 0) free_.push_back(id);
  }

 private:
  std::vector<int> holders_, free_;
  int first_, peak_ = 0;
};

// Prefixes of prompts with the slot of the recurrent state and conv window after them and the pages
// of their keys and values. A real engine finds them by hash; a list is enough here.
class PrefixCache {
 public:
  struct Entry {
    std::vector<int> tokens;
    int slot = 0;
    std::vector<int> pages;
  };

  PrefixCache(Pool& slots, Pool& pages) : slots_(slots), pages_(pages) {}

  bool contains(const std::vector<int>& tokens) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& e) { return e.tokens == tokens; });
  }

  // The longest known prefix that leaves at least one token of the prompt to compute, since its
  // logits are wanted. The caller holds the slot and the pages from then on.
  std::optional<Entry> find(const std::vector<int>& prompt) {
    auto best = entries_.end();
    for (auto e = entries_.begin(); e != entries_.end(); ++e) {
      if (e->tokens.size() < prompt.size() &&
          std::equal(e->tokens.begin(), e->tokens.end(), prompt.begin()) &&
          (best == entries_.end() || e->tokens.size() > best->tokens.size())) {
        best = e;
      }
    }
    if (best == entries_.end()) return std::nullopt;
    std::rotate(best, best + 1, entries_.end());  // used last, evicted last
    const Entry& entry = entries_.back();
    slots_.share(entry.slot);
    for (int page : entry.pages) pages_.share(page);
    return entry;
  }

  // Takes the caller's hold on the slot over; the pages get one more holder.
  void insert(Entry entry) {
    if (contains(entry.tokens)) return slots_.drop(entry.slot);  // somebody was faster
    for (int page : entry.pages) pages_.share(page);
    entries_.push_back(std::move(entry));
  }

  // Gives up the entry that was not used for longest. False when there is none.
  bool evict() {
    if (entries_.empty()) return false;
    slots_.drop(entries_.front().slot);
    for (int page : entries_.front().pages) pages_.drop(page);
    entries_.erase(entries_.begin());
    return true;
  }

 private:
  Pool &slots_, &pages_;
  std::vector<Entry> entries_;
};

}  // namespace serving
