// Who runs in the next step, with how many tokens, and in whose memory; and what the step's logits
// mean for them.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "batch.h"
#include "model.h"
#include "pool.h"

namespace serving {

inline constexpr int kRows = 4;              // requests that run at once
inline constexpr int kTokenBudget = 80;      // tokens in a step, drafts included
inline constexpr int kCheckpointEvery = 64;  // a multiple of kPageSize: shared pages are full

struct Request {
  int id = 0, arrival = 0, prompt_length = 0, max_new = 0;
  std::vector<int> tokens;                 // the prompt, then what was generated
  std::vector<std::vector<float>> logits;  // that each generated token was chosen from
  int computed = 0;                        // tokens whose state and keys are in memory
  std::vector<int> slots;                  // one for the state after each token of a decode step
  int column = 0;                          // the slot that holds the state after `computed` tokens
  int restored = kNullSlot;                // checkpoint that the first chunk starts from
  std::vector<int> pages;
  std::vector<int> drafts;  // of this step

  bool prefilling() const { return computed < prompt_length; }
  bool finished() const { return int(logits.size()) == max_new; }
};

struct Statistics {
  int steps = 0, mixed_steps = 0;
  int prompt = 0, reused = 0, generated = 0;  // tokens; prompt: computed, not reused
  int proposed = 0, accepted = 0, decode_rows = 0, evicted = 0;
};

// Prompt lookup: what followed the last two tokens (or the last one) when they came before.
inline std::vector<int> draft(const std::vector<int>& tokens, int most) {
  const int n = int(tokens.size());
  for (int match = 2; match >= 1; --match) {
    for (int end = n - 1; end >= match; --end) {
      if (!std::equal(tokens.end() - match, tokens.end(), tokens.begin() + end - match)) continue;
      return {tokens.begin() + end, tokens.begin() + std::min(n, end + most)};
    }
  }
  return {};
}

class Scheduler {
 public:
  Scheduler(int slots, int pages, int max_drafts)
      : slots_(1, slots), pages_(0, pages), cache_(slots_, pages_), max_drafts_(max_drafts) {}

  void submit(Request& request) { waiting_.push_back(&request); }
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // Decode rows first, so that nobody's next token waits for another's prompt; what is left of the
  // budget goes to prompts, chunk by chunk.
  Batch plan() {
    Batch batch;
    planned_.clear();
    batch.decode.slots.cols = max_drafts_ + 1;
    batch.page_table.cols = pages_.capacity();
    batch.prefill.checkpoint_offsets.cols = kTokenBudget / kCheckpointEvery + 1;
    batch.prefill.checkpoint_slots.cols = batch.prefill.checkpoint_offsets.cols;
    for (Request* r : running_) {
      if (!r->prefilling()) add_decode_row(batch, *r);
    }
    int budget = kTokenBudget - int(batch.tokens.size());
    batch.pad_decode_section(kRows);
    for (Request* r : running_) {
      if (r->prefilling()) budget -= add_chunk(batch, *r, budget);
    }
    while (budget > 0 && !waiting_.empty() && int(running_.size()) < kRows &&
           admit(*waiting_.front())) {
      running_.push_back(waiting_.front());
      waiting_.pop_front();
      budget -= add_chunk(batch, *running_.back(), budget);
    }
    ++statistics_.steps;
    statistics_.mixed_steps += batch.decode.rows > 0 && !batch.prefill.write_slots.empty();
    return batch;
  }

  // `logits` has the rows that the planned batch asked for.
  void commit(const Matrix& logits) {
    for (const Planned& p : planned_) {
      if (p.chunk > 0) {
        finish_chunk(p, logits);
      } else {
        accept(p, logits);
      }
    }
    for (PrefixCache::Entry& entry : checkpoints_) cache_.insert(std::move(entry));
    checkpoints_.clear();
    std::erase_if(running_, [&](Request* r) {
      if (r->finished()) release(*r);
      return r->finished();
    });
  }

  void clear_cache() {
    while (cache_.evict()) {
    }
  }

  const Pool& slots() const { return slots_; }
  const Pool& pages() const { return pages_; }
  const Statistics& statistics() const { return statistics_; }

 private:
  struct Planned {
    Request* request;
    int chunk;         // tokens of the prompt; 0: a decode row
    int first_logits;  // row of the step's logits; -1: none
  };

  // Everything a request may need is taken at once, so that it can always finish. An engine would
  // let its pages grow and put requests back when they run out.
  bool admit(Request& r) {
    const auto prefix = cache_.find({r.tokens.begin(), r.tokens.begin() + r.prompt_length});
    if (prefix) {
      r.restored = prefix->slot;
      r.pages = prefix->pages;
      r.computed = int(prefix->tokens.size());
    }
    const int total = (r.prompt_length + r.max_new + kPageSize - 1) / kPageSize;
    const int pages = total - int(r.pages.size()), slots = max_drafts_ + 1;
    while (slots_.free() < slots || pages_.free() < pages) {
      if (evict()) continue;
      release(r);
      return false;
    }
    for (int i = 0; i < slots; ++i) r.slots.push_back(slots_.take());
    for (int i = 0; i < pages; ++i) r.pages.push_back(pages_.take());
    statistics_.reused += r.computed;
    return true;
  }

  void release(Request& r) {
    for (int slot : r.slots) slots_.drop(slot);
    for (int page : r.pages) pages_.drop(page);
    if (r.restored != kNullSlot) slots_.drop(r.restored);
    r.slots.clear();
    r.pages.clear();
    r.restored = kNullSlot;
    if (!r.finished()) r.computed = 0;
  }

  bool evict() {
    const bool evicted = cache_.evict();
    statistics_.evicted += evicted;
    return evicted;
  }

  void add_decode_row(Batch& batch, Request& r) {
    const int room = std::min(max_drafts_, r.max_new - int(r.logits.size()) - 1);
    r.drafts = draft(r.tokens, room);
    std::vector<int> row{r.tokens.back()};
    row.insert(row.end(), r.drafts.begin(), r.drafts.end());
    planned_.push_back({&r, 0, batch.add_decode_row(row, r.computed, r.slots, r.column, r.pages)});
  }

  // As much of the prompt as the budget allows; returns how much. On the way the state and the
  // window are kept wherever a later prompt may branch off, in slots of their own.
  int add_chunk(Batch& batch, Request& r, int budget) {
    const int count = std::min(budget, r.prompt_length - r.computed);
    if (count == 0) return 0;
    const auto begin = r.tokens.begin() + r.computed;
    const int start = batch.add_attention_row({begin, begin + count}, r.computed, r.pages);
    const bool last = r.computed + count == r.prompt_length;
    planned_.push_back({&r, count, last ? int(batch.logit_places.size()) : -1});
    if (last) batch.logit_places.push_back(start + count - 1);

    PrefillSection& p = batch.prefill;
    p.cu_seqlens.push_back(p.cu_seqlens.back() + count);
    p.read_slots.push_back(r.restored != kNullSlot ? r.restored : r.slots[0]);
    p.write_slots.push_back(r.slots[0]);
    p.window_offsets.push_back(0);
    p.has_initial_state.push_back(r.computed > 0);
    std::vector<int> offsets, slots;
    const int first = (r.computed / kCheckpointEvery + 1) * kCheckpointEvery;
    for (int n = first; n <= r.computed + count; n += kCheckpointEvery) {
      std::vector<int> prefix(r.tokens.begin(), r.tokens.begin() + n);
      if (cache_.contains(prefix)) continue;
      while (slots_.free() == 0 && evict()) {
      }
      if (slots_.free() == 0) continue;
      offsets.push_back(n - r.computed);
      slots.push_back(slots_.take());
      checkpoints_.push_back(
          {std::move(prefix), slots.back(), {r.pages.begin(), r.pages.begin() + n / kPageSize}});
    }
    p.checkpoint_offsets.add(offsets, -1);
    p.checkpoint_slots.add(slots, kNullSlot);
    return count;
  }

  void finish_chunk(const Planned& p, const Matrix& logits) {
    Request& r = *p.request;
    r.computed += p.chunk;
    r.column = 0;
    statistics_.prompt += p.chunk;
    if (r.restored != kNullSlot) slots_.drop(r.restored);
    r.restored = kNullSlot;
    if (p.first_logits >= 0) generate(r, logits.row(p.first_logits));
  }

  // The model's own choice after each token is the truth: a draft that equals it is accepted, the
  // first one that does not ends the row. Nothing is undone. The next step starts from the column
  // of the last accepted token, and its keys overwrite those of the rejected ones.
  void accept(const Planned& p, const Matrix& logits) {
    Request& r = *p.request;
    int used = 0;
    bool right = true;
    for (; right; ++used) {
      const int next = generate(r, logits.row(p.first_logits + used));
      right = used < int(r.drafts.size()) && r.drafts[used] == next;
    }
    r.computed += used;
    r.column = used - 1;
    ++statistics_.decode_rows;
    statistics_.proposed += int(r.drafts.size());
    statistics_.accepted += used - 1;
  }

  int generate(Request& r, const float* logits) {
    r.logits.emplace_back(logits, logits + kVocabulary);
    r.tokens.push_back(int(std::max_element(logits, logits + kVocabulary) - logits));
    ++statistics_.generated;
    return r.tokens.back();
  }

  Pool slots_, pages_;
  PrefixCache cache_;
  int max_drafts_;
  std::deque<Request*> waiting_;
  std::vector<Request*> running_;
  std::vector<Planned> planned_;
  std::vector<PrefixCache::Entry> checkpoints_;  // of this step
  Statistics statistics_;
};

}  // namespace serving
