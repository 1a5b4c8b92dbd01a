// Attention over KV caches (dense, ragged, paged; 16-bit, float32 or quantised), and appending to
// them.
//
// out = softmax(scale * q k^T + mask) v with a float32 softmax (float64 in the reference). One call
// serves a batch that mixes prefill and decode rows. Letters: N sequences, total query tokens, Hq
// query heads, Hk KV heads (Hq a multiple), D head dim and DV of the values (multiples of 8 up to
// 256, or 576 and 512 for MLA), P pages of S tokens (S up to 1024).
//
// kv_lengths[n] counts the tokens in the cache, those of this call included: query i of row n
// stands at position kv_lengths[n] - q_len[n] + i. A query that sees no key gives zeros and LSE
// -inf, with sinks too. Keys at or beyond kv_lengths[n] are never read; a page id that is needed
// but out of range is an error on the CPU and a page of zeros on a GPU. Keys and values below the
// length must be finite.
#ifndef HYLA_ATTENTION_H_
#define HYLA_ATTENTION_H_

#include <hyla/context.h>
#include <hyla/tensor.h>
#include <hyla/workspace.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace hyla::attention {

enum class KvLayout {
  kNHD,  // tokens before heads: [.., S, H, D]
  kHND,  // heads before tokens: [.., H, S, D]
};

// Where keys and values live. Quantised caches (float8 e4m3, int8) carry float32 scales, one for
// each run of D / scales.shape[-1] values: value = stored * scale. Without scales the stored value
// counts as it is.
struct KvCache {
  enum class Kind { kNone, kDense, kRagged, kPaged };
  Kind kind = Kind::kNone;
  // dense [N, S, Hk, D] (kHND: [N, Hk, S, D]); ragged [total_kv, Hk, D];
  // paged [P, S, Hk, D] (kHND: [P, Hk, S, D]); float32, bfloat16, float16, float8_e4m3, int8
  TensorView k;
  TensorView v;  // shape of k with DV last, dtype of k; may be a slice of k (MLA)
  // shape of k (v) with D / granularity last; float32; both or none, beside float8_e4m3 or int8
  TensorView k_scales, v_scales;
  TensorView cu_kv;       // ragged: [N + 1] row offsets
  TensorView page_table;  // paged: [N, max_pages]; entries that are not needed may be anything
  KvLayout layout = KvLayout::kNHD;

  HYLA_API static KvCache dense(TensorView k, TensorView v, KvLayout layout = KvLayout::kNHD);
  HYLA_API static KvCache ragged(TensorView k, TensorView v, TensorView cu_kv);
  HYLA_API static KvCache paged(TensorView k, TensorView v, TensorView page_table,
                                KvLayout layout = KvLayout::kNHD);
  // pages [P, 2, S, Hk, D] (kHND: [P, 2, Hk, S, D]): index 0 keys, 1 values
  HYLA_API static KvCache fused(TensorView pages, TensorView page_table,
                                KvLayout layout = KvLayout::kNHD);
  // blocks [P, 2, layers, S, Hk, D]: one layer's view
  HYLA_API static KvCache blocks(TensorView blocks, std::int64_t layer, TensorView page_table);
};

struct RunParams {
  TensorView q;  // [total, Hq, D]; float32, bfloat16, float16
  KvCache cache;
  TensorView out;                  // [total, Hq, DV]; dtype of q
  TensorView cu_seqlens{};         // [N + 1] of the queries
  TensorView starts{}, lengths{};  // [N] each: instead of cu_seqlens
  TensorView kv_lengths{};         // [N]; absent for dense and ragged caches: the whole row
  bool causal = true;              // key position <= query position
  std::int64_t window = 0;         // > 0: query - key < window (without causal: in both directions)
  std::int64_t chunk = 0;  // > 0: both in the same run of `chunk` positions; excludes window
  TensorView sinks{};      // [Hq]: a logit that joins the denominator once; any float dtype
  double softcap = 0;      // > 0: logits become softcap * tanh(logit / softcap); sinks do not
  std::optional<double> scale{};  // absent: 1/sqrt(D)
  TensorView lse{};  // [total, Hq] float32, written: ln of the denominator (sinks included)
  const char* impl = nullptr;
};

// Rotary embedding of the keys that are appended. Pairs (i, i + R/2), or (2i, 2i + 1) when
// interleaved, of the first R values of a head, R = 2 * cos.shape[1].
struct Rope {
  TensorView cos, sin;  // [positions, R/2] float32
  bool interleaved = false;
};

// Writes k and v of this call's tokens into the cache at positions kv_lengths[n] - len[n] + i,
// quantising where the cache is quantised: scale = largest magnitude of the run / 448 (e4m3) or 127
// (int8), written to the scales; without scales the value itself is rounded, saturating at the same
// limits. Two tokens that land in one place are the caller's error: either of them, or a part of
// each, is what it holds then.
struct AppendParams {
  KvCache cache;
  TensorView k;  // [total, Hk, D]; float32, bfloat16, float16
  TensorView v;  // [total, Hk, DV]; dtype of k. Absent beside an absent cache.v: keys only (MLA)
  TensorView cu_seqlens{};         // [N + 1]
  TensorView starts{}, lengths{};  // [N] each: instead of cu_seqlens
  TensorView kv_lengths{};         // [N], after the append; absent as in RunParams
  // [total]: where each token goes, page * S + place in the page (dense: row * S + position; ragged:
  // the place itself). Instead of cu_seqlens, starts, lengths, kv_lengths, cache.page_table and
  // cache.cu_kv. Negative: not written. At or beyond the end of the cache: an error on the CPU, not
  // written on a GPU
  TensorView slots{};
  TensorView positions{};  // [total]: rows of rope.cos and rope.sin, which slots do not tell
  Rope rope{};             // absent cos: keys as they are
  // quantised caches: values are divided by the scales that the cache holds (of stride 0, where one
  // serves all) instead of by new ones, which are then not written; what is too large is clamped
  bool given_scales = false;
  const char* impl = nullptr;
};

HYLA_API void run(const RunParams& params, Workspace workspace = {}, const Context& context = {});
HYLA_API void append(const AppendParams& params, const Context& context = {});

// Upper bounds of all attention calls that will share a workspace. A call takes less too, and is
// then slower: of keys and values of one byte, prompts of many tokens read 16-bit copies in the
// workspace, which has room for those of max_kv_length + max_tokens keys.
struct RunBounds {
  std::int64_t max_sequences = 0, max_tokens = 0, max_kv_length = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  DType io = DType::kBFloat16;
  Device device{};
  DType cache = DType::kNone;  // of keys and values; kNone: as io
};
HYLA_API std::size_t run_workspace_bytes(const RunBounds& bounds);

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_H_
