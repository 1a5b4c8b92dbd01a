// Serves some requests and verifies every token of them: the whole program but its command line.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "progress.h"
#include "scheduler.h"
#include "verify.h"

namespace serving {

struct Options {
  int requests = 12;
  int drafts = 3;  // most draft tokens of a row; 0: one token at a time
  std::uint32_t seed = 1;
  bool quiet = false;     // the summary only
  bool bfloat16 = false;  // activations, convolution windows and keys and values; otherwise float32
  std::string device = "CPU";  // as the summary calls it
};

inline constexpr int kMaxPrompt = 400, kMaxNew = 64;
inline constexpr int kPages = 3 * (kMaxPrompt + kMaxNew) / kPageSize;  // fewer than kRows may need
inline constexpr int kCheckpointSlots = 6;

// Two of three begin with the same words, as requests of one application do.
inline std::vector<Request> make_requests(const Options& options, const Weights& weights) {
  std::mt19937 random(options.seed + 1);
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto words = [&](int count) {
    std::vector<int> tokens(count);
    for (int i = 0; i < count; ++i) {
      const bool random_word = i == 0 || number(0, 3) == 0;
      tokens[i] = random_word ? number(0, kVocabulary - 1) : weights.successor[tokens[i - 1]];
    }
    return tokens;
  };
  const std::vector<int> common = words(200);
  std::vector<Request> requests(options.requests);
  int arrival = 0;
  for (int i = 0; i < options.requests; ++i) {
    Request& r = requests[i];
    r.id = i;
    r.arrival = arrival;
    arrival += number(0, 6);
    if (i % 3 != 1) r.tokens = common;
    const std::vector<int> own = words(number(20, kMaxPrompt - int(r.tokens.size())));
    r.tokens.insert(r.tokens.end(), own.begin(), own.end());
    r.prompt_length = int(r.tokens.size());
    r.max_new = number(16, kMaxNew);
  }
  return requests;
}

inline void print_device(const Options& options, const Model& model) {
  std::printf("device    %s, %s\n", options.device.c_str(),
              options.bfloat16 ? "bfloat16" : "float32");
  for (const auto& [operation, names] : model.implementations()) {
    std::printf("ran       %-16s by", operation.c_str());
    for (const std::string& name : names) std::printf(" %s", name.c_str());
    std::printf("\n");
  }
}

inline void print_summary(const Scheduler& scheduler, const std::vector<Request>& requests,
                          double seconds) {
  const Statistics& s = scheduler.statistics();
  std::printf("served    %zu requests in %d steps (%d mixed prompts and decode rows), %.2f s\n",
              requests.size(), s.steps, s.mixed_steps, seconds);
  std::printf(
      "tokens    %d generated, %d of prompts computed, %d reused from prefixes, %.0f tokens/s\n",
      s.generated, s.prompt, s.reused, (s.prompt + s.generated) / seconds);
  std::printf("drafts    %d proposed, %d accepted (%.0f %%): %.2f tokens a decode row\n",
              s.proposed, s.accepted, s.proposed ? 100.0 * s.accepted / s.proposed : 0.0,
              s.decode_rows ? 1.0 + double(s.accepted) / s.decode_rows : 0.0);
  std::printf("slots     %d of %d at the peak, %d at the end; %d checkpoints evicted\n",
              scheduler.slots().peak(), scheduler.slots().capacity(), scheduler.slots().used(),
              s.evicted);
  std::printf("pages     %d of %d at the peak, %d at the end\n", scheduler.pages().peak(),
              scheduler.pages().capacity(), scheduler.pages().used());
}

// Recomputes every request from scratch. True when all of them agree.
inline bool verify(const Weights& weights, const std::vector<Request>& requests,
                   const Options& options) {
  Progress progress("verifying", options.quiet);
  int good = 0, tokens = 0;
  double difference = 0, bound = INFINITY;  // the largest difference, the smallest bound
  for (const Request& r : requests) {
    const Verdict verdict = verify(weights, r.tokens, r.prompt_length, r.logits, options.bfloat16);
    good += verdict.good();
    tokens += verdict.tokens - verdict.wrong;
    if (!verdict.good()) {
      std::printf("request %d differs: %d of %d tokens wrong, logit difference %.2g (bound %.2g)\n",
                  r.id, verdict.wrong, verdict.tokens, verdict.difference, verdict.bound);
    }
    difference = std::max(difference, verdict.difference);
    bound = std::min(bound, verdict.bound);
    progress.show(r.id + 1, int(requests.size()));
  }
  std::printf("verified  %d of %zu requests, %d tokens, max logit difference %.2g (bound %.2g)\n",
              good, requests.size(), tokens, difference, bound);
  return good == int(requests.size());
}

// Returns the exit code: 0 when every request is verified and no slot or page is lost.
inline int run(const Options& options, Memory& memory) {
  const int slots = 1 + kRows * (options.drafts + 1) + kCheckpointSlots;
  const Weights weights = random_weights(options.seed);
  std::vector<Request> requests = make_requests(options, weights);
  Tensors tensors(memory, options.bfloat16 ? hyla::DType::kBFloat16 : hyla::DType::kFloat32);
  Model model(weights, tensors, slots, kPages, kMaxPrompt + kMaxNew, options.drafts);
  Scheduler scheduler(slots, kPages, options.drafts);

  int total = 0;
  for (const Request& r : requests) total += r.max_new;
  Progress progress("serving", options.quiet);
  const auto begin = std::chrono::steady_clock::now();
  auto next = requests.begin();
  for (int step = 0; next != requests.end() || !scheduler.idle(); ++step) {
    while (next != requests.end() && next->arrival <= step) scheduler.submit(*next++);
    if (scheduler.idle()) continue;
    const Batch batch = scheduler.plan();
    if (batch.tokens.empty()) throw std::runtime_error("no slots or pages, and nobody to wait for");
    scheduler.commit(model.forward(batch));
    progress.show(scheduler.statistics().generated, total,
                  "slots " + std::to_string(scheduler.slots().used()) + ", pages " +
                      std::to_string(scheduler.pages().used()));
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;

  scheduler.clear_cache();
  print_device(options, model);
  print_summary(scheduler, requests, time.count());
  const bool leaked = scheduler.slots().used() + scheduler.pages().used() > 0;
  if (leaked) std::printf("leaked    slots or pages are still in use\n");
  return verify(weights, requests, options) && !leaked ? 0 : 1;
}

// In this machine's memory.
inline int run(const Options& options) {
  Memory memory;
  return run(options, memory);
}

}  // namespace serving
