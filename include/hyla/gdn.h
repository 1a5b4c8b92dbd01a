// Gated DeltaNet: recurrence, decode, multi-token (MTP) decode and chunked prefill over state
// pools.
//
// One token of one value head, S the state seen as K x V:
//
//     S     = alpha * S
//     delta = beta * (v - k^T S)
//     S     = S + k (outer) delta
//     o     = scale * q^T S
//
// Letters: B rows, N sequences, T tokens, total = tokens of all sequences, H query/key heads, HV
// value heads, K key dim, V value dim (multiples of 8 up to 256). Value head hv uses key head hv /
// (HV/H). All views may be strided with a contiguous innermost dimension (gates: any strides).
//
// Slots. `state` is a pool; row b starts from slot read_slots[b] (absent: b) and its final state
// goes to write_slots[b] (absent: where it was read). A slot below `first_slot` is null. Null read
// slot: the row is padding and nothing of it is read or written. Null write slot: only the state
// write is skipped. A slot past the pool is an error where the host sees the indices, and null on a
// GPU. A slot that one row writes must not be read or written by another row of the same call.
#ifndef HYLA_GDN_H_
#define HYLA_GDN_H_

#include <hyla/context.h>
#include <hyla/norm.h>
#include <hyla/tensor.h>
#include <hyla/workspace.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace hyla::gdn {

enum class StateLayout {
  kKV,  // [..., K, V], V contiguous
  kVK,  // [..., V, K], K contiguous
};

// The decay alpha of a token and value head. Default: 1.
struct Gate {
  enum class Kind {
    kNone,    // alpha = 1
    kLinear,  // value is alpha in [0, 1]
    kLog,     // value is ln(alpha) <= 0; -inf wipes the state
    kRaw,     // ln(alpha) = -exp(A_log) * softplus(value + dt_bias)
  };
  Kind kind = Kind::kNone;
  TensorView value;    // [tokens..., HV]; float32, bfloat16, float16
  TensorView A_log;    // [HV]; float32, bfloat16, float16 (kRaw)
  TensorView dt_bias;  // [HV]; float32, bfloat16, float16 (kRaw)

  static Gate linear(TensorView alpha) { return {Kind::kLinear, alpha, {}, {}}; }
  static Gate log(TensorView log_alpha) { return {Kind::kLog, log_alpha, {}, {}}; }
  static Gate raw(TensorView a, TensorView A_log, TensorView dt_bias) {
    return {Kind::kRaw, a, A_log, dt_bias};
  }
};

// The update strength of a token and value head. Default: 1.
struct Beta {
  enum class Kind {
    kNone,         // beta = 1
    kProbability,  // value is beta, used as it is (up to 2 works)
    kLogit,        // beta = sigmoid(value)
  };
  Kind kind = Kind::kNone;
  TensorView value;  // [tokens..., HV]; float32, bfloat16, float16

  static Beta probability(TensorView beta) { return {Kind::kProbability, beta}; }
  static Beta logit(TensorView b) { return {Kind::kLogit, b}; }
};

// One token a row.
struct DecodeParams {
  TensorView q;  // [B, H, K] or [B, 1, H, K]; float32, bfloat16, float16
  TensorView k;  // shape and dtype of q
  TensorView v;  // [B, HV, V] or [B, 1, HV, V]; dtype of q
  // [slots, HV, V, K] (kVK) or [slots, HV, K, V] (kKV); float32, bfloat16, float16; in place
  TensorView state;
  TensorView out;           // shape and dtype of v
  Gate gate{};              // value [B, HV] or [B, 1, HV]
  Beta beta{};              // value [B, HV] or [B, 1, HV]
  TensorView read_slots{};  // [B], or [B, S] with read_columns; int32, int64, uint32
  // [B]: row b reads read_slots[b, read_columns[b]], the column clamped to the table
  TensorView read_columns{};
  TensorView write_slots{};  // [B]
  std::int64_t first_slot = 0;
  StateLayout layout = StateLayout::kVK;
  std::optional<double> scale{};  // absent: 1/sqrt(K)
  bool l2norm = false;            // x * rsqrt(sum(x^2) + eps) of q and k
  double l2norm_eps = 1e-6;
  norm::GatedNorm norm{};      // fused epilogue; z [B, HV, V] or [B, 1, HV, V]
  const char* impl = nullptr;  // force an implementation by name
};

// 1 to T tokens a row in order, for speculative verification.
struct MtpParams {
  TensorView q;      // [B, T, H, K], or [total, H, K] with cu_seqlens or starts and lengths
  TensorView k;      // shape and dtype of q
  TensorView v;      // [B, T, HV, V] or [total, HV, V]; dtype of q
  TensorView state;  // [slots, HV, V, K] or [slots, HV, K, V]; in place
  TensorView out;    // shape and dtype of v
  std::optional<bool> update_state;  // required: is the final state written to the pool?
  Gate gate{};                       // value [B, T, HV] or [total, HV]
  Beta beta{};                       // value [B, T, HV] or [total, HV]
  TensorView read_slots{}, read_columns{}, write_slots{};  // as in DecodeParams
  std::int64_t first_slot = 0;
  TensorView cu_seqlens{};         // [B + 1]: rows of different lengths
  TensorView starts{}, lengths{};  // [B] each: the same for rows that do not lie back to back
  // [>=B, >=T, HV, V, K] or [..., K, V]: the state after every token; any strides outside the
  // last two dimensions; float32, bfloat16, float16; excludes step_slots
  TensorView states_out{};
  // [B, >=T]: pool slot of the state after every token; a null slot skips that write. The final
  // state is then written only where write_slots is given too
  TensorView step_slots{};
  // [B]: the final state is the one after that many tokens; 0: as it was. Beside step_slots it
  // needs write_slots
  TensorView commit_lengths{};
  StateLayout layout = StateLayout::kVK;
  std::optional<double> scale{};
  bool l2norm = false;
  double l2norm_eps = 1e-6;
  norm::GatedNorm norm{};  // fused epilogue; z has the shape of out
  const char* impl = nullptr;
};

// Chunked prefill over ragged sequences. GVA: HV a multiple of Hq = Hk; GQA: Hq a
// multiple of Hk = HV, then there are Hq outputs and states. Hs = max(Hq, HV).
struct PrefillParams {
  TensorView q;                    // [total, Hq, K]; float32, bfloat16, float16
  TensorView k;                    // [total, Hk, K]
  TensorView v;                    // [total, HV, V]
  TensorView out;                  // [total, Hs, V]; dtype of q
  TensorView cu_seqlens{};         // [N + 1]
  TensorView starts{}, lengths{};  // [N] each: instead of cu_seqlens
  // tokens of the longest sequence, where the host knows; 0: the sequences are taken to be alike.
  // It helps to choose an implementation on a GPU; a wrong one costs time and changes no result
  std::int64_t max_length = 0;
  // [N] on the CPU: lengths of all sequences, where the host knows them; below 0 is refused. It goes
  // before max_length: what the device holds decides, a wrong one costs time and changes no result
  TensorView host_lengths{};
  // pool of initial and final states [slots, Hs, V, K] or [slots, Hs, K, V]; absent: every row
  // starts from zero, and is padding only where read_slots says so. Only read with state_out
  TensorView state{};
  TensorView state_out{};    // pool of final states and checkpoint slots; absent: `state`
  bool update_state = true;  // are the final states written?
  Gate gate{};               // value [total, Hs]
  Beta beta{};               // value [total, Hs]
  TensorView read_slots{}, read_columns{};  // as in DecodeParams, rows are sequences
  // [N]; absent: the read slots. Needs a pool and update_state
  TensorView write_slots{};
  std::int64_t first_slot = 0;
  // [N] bool or uint8; false: start from zero whatever the pool holds
  TensorView has_initial_state{};
  // a multiple of 64; 0: none. floor(length / every) checkpoints a sequence
  std::int64_t checkpoint_every = 0;
  // [N, C]: token counts in rising order instead; a negative entry ends the list
  TensorView checkpoint_offsets{};
  // [total_checkpoints, Hs, V, K] or [..., K, V]: where checkpoints go; float32, bfloat16,
  // float16
  TensorView checkpoints{};
  // [N + 1] int64: the i-th checkpoint of sequence n goes to row checkpoint_starts[n] + i
  TensorView checkpoint_starts{};
  TensorView
      checkpoint_slots{};  // [N, C]: or straight into pool slots; a null slot skips that write
  StateLayout layout = StateLayout::kVK;
  std::optional<double> scale{};
  bool l2norm = false;
  double l2norm_eps = 1e-6;
  // a kernel may drop terms that decayed below 2^-this; the reference drops none
  std::optional<double> decay_cutoff_log2{};
  const char* impl = nullptr;
};

// Ragged recurrence over packed q | k | v rows, token by token. Every stride is
// honoured, those of the innermost dimensions too.
struct RecurrenceParams {
  TensorView qkv;    // [total, 2*H*K + HV*V]: q heads, k heads, v heads; float32, bfloat16, float16
  TensorView state;  // [slots, HV, K, V] (kKV) or [slots, HV, V, K] (kVK); in place
  TensorView out;    // [total, HV*V]; dtype of qkv
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // H, HV, K, V
  TensorView cu_seqlens{};                                                  // [N + 1]
  TensorView starts{}, lengths{};  // [N] each: instead of cu_seqlens
  Gate gate{};                     // value [total, HV]
  Beta beta{};                     // value [total, HV]
  TensorView read_slots{}, read_columns{}, write_slots{};
  std::int64_t first_slot = 0;
  StateLayout layout = StateLayout::kKV;
  std::optional<double> scale{};
  bool l2norm = true;
  double l2norm_eps = 1e-6;
  const char* impl = nullptr;
};

HYLA_API void decode(const DecodeParams& params, const Context& context = {});
HYLA_API void mtp(const MtpParams& params, const Context& context = {});
HYLA_API void prefill(const PrefillParams& params, Workspace workspace = {},
                      const Context& context = {});
HYLA_API void recurrence(const RecurrenceParams& params, const Context& context = {});

// Upper bounds of all prefill calls that will share a workspace.
struct PrefillBounds {
  std::int64_t max_sequences = 0, max_tokens = 0;
  std::int64_t query_heads = 0, key_heads = 0, value_heads = 0;  // Hq, Hk, HV
  std::int64_t key_dim = 0, value_dim = 0;
  DType io = DType::kBFloat16;
  Device device{};
};
HYLA_API std::size_t prefill_workspace_bytes(const PrefillBounds& bounds);

}  // namespace hyla::gdn

#endif  // HYLA_GDN_H_
