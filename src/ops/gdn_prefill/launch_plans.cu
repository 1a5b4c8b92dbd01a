#include <numeric>
#include <string>
#include <string_view>

#include "ops/gdn_prefill/handover.cuh"
#include "ops/gdn_prefill/kernel_slots.cuh"
#include "ops/gdn_prefill/launch_again.h"
#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/plan_shape.h"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/segment_rows.cuh"
#include "ops/gdn_prefill/start_order.cuh"
#include "ops/gdn_prefill/tile_arguments.h"
#include "ops/gdn_prefill/walk_order.cuh"

namespace hyla::gdn {
namespace {

// N, M and whether it forgets.
constexpr std::size_t kSegmentBytes =
    kMostSegmentStates * (2 * kStateElements * sizeof(float) + sizeof(int));
static_assert(kMostSegments == kMostRelayStates);
static_assert(kOrderedRows == kMostRankedLengths);
static_assert(8 * sizeof(Record<std::uint16_t>) >= kSegmentBytes / kMostSegmentStates);

bool is_wide(std::int64_t K) { return K > 128; }

bool is_square(std::int64_t K, std::int64_t V) { return K == 128 && V == 128; }

// Sequences by starts and lengths: a kernel in front numbers their chunks.
Context number_chunks(FusedArguments& a, int* slots, const Context& context) {
  a.row_slots = slots;
  device::LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(kSlotThreads);
  device::launch(find_row_slots, shape, RowSlots{a.p, slots}, context);
  Context after = context;
  after.programmatic_launch = true;
  return after;
}

// Flags of records that are handed over, and behind them the words of start_order.cuh.
std::size_t flag_bytes(std::int64_t rows, std::int64_t heads, std::int64_t tokens, std::int64_t V) {
  const std::int64_t flags = chunk_slots(rows, tokens) * heads + order_count(rows * heads, V);
  return static_cast<std::size_t>((flags * std::int64_t{sizeof(std::uint32_t)} + 255) / 256 * 256);
}

std::size_t slot_bytes(const PrefillProblem& p) {
  return p.sequences.cu_seqlens.present() ? 0 : row_slot_bytes(p.sequences.rows);
}

// With a list of checkpoints: one part, one block of value rows a CTA, nothing handed over.
Walks walks_of(const PrefillProblem& p, const Context& context) {
  const PlanShape shape = plan_shape(p, context);
  if (!p.checkpoint_offsets.present()) return split_walks(shape);
  Walks plain{.parts = 1};
  plain.us = expected_us(Plan::kSplit, shape, plain);
  return plain;
}

// The flags lie behind everything else of a split plan.
std::uint32_t* flags_of(const PrefillProblem& p, const Workspace& workspace) {
  const std::size_t before =
      record_bytes(p.sequences.rows, p.heads, p.sequences.tokens) + slot_bytes(p);
  return reinterpret_cast<std::uint32_t*>(static_cast<char*>(workspace.data) + before);
}

// CTAs that prepare to the end, of up to `left`. When short sequences have ended, the chunks of the
// others are those of the same tasks again and again: with a divisor in common with the number of
// tasks they would all go to the same few CTAs.
int lasting_ctas(int left, int tasks) {
  int best = left;
  for (int n = left; n >= std::max(1, left - left / 16); --n) {
    if (std::gcd(n, tasks) < std::gcd(best, tasks)) best = n;
  }
  return best;
}

void hand_over(FusedArguments& a, const Walks& walks, int rounds, int lasting,
               const Workspace& workspace) {
  const PrefillProblem& p = a.p;
  a.handover.ready = flags_of(p, workspace);
  a.handover.rounds = rounds;
  a.handover.lasting = lasting;
  a.handover.by_rows = device::Divider(static_cast<std::uint32_t>(p.sequences.rows));
  // Clocks of a chunk of the walk that goes on fastest, a little less than it takes (H200). Few
  // heads do not get into each other's way.
  const int walked = walks.blocks_a_cta == 2 ? 2600 : walks.parts == 2 ? 1450 : 1810;
  constexpr int kSlowest = 8000;
  if (rounds == 0) a.handover.pace = std::min(walked * lasting / a.tasks, kSlowest);
}

// `rounds`: see SplitForm.
void run_split(FusedArguments& a, const Walks& walks, int rounds, const Workspace& workspace,
               const Context& calls) {
  const PrefillProblem& p = a.p;
  a.parts = walks.parts;
  a.cuts = walks.cuts;
  a.records = workspace.data;
  if (a.parts > 1 && states_in_place(p)) {
    a.order = flags_of(p, workspace) + chunk_slots(p.sequences.rows, p.sequences.tokens) * p.heads;
  }
  Context context = calls;
  if (!p.sequences.cu_seqlens.present()) {
    char* after = static_cast<char*>(workspace.data) +
                  record_bytes(p.sequences.rows, p.heads, p.sequences.tokens);
    context = number_chunks(a, reinterpret_cast<int*>(after), calls);
  }
  const std::int64_t items = chunk_slots(p.sequences.rows, p.sequences.tokens) * p.heads;
  SplitShape shape;
  shape.tasks = static_cast<unsigned>(a.tasks);
  const int multiprocessors = device::multiprocessors(context);
  shape.prepare_ctas = static_cast<unsigned>(std::min<std::int64_t>(items, multiprocessors));
  const PlanShape plan = plan_shape(p, context);
  const std::int64_t next = std::int64_t{a.tasks} * value_blocks(p) / walks.blocks_a_cta * a.parts;
  const bool alike = p.sequences.rows == 1 || (plan.longest > 0 && plan.even());
  a.ordered = !a.transfers && a.parts == 1 && plan.starts_by_rank(static_cast<double>(next));
  if (!a.transfers && prepares_beside(plan, static_cast<double>(next))) {
    shape.prepare_ctas =
        static_cast<unsigned>(std::min<std::int64_t>(items, multiprocessors - next));
  }
  if (rounds >= 0 && next < multiprocessors && p.sequences.rows <= kHandoverRows &&
      (p.sequences.tokens / kChunk + 1) * a.tasks < kMostHandedOver) {
    const int left = multiprocessors - static_cast<int>(next);
    hand_over(a, walks, rounds, alike ? left : lasting_ctas(left, a.tasks), workspace);
    shape.prepare_ctas = static_cast<unsigned>(rounds > 0 ? multiprocessors : a.handover.lasting);
  }
  shape.blocks = static_cast<unsigned>(value_blocks(p));
  shape.blocks_a_cta = static_cast<unsigned>(walks.blocks_a_cta);
  const bool bf16 = p.q.dtype == DType::kBFloat16;
  const auto launch = is_wide(p.K) ? (bf16 ? launch_wide_bf16 : launch_wide_f16)
                                   : (bf16 ? launch_split_bf16 : launch_split_f16);
  launch(a, shape, context);
  launch_again(a, context);
}

// Of the two plans with segments, which differ in how these are walked over.
using FindWalks = Walks (*)(const PlanShape&);

const char* segments_refuse(const PrefillProblem& p, const Context& context, FindWalks find,
                            const char* no_walks) {
  if (context.batch_invariant) return "bits that depend on the length of the sequence";
  if (p.checkpoint_every > 0 || p.checkpoint_offsets.present()) {
    return "states inside segments that are not known in time";
  }
  if (!is_square(p.K, p.V)) return "takes K = V = 128";
  if (const char* reason = prefill_split_refuses(p, context)) return reason;
  return find(plan_shape(p, context)).parts == 0 ? no_walks : nullptr;
}

FusedArguments segment_arguments(const PrefillProblem& p, const Workspace& workspace) {
  FusedArguments a = arguments(p);
  a.transfers = true;
  a.states = reinterpret_cast<float*>(static_cast<char*>(workspace.data) + prefill_split_bytes(p));
  return a;
}

void launch_split_walks(const PrefillProblem& p, const Workspace& workspace, const Context& context,
                        const Walks& walks) {
  const SplitForm form{walks.parts, walks.blocks_a_cta, walks.beside ? 0 : -1};
  launch_prefill_split_as(p, workspace, context, form);
}

void launch_segment_walks(const PrefillProblem& p, const Workspace& workspace,
                          const Context& context, const Walks& walks) {
  FusedArguments a = segment_arguments(p, workspace);
  run_split(a, walks, -1, workspace, context);
}

}  // namespace

const char* prefill_split_refuses(const PrefillProblem& p, const Context& context) {
  if (const char* reason = prefill_tiles_refuse(p, context)) return reason;
  if (p.K > 256 || p.K % 8 != 0 || p.V % 8 != 0) {
    return "takes K up to 256, K and V multiples of 8";
  }
  if (is_square(p.K, p.V) && p.sequences.rows * p.heads > device::multiprocessors(context)) {
    return "sequences times heads that keep every multiprocessor busy";
  }
  return nullptr;
}

double prefill_split_us(const PrefillProblem& p, const Context& context) {
  return walks_of(p, context).us;
}

std::size_t prefill_split_bytes(const PrefillProblem& p) {
  return record_bytes(p.sequences.rows, p.heads, p.sequences.tokens) + slot_bytes(p) +
         flag_bytes(p.sequences.rows, p.heads, p.sequences.tokens, p.V);
}

void launch_prefill_split(const PrefillProblem& p, const Workspace& workspace,
                          const Context& context) {
  if (p.sequences.rows == 0) return;
  launch_split_walks(p, workspace, context, walks_of(p, context));
}

void launch_prefill_split_as(const PrefillProblem& p, const Workspace& workspace,
                             const Context& context, const SplitForm& form) {
  if (p.sequences.rows == 0) return;
  FusedArguments a = arguments(p);
  run_split(a, Walks{form.parts, form.blocks_a_cta}, form.rounds, workspace, context);
}

const char* prefill_segments_refuses(const PrefillProblem& p, const Context& context) {
  return segments_refuse(p, context, segment_walks,
                         "too short, or too many sequences times heads for segments");
}

double prefill_segments_us(const PrefillProblem& p, const Context& context) {
  return segment_walks(plan_shape(p, context)).us;
}

std::size_t prefill_segments_bytes(const PrefillProblem& p) {
  return prefill_split_bytes(p) + kSegmentBytes;
}

void launch_prefill_segments(const PrefillProblem& p, const Workspace& workspace,
                             const Context& context) {
  if (p.sequences.rows == 0) return;
  launch_segment_walks(p, workspace, context, segment_walks(plan_shape(p, context)));
}

const char* prefill_relay_refuses(const PrefillProblem& p, const Context& context) {
  if (!p.sequences.cu_seqlens.present()) return "takes sequences back to back";
  return segments_refuse(p, context, relay_walks,
                         "fewer than 8192 tokens, or too many sequences times heads for segments");
}

double prefill_relay_us(const PrefillProblem& p, const Context& context) {
  return relay_walks(plan_shape(p, context)).us;
}

std::size_t prefill_relay_bytes(const PrefillProblem& p) {
  return prefill_segments_bytes(p) + sizeof(SegmentRows);
}

void launch_prefill_relay(const PrefillProblem& p, const Workspace& workspace,
                          const Context& context) {
  const Walks walks = relay_walks(plan_shape(p, context));
  launch_prefill_relay_as(p, workspace, context, walks.parts, walks.cuts);
}

void launch_prefill_relay_as(const PrefillProblem& p, const Workspace& workspace,
                             const Context& context, int parts, int cuts) {
  if (p.sequences.rows == 0) return;
  FusedArguments a = segment_arguments(p, workspace);
  // There are no records, and their place is needed where there are many states.
  a.states = static_cast<float*>(workspace.data);
  a.rows = reinterpret_cast<SegmentRows*>(static_cast<char*>(workspace.data) +
                                          prefill_segments_bytes(p));
  a.parts = parts;
  a.cuts = cuts;
  const bool bf16 = p.q.dtype == DType::kBFloat16;
  const int multiprocessors = device::multiprocessors(context);
  Context after = context;
  after.programmatic_launch = true;
  launch_starts(a, context);
  const int walks = std::min(2 * a.tasks * pieces_followed(a), multiprocessors);
  (bf16 ? launch_walks_bf16 : launch_walks_f16)(a, static_cast<unsigned>(walks), after);
  if (pieces_followed(a) > 1) launch_states(a, after);
  const FusedArguments outputs = segments_as_rows(a);
  const int ctas = std::min(outputs.tasks, multiprocessors);
  (bf16 ? launch_fused_bf16 : launch_fused_f16)(outputs, static_cast<unsigned>(ctas), after);
  launch_again(a, context);
}

std::vector<PlanForm> prefill_forms(const PrefillProblem& p, const Context& context) {
  std::vector<PlanForm> forms;
  const PlanShape shape = plan_shape(p, context);
  const auto list = [&](const char* implementation, Plan plan, const Walks& chosen) {
    each_form(plan, shape, [&](Walks walks) {
      walks.us = expected_us(plan, shape, walks);
      forms.push_back({implementation, walks, walks.same_form(chosen)});
    });
  };
  if (prefill_split_refuses(p, context) == nullptr && !p.checkpoint_offsets.present()) {
    list("cuda_split", Plan::kSplit, split_walks(shape));
  }
  if (prefill_segments_refuses(p, context) == nullptr) {
    list("cuda_segments", Plan::kSegments, segment_walks(shape));
  }
  if (prefill_relay_refuses(p, context) == nullptr) {
    list("cuda_relay", Plan::kRelay, relay_walks(shape));
  }
  return forms;
}

PlanLook look_at_plan(const PrefillProblem& p, const Context& context,
                      std::string_view implementation, const Walks& walks) {
  const PlanShape shape = plan_shape(p, context);
  if (shape.rows > 1 && shape.longest == 0) return {};
  for (std::size_t i = 0; i < std::size(kPlanNames); ++i) {
    if (implementation != std::string("cuda_") + kPlanNames[i]) continue;
    PlanLook look;
    PlanTerms terms{};
    look.model_us = model_at_us(static_cast<Plan>(i), shape, walks, terms);
    look.features = plan_features(shape, walks, look.model_us, terms);
    return look;
  }
  return {};
}

void launch_prefill_form(const PrefillProblem& p, const Workspace& workspace,
                         const Context& context, const PlanForm& form) {
  const std::string_view name = form.implementation;
  if (name == "cuda_split") return launch_split_walks(p, workspace, context, form.walks);
  if (name == "cuda_segments") return launch_segment_walks(p, workspace, context, form.walks);
  launch_prefill_relay_as(p, workspace, context, form.walks.parts, form.walks.cuts);
}

double prefill_fused_us(const PrefillProblem& p, const Context& context) {
  return fused_us(plan_shape(p, context));
}

std::size_t prefill_cuda_bytes(const PrefillBounds& bounds) {
  if (bounds.device.kind != Device::Kind::kCuda || bounds.key_dim > 256 ||
      bounds.io == DType::kFloat32) {
    return 0;
  }
  Context context;
  context.device = bounds.device;
  if (device::refuses_device(context) != nullptr) return 0;
  const std::int64_t heads = std::max(bounds.query_heads, bounds.value_heads);
  if (!is_square(bounds.key_dim, bounds.value_dim)) {
    return record_bytes(bounds.max_sequences, heads, bounds.max_tokens) +
           row_slot_bytes(bounds.max_sequences) +
           flag_bytes(bounds.max_sequences, heads, bounds.max_tokens, bounds.value_dim);
  }
  const std::int64_t rows =
      std::min(bounds.max_sequences, device::multiprocessors(context) / heads);
  return rows < 1 ? 0
                  : record_bytes(rows, heads, bounds.max_tokens) + row_slot_bytes(rows) +
                        flag_bytes(rows, heads, bounds.max_tokens, bounds.value_dim) +
                        kSegmentBytes + sizeof(SegmentRows);
}

}  // namespace hyla::gdn
