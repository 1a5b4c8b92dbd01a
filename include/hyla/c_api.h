/* hyla for C and for every language that speaks C: plain C11.
 *
 * One function per operation, over a struct of parameters and a context. What the fields mean is in
 * gdn.h, conv.h, norm.h and attention.h, where they have the same names; here stand their shapes.
 *
 * - Begin with zeros and the size: `hyla_gdn_decode_params p = {.struct_size = sizeof p};`. Zero
 *   means the default in every field. A struct that ends earlier or later than this library's
 *   (another version of this header) is taken, as long as nothing required is missing and nothing
 *   unknown is set.
 * - A tensor is a DLTensor by value; a DLTensor of zeros is an absent one.
 * - Every function catches everything and returns a status; hyla_last_error() says what was wrong,
 *   the name of the argument first.
 * - Nothing is global, nothing is kept: all functions may be called from any thread at any time. */
#ifndef HYLA_C_API_H_
#define HYLA_C_API_H_

#include <hyla/dlpack_abi.h>
#include <hyla/export.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a struct or function changes in a way that old programs notice. */
#define HYLA_ABI_VERSION 1

typedef enum hyla_status {
  HYLA_OK = 0,
  HYLA_INVALID_ARGUMENT = 1, /* an argument breaks a rule; nothing was written */
  HYLA_UNSUPPORTED = 2,      /* valid, but no implementation (or not the forced one) takes it */
  HYLA_WORKSPACE_TOO_SMALL = 3,
  HYLA_DEVICE_ERROR = 4, /* CUDA refused something */
  HYLA_INTERNAL = 5      /* out of memory, or a fault of hyla */
} hyla_status;

HYLA_API uint32_t hyla_abi_version(void);              /* HYLA_ABI_VERSION of the library */
HYLA_API const char* hyla_version(void);               /* "0.1.0" */
HYLA_API const char* hyla_status_name(int32_t status); /* "ok", "invalid_argument", ... */

/* What went wrong in this thread's latest call that returned a status; empty when it succeeded. The
 * text stays until the thread's next call. */
HYLA_API const char* hyla_last_error(void);

/* Fields that hold one of these have the type int32_t. */
typedef enum hyla_switch { HYLA_DEFAULT = 0, HYLA_ON = 1, HYLA_OFF = 2 } hyla_switch;

typedef enum hyla_state_layout {
  HYLA_STATE_DEFAULT = 0, /* the recurrence: KV; every other operation: VK */
  HYLA_STATE_KV = 1,      /* [..., K, V], V contiguous */
  HYLA_STATE_VK = 2       /* [..., V, K], K contiguous */
} hyla_state_layout;

typedef enum hyla_gate_kind {
  HYLA_GATE_NONE = 0,   /* alpha = 1 */
  HYLA_GATE_LINEAR = 1, /* value is alpha in [0, 1] */
  HYLA_GATE_LOG = 2,    /* value is ln(alpha) <= 0 */
  HYLA_GATE_RAW = 3     /* ln(alpha) = -exp(A_log) * softplus(value + dt_bias) */
} hyla_gate_kind;

typedef enum hyla_beta_kind {
  HYLA_BETA_NONE = 0,        /* beta = 1 */
  HYLA_BETA_PROBABILITY = 1, /* used as it is */
  HYLA_BETA_LOGIT = 2        /* sigmoid(value) */
} hyla_beta_kind;

typedef enum hyla_activation {
  HYLA_ACTIVATION_DEFAULT = 0, /* SiLU everywhere */
  HYLA_ACTIVATION_NONE = 1,    /* conv only */
  HYLA_ACTIVATION_SILU = 2,
  HYLA_ACTIVATION_SIGMOID = 3 /* norm only */
} hyla_activation;

typedef enum hyla_kv_kind {
  HYLA_KV_NONE = 0,
  HYLA_KV_DENSE = 1,
  HYLA_KV_RAGGED = 2,
  HYLA_KV_PAGED = 3,
  HYLA_KV_FUSED = 4, /* k holds pages [P, 2, S, Hk, D], v is absent */
  HYLA_KV_BLOCKS = 5 /* k holds blocks [P, 2, layers, S, Hk, D], v is absent, `layer` chooses */
} hyla_kv_kind;

typedef enum hyla_kv_layout {
  HYLA_KV_NHD = 0, /* tokens before heads */
  HYLA_KV_HND = 1  /* heads before tokens */
} hyla_kv_layout;

/* Where and how a call runs. A null pointer for a context means the CPU with all defaults. */
typedef struct hyla_context {
  uint32_t struct_size;
  int32_t threads;             /* CPU: 0 = as many as the machine has */
  DLDevice device;             /* where all tensors of the call live; zeros: the CPU */
  void* stream;                /* a cudaStream_t; counts only with has_stream */
  int32_t has_stream;          /* required on a GPU; a null stream is then the legacy stream */
  int32_t batch_invariant;     /* a row's bits depend on nothing but the row, heads and dims */
  int32_t programmatic_launch; /* GPU: programmatic dependent launch */
  int32_t reserved;            /* 0 */
  /* CPU: a pool of the caller's, which calls body(task, i) for every i in [0, count) and returns
   * when all are done. Null: OpenMP where the library was built with it */
  void (*parallel_for)(void* pool, int count, void (*body)(void* task, int i), void* task);
  void* parallel_pool; /* handed to parallel_for */
} hyla_context;

typedef struct hyla_gate {
  int32_t kind;     /* hyla_gate_kind */
  DLTensor value;   /* [tokens..., HV] */
  DLTensor A_log;   /* [HV], raw */
  DLTensor dt_bias; /* [HV], raw */
} hyla_gate;

typedef struct hyla_beta {
  int32_t kind;   /* hyla_beta_kind */
  DLTensor value; /* [tokens..., HV] */
} hyla_beta;

/* A fused epilogue of decode and MTP; present when z is. */
typedef struct hyla_gated_norm {
  DLTensor z;      /* shape of out */
  DLTensor weight; /* [V] */
  double eps;      /* 0: 1e-6 */
  int32_t gate;    /* hyla_activation: SiLU or sigmoid */
} hyla_gated_norm;

typedef struct hyla_gdn_decode_params {
  uint32_t struct_size;
  int32_t layout; /* hyla_state_layout */
  DLTensor q;     /* [B, H, K] or [B, 1, H, K] */
  DLTensor k;     /* shape of q */
  DLTensor v;     /* [B, HV, V] or [B, 1, HV, V] */
  DLTensor state; /* [slots, HV, V, K] (VK) or [slots, HV, K, V] (KV); in place */
  DLTensor out;   /* shape of v */
  /* Everything from here on is optional. */
  hyla_gate gate;
  hyla_beta beta;
  DLTensor read_slots;   /* [B], or [B, S] with read_columns */
  DLTensor read_columns; /* [B] */
  DLTensor write_slots;  /* [B] */
  int64_t first_slot;
  double scale;      /* counts only with has_scale; otherwise 1/sqrt(K) */
  int32_t has_scale; /* 0 or 1 */
  int32_t l2norm;    /* hyla_switch; default off */
  double l2norm_eps; /* 0: 1e-6 */
  hyla_gated_norm norm;
  const char* impl; /* force an implementation by name */
} hyla_gdn_decode_params;

typedef struct hyla_gdn_mtp_params {
  uint32_t struct_size;
  int32_t layout;       /* hyla_state_layout */
  DLTensor q;           /* [B, T, H, K], or [total, H, K] with rows of different lengths */
  DLTensor k;           /* shape of q */
  DLTensor v;           /* [B, T, HV, V] or [total, HV, V] */
  DLTensor state;       /* [slots, HV, V, K] or [slots, HV, K, V]; in place */
  DLTensor out;         /* shape of v */
  int32_t update_state; /* hyla_switch; on or off must be said */
  int32_t l2norm;       /* hyla_switch; default off */
  /* Everything from here on is optional. */
  hyla_gate gate;
  hyla_beta beta;
  DLTensor read_slots;   /* [B], or [B, S] with read_columns */
  DLTensor read_columns; /* [B] */
  DLTensor write_slots;  /* [B] */
  int64_t first_slot;
  DLTensor cu_seqlens;      /* [B + 1] */
  DLTensor starts, lengths; /* [B] each: instead of cu_seqlens */
  DLTensor states_out;      /* [>=B, >=T, HV, V, K] or [.., K, V]: the state after every token */
  DLTensor step_slots;      /* [B, >=T]: the same, into pool slots */
  DLTensor commit_lengths;  /* [B] */
  double scale;             /* counts only with has_scale; otherwise 1/sqrt(K) */
  int32_t has_scale;        /* 0 or 1 */
  double l2norm_eps;        /* 0: 1e-6 */
  hyla_gated_norm norm;
  const char* impl;
} hyla_gdn_mtp_params;

typedef struct hyla_gdn_prefill_params {
  uint32_t struct_size;
  int32_t layout; /* hyla_state_layout */
  DLTensor q;     /* [total, Hq, K] */
  DLTensor k;     /* [total, Hk, K] */
  DLTensor v;     /* [total, HV, V] */
  DLTensor out;   /* [total, max(Hq, HV), V] */
  /* Sequences: cu_seqlens, or starts and lengths. Everything else from here on is optional. */
  DLTensor cu_seqlens;      /* [N + 1] */
  DLTensor starts, lengths; /* [N] each */
  DLTensor state;           /* [slots, Hs, V, K] or [slots, Hs, K, V]; absent: start from zero */
  DLTensor state_out;       /* pool of final states; absent: state */
  int32_t update_state;     /* hyla_switch; default on */
  int32_t l2norm;           /* hyla_switch; default off */
  hyla_gate gate;
  hyla_beta beta;
  DLTensor read_slots;   /* [N], or [N, S] with read_columns */
  DLTensor read_columns; /* [N] */
  DLTensor write_slots;  /* [N] */
  int64_t first_slot;
  DLTensor has_initial_state;  /* [N] bool or uint8 */
  int64_t checkpoint_every;    /* a multiple of 64; 0: none */
  DLTensor checkpoint_offsets; /* [N, C] */
  DLTensor checkpoints;        /* [total_checkpoints, Hs, V, K] or [.., K, V] */
  DLTensor checkpoint_starts;  /* [N + 1] int64 */
  DLTensor checkpoint_slots;   /* [N, C] */
  double scale;                /* counts only with has_scale; otherwise 1/sqrt(K) */
  double decay_cutoff_log2;    /* counts only with has_decay_cutoff_log2 */
  int32_t has_scale;           /* 0 or 1 */
  int32_t has_decay_cutoff_log2;
  double l2norm_eps; /* 0: 1e-6 */
  void* workspace;   /* on the context's device, aligned to 256 bytes */
  size_t workspace_bytes;
  const char* impl;
  int64_t max_length;    /* tokens of the longest sequence, where known; 0: all are alike */
  DLTensor host_lengths; /* [N] on the CPU: lengths of all sequences, where known */
} hyla_gdn_prefill_params;

/* Upper bounds of all prefill calls that will share a workspace. */
typedef struct hyla_gdn_prefill_bounds {
  uint32_t struct_size;
  DLDataType io; /* of q, k, v; zeros: bfloat16 */
  int64_t max_sequences, max_tokens;
  int64_t query_heads, key_heads, value_heads;
  int64_t key_dim, value_dim;
  /* Everything from here on is optional. */
  DLDevice device; /* zeros: the CPU */
} hyla_gdn_prefill_bounds;

typedef struct hyla_gdn_recurrence_params {
  uint32_t struct_size;
  int32_t layout; /* hyla_state_layout */
  DLTensor qkv;   /* [total, 2*H*K + HV*V] */
  DLTensor state; /* [slots, HV, K, V] (KV) or [slots, HV, V, K] (VK); in place */
  DLTensor out;   /* [total, HV*V] */
  int64_t key_heads, value_heads, key_dim, value_dim;
  /* Sequences: cu_seqlens, or starts and lengths. Everything else from here on is optional. */
  DLTensor cu_seqlens;      /* [N + 1] */
  DLTensor starts, lengths; /* [N] each */
  hyla_gate gate;
  hyla_beta beta;
  DLTensor read_slots;   /* [N], or [N, S] with read_columns */
  DLTensor read_columns; /* [N] */
  DLTensor write_slots;  /* [N] */
  int64_t first_slot;
  double scale;      /* counts only with has_scale; otherwise 1/sqrt(K) */
  int32_t has_scale; /* 0 or 1 */
  int32_t l2norm;    /* hyla_switch; default on */
  double l2norm_eps; /* 0: 1e-6 */
  const char* impl;
} hyla_gdn_recurrence_params;

typedef struct hyla_conv_prefill_params {
  uint32_t struct_size;
  int32_t activation; /* hyla_activation: SiLU or none */
  DLTensor x;         /* [total, C], or [B, T, C] */
  DLTensor weight;    /* [C, W] */
  DLTensor out;       /* shape of x; or x itself */
  /* Everything from here on is optional. */
  DLTensor state;           /* [slots, C, L]; in place */
  DLTensor bias;            /* [C] */
  DLTensor cu_seqlens;      /* [N + 1] */
  DLTensor starts, lengths; /* [N] each */
  DLTensor read_slots;      /* [N], or [N, S] with read_columns */
  DLTensor read_columns;    /* [N] */
  DLTensor write_slots;     /* [N] */
  int64_t first_slot;
  DLTensor window_offsets;     /* [N] */
  DLTensor has_initial_state;  /* [N] bool or uint8 */
  DLTensor checkpoint_offsets; /* [N, M] */
  DLTensor checkpoint_slots;   /* [N, M] */
  const char* impl;
} hyla_conv_prefill_params;

typedef struct hyla_conv_update_params {
  uint32_t struct_size;
  int32_t activation; /* hyla_activation: SiLU or none */
  DLTensor x;         /* [B, C], [B, T, C], or [total, C] with rows of different lengths */
  DLTensor weight;    /* [C, W] */
  DLTensor out;       /* shape of x; or x itself */
  DLTensor state;     /* [slots, C, L]; in place */
  /* Everything from here on is optional. */
  DLTensor bias;            /* [C] */
  DLTensor cu_seqlens;      /* [B + 1] */
  DLTensor starts, lengths; /* [B] each */
  DLTensor read_slots;      /* [B], or [B, S] with read_columns */
  DLTensor read_columns;    /* [B] */
  DLTensor write_slots;     /* [B] */
  int64_t first_slot;
  DLTensor window_offsets; /* [B] */
  DLTensor commit_lengths; /* [B] */
  const char* impl;
} hyla_conv_update_params;

typedef struct hyla_norm_gated_rms_params {
  uint32_t struct_size;
  int32_t gate;    /* hyla_activation: SiLU or sigmoid */
  DLTensor x;      /* [rows, D] or [tokens, heads, D] */
  DLTensor z;      /* shape of x */
  DLTensor weight; /* [D] */
  DLTensor out;    /* shape of x; or x itself */
  /* Everything from here on is optional. */
  double eps; /* 0: 1e-6 */
  const char* impl;
} hyla_norm_gated_rms_params;

typedef struct hyla_kv_cache {
  int32_t kind;   /* hyla_kv_kind */
  int32_t layout; /* hyla_kv_layout */
  int64_t layer;  /* HYLA_KV_BLOCKS */
  DLTensor k;     /* dense [N, S, Hk, D]; ragged [total_kv, Hk, D]; paged [P, S, Hk, D] */
  DLTensor v;     /* the same with DV */
  DLTensor k_scales, v_scales; /* shape of k (v) with D / granularity as the last dimension */
  DLTensor cu_kv;              /* ragged: [N + 1] */
  DLTensor page_table;         /* paged: [N, max_pages] */
} hyla_kv_cache;

typedef struct hyla_attention_run_params {
  uint32_t struct_size;
  int32_t causal; /* hyla_switch; default on */
  DLTensor q;     /* [total, Hq, D] */
  DLTensor out;   /* [total, Hq, DV] */
  hyla_kv_cache cache;
  /* Sequences: cu_seqlens, or starts and lengths. Everything else from here on is optional. */
  DLTensor cu_seqlens;      /* [N + 1] of the queries */
  DLTensor starts, lengths; /* [N] each */
  DLTensor kv_lengths;      /* [N] */
  int64_t window;           /* > 0: sliding window */
  int64_t chunk;            /* > 0: chunked */
  DLTensor sinks;           /* [Hq] */
  DLTensor lse;             /* [total, Hq] float32, written */
  double softcap;           /* > 0: soft-capped logits */
  double scale;             /* counts only with has_scale; otherwise 1/sqrt(D) */
  int32_t has_scale;        /* 0 or 1 */
  void* workspace;          /* on the context's device, aligned to 256 bytes */
  size_t workspace_bytes;
  const char* impl;
} hyla_attention_run_params;

/* Upper bounds of all attention calls that will share a workspace. */
typedef struct hyla_attention_run_bounds {
  uint32_t struct_size;
  DLDataType io; /* of q; zeros: bfloat16 */
  int64_t max_sequences, max_tokens, max_kv_length;
  int64_t query_heads, kv_heads, head_dim, value_dim;
  /* Everything from here on is optional. */
  DLDevice device; /* zeros: the CPU */
  /* Of keys and values; zeros: as q. One byte: with room for 16-bit copies of them. */
  DLDataType cache;
} hyla_attention_run_bounds;

typedef struct hyla_rope {
  DLTensor cos, sin;   /* [positions, R/2] float32 */
  int32_t interleaved; /* 0: pairs (i, i + R/2); 1: pairs (2i, 2i + 1) */
} hyla_rope;

typedef struct hyla_attention_append_params {
  uint32_t struct_size;
  hyla_kv_cache cache;
  DLTensor k; /* [total, Hk, D] */
  DLTensor v; /* [total, Hk, DV]; absent beside an absent cache.v */
  /* Sequences: cu_seqlens, or starts and lengths. Everything else from here on is optional. */
  DLTensor cu_seqlens;      /* [N + 1] */
  DLTensor starts, lengths; /* [N] each */
  DLTensor kv_lengths;      /* [N], after the append */
  hyla_rope rope;
  const char* impl;
  int32_t given_scales; /* 1: divide by the scales that the cache holds, and do not write them */
  /* [total]: where tokens go, page * S + place in the page; negative: nowhere. Instead of sequences,
   * kv_lengths, cache.page_table and cache.cu_kv. */
  DLTensor slots;
  DLTensor positions; /* [total]: rows of rope.cos and rope.sin, beside slots */
} hyla_attention_append_params;

/* Two attentions of the same queries over different keys become one. */
typedef struct hyla_attention_merge_params {
  uint32_t struct_size;
  DLTensor a;     /* [total, Hq, DV] */
  DLTensor a_lse; /* [total, Hq] float32; infinite: no key was seen */
  DLTensor b;     /* shape of a */
  DLTensor b_lse; /* [total, Hq] float32 */
  DLTensor out;   /* shape of a; may be a or b */
  /* Everything from here on is optional. */
  DLTensor lse; /* [total, Hq] float32, written; may be a_lse or b_lse */
  const char* impl;
} hyla_attention_merge_params;

/* Threads for calls on a CPU, in place of OpenMP's: the caller works too and takes over what no
 * thread has begun, so a call does not wait for threads that others keep from running. `threads`: of
 * a call, its caller among them, 64 at most; 0: as many as the machine has. */
typedef struct hyla_thread_pool hyla_thread_pool;
HYLA_API hyla_status hyla_thread_pool_create(int32_t threads, hyla_thread_pool** pool);
/* Sets threads, parallel_for and parallel_pool of a context; the pool must outlive its calls. */
HYLA_API hyla_status hyla_thread_pool_use(hyla_thread_pool* pool, hyla_context* context);
HYLA_API void hyla_thread_pool_destroy(hyla_thread_pool* pool); /* null: nothing */

HYLA_API hyla_status hyla_gdn_decode(const hyla_gdn_decode_params* params,
                                     const hyla_context* context);
HYLA_API hyla_status hyla_gdn_mtp(const hyla_gdn_mtp_params* params, const hyla_context* context);
HYLA_API hyla_status hyla_gdn_prefill(const hyla_gdn_prefill_params* params,
                                      const hyla_context* context);
HYLA_API hyla_status hyla_gdn_recurrence(const hyla_gdn_recurrence_params* params,
                                         const hyla_context* context);
HYLA_API hyla_status hyla_conv_prefill(const hyla_conv_prefill_params* params,
                                       const hyla_context* context);
HYLA_API hyla_status hyla_conv_update(const hyla_conv_update_params* params,
                                      const hyla_context* context);
HYLA_API hyla_status hyla_norm_gated_rms(const hyla_norm_gated_rms_params* params,
                                         const hyla_context* context);
HYLA_API hyla_status hyla_attention_run(const hyla_attention_run_params* params,
                                        const hyla_context* context);
HYLA_API hyla_status hyla_attention_append(const hyla_attention_append_params* params,
                                           const hyla_context* context);
HYLA_API hyla_status hyla_attention_merge(const hyla_attention_merge_params* params,
                                          const hyla_context* context);

HYLA_API hyla_status hyla_gdn_prefill_workspace_bytes(const hyla_gdn_prefill_bounds* bounds,
                                                      size_t* bytes);
HYLA_API hyla_status hyla_attention_run_workspace_bytes(const hyla_attention_run_bounds* bounds,
                                                        size_t* bytes);

/* What every implementation of an operation says about a call, best first, a line each: `name: ok`
 * or `name: reason`; the first that says ok would run. `operation` is "gdn.decode", "gdn.mtp",
 * "gdn.prefill", "gdn.recurrence", "conv.prefill", "conv.update", "norm.gated_rms", "attention.run",
 * "attention.append" or "attention.merge"; `params` points to the struct of that operation's
 * function. The text is cut to `capacity` bytes, terminator included; `needed` (may be null): how
 * many it takes. */
HYLA_API hyla_status hyla_explain(const char* operation, const void* params,
                                  const hyla_context* context, char* buffer, size_t capacity,
                                  size_t* needed);

#ifdef __cplusplus
}
#endif

#endif /* HYLA_C_API_H_ */
