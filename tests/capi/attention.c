/* Append two tokens to a cache, then attend with a query of zeros: every key weighs the same. */
#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { kDim = 8 };

typedef struct {
  float k[2 * kDim], v[2 * kDim], q[2 * kDim], out[2 * kDim];
  int32_t offsets[2], lengths[1], pages[1];
  int64_t tokens_shape[3], offsets_shape[1], lengths_shape[1], table_shape[2];
} two_tokens;

static void init(two_tokens* t) {
  memset(t, 0, sizeof *t);
  for (int i = 0; i < kDim; ++i) {
    t->k[i] = t->k[kDim + i] = (float)i;
    t->v[i] = 1;
    t->v[kDim + i] = 3;
  }
  t->offsets[1] = t->lengths[0] = 2;
  const two_tokens shapes = {.tokens_shape = {2, 1, kDim},
                             .offsets_shape = {2},
                             .lengths_shape = {1},
                             .table_shape = {1, 1}};
  memcpy(t->tokens_shape, shapes.tokens_shape, sizeof *t - offsetof(two_tokens, tokens_shape));
}

static void run(two_tokens* t, const hyla_kv_cache* cache) {
  hyla_attention_append_params append = {.struct_size = sizeof append, .cache = *cache};
  append.k = floats(t->k, 3, t->tokens_shape);
  append.v = floats(t->v, 3, t->tokens_shape);
  append.cu_seqlens = ints(t->offsets, 1, t->offsets_shape);
  append.kv_lengths = ints(t->lengths, 1, t->lengths_shape);
  CHECK(hyla_attention_append(&append, NULL) == HYLA_OK);

  hyla_attention_run_bounds bounds = {.struct_size = sizeof bounds,
                                      .max_sequences = 1,
                                      .max_tokens = 2,
                                      .max_kv_length = 2,
                                      .query_heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = kDim,
                                      .value_dim = kDim};
  bounds.io = append.k.dtype;
  size_t bytes = SIZE_MAX;
  CHECK(hyla_attention_run_workspace_bytes(&bounds, &bytes) == HYLA_OK);
  CHECK(bytes < 1u << 20);

  hyla_attention_run_params p = {.struct_size = sizeof p, .cache = *cache};
  p.q = floats(t->q, 3, t->tokens_shape);
  p.out = floats(t->out, 3, t->tokens_shape);
  p.cu_seqlens = append.cu_seqlens;
  p.kv_lengths = append.kv_lengths;
  p.workspace_bytes = (bytes + 255) / 256 * 256 + 256;
  p.workspace = aligned_alloc(256, p.workspace_bytes);
  CHECK(hyla_attention_run(&p, NULL) == HYLA_OK);
  /* Causal by default: the first token sees itself, the second both, (1 + 3) / 2. */
  for (int i = 0; i < kDim; ++i) CHECK(t->out[i] == 1 && t->out[kDim + i] == 2);
  p.causal = HYLA_OFF;
  CHECK(hyla_attention_run(&p, NULL) == HYLA_OK);
  for (int i = 0; i < kDim; ++i) CHECK(t->out[i] == 2 && t->out[kDim + i] == 2);
  free(p.workspace);
}

/* Pages of two tokens: separate, fused, and as one layer of blocks. */
static void paged(void) {
  two_tokens t;
  float k[2 * kDim], v[2 * kDim], both[2 * 2 * kDim], blocks[2 * 3 * 2 * kDim];
  int64_t page_shape[4] = {1, 2, 1, kDim}, fused_shape[5] = {1, 2, 2, 1, kDim};
  int64_t blocks_shape[6] = {1, 2, 3, 2, 1, kDim};
  init(&t);
  hyla_kv_cache cache = {.kind = HYLA_KV_PAGED};
  cache.k = floats(k, 4, page_shape);
  cache.v = floats(v, 4, page_shape);
  cache.page_table = ints(t.pages, 2, t.table_shape);
  run(&t, &cache);
  CHECK(memcmp(k, t.k, sizeof k) == 0 && memcmp(v, t.v, sizeof v) == 0);

  init(&t);
  cache.kind = HYLA_KV_FUSED;
  cache.k = floats(both, 5, fused_shape);
  hyla_attention_append_params refused = {.struct_size = sizeof refused, .cache = cache};
  CHECK_REFUSED(hyla_attention_append(&refused, NULL), HYLA_INVALID_ARGUMENT, "cache.v");
  memset(&cache.v, 0, sizeof cache.v);
  run(&t, &cache);
  CHECK(memcmp(both, t.k, sizeof t.k) == 0);
  CHECK(memcmp(both + 2 * kDim, t.v, sizeof t.v) == 0);

  init(&t);
  memset(blocks, 0, sizeof blocks);
  cache.kind = HYLA_KV_BLOCKS;
  cache.layer = 1;
  cache.k = floats(blocks, 6, blocks_shape);
  run(&t, &cache);
  CHECK(memcmp(blocks + 2 * kDim, t.k, sizeof t.k) == 0);
  CHECK(memcmp(blocks + (3 + 1) * 2 * kDim, t.v, sizeof t.v) == 0);
  CHECK(blocks[0] == 0 && blocks[2 * 2 * kDim] == 0); /* the layers beside it */
}

static void dense(void) {
  two_tokens t;
  float k[2 * kDim], v[2 * kDim];
  int64_t shape[4] = {1, 1, 2, kDim};
  init(&t);
  hyla_kv_cache cache = {.kind = HYLA_KV_DENSE, .layout = HYLA_KV_HND};
  cache.k = floats(k, 4, shape);
  cache.v = floats(v, 4, shape);
  run(&t, &cache);
}

/* Two pages of two tokens: the first token goes to the second page, the other one nowhere. */
static void by_slots(void) {
  two_tokens t;
  float k[4 * kDim], v[4 * kDim];
  int32_t slots[2] = {3, -1}, positions[2] = {0, 0};
  int64_t page_shape[4] = {2, 2, 1, kDim}, slots_shape[1] = {2};
  init(&t);
  memset(k, 0, sizeof k);
  memset(v, 0, sizeof v);
  hyla_attention_append_params append = {.struct_size = sizeof append};
  append.cache.kind = HYLA_KV_PAGED;
  append.cache.k = floats(k, 4, page_shape);
  append.cache.v = floats(v, 4, page_shape);
  append.k = floats(t.k, 3, t.tokens_shape);
  append.v = floats(t.v, 3, t.tokens_shape);
  append.slots = ints(slots, 1, slots_shape);
  CHECK(hyla_attention_append(&append, NULL) == HYLA_OK);
  for (int i = 0; i < 3 * kDim; ++i) CHECK(k[i] == 0 && v[i] == 0);
  CHECK(memcmp(k + 3 * kDim, t.k, kDim * sizeof *k) == 0);
  CHECK(memcmp(v + 3 * kDim, t.v, kDim * sizeof *v) == 0);
  append.positions = ints(positions, 1, slots_shape);
  CHECK_REFUSED(hyla_attention_append(&append, NULL), HYLA_INVALID_ARGUMENT, "positions");
  memset(&append.positions, 0, sizeof append.positions);
  append.kv_lengths = ints(t.lengths, 1, t.lengths_shape);
  CHECK_REFUSED(hyla_attention_append(&append, NULL), HYLA_INVALID_ARGUMENT, "kv_lengths");
  memset(&append.kv_lengths, 0, sizeof append.kv_lengths);
  slots[1] = 4;
  CHECK_REFUSED(hyla_attention_append(&append, NULL), HYLA_INVALID_ARGUMENT, "slots");
}

/* The first token's sides weigh 1 and 3, the second saw keys on one side only. */
static void merge(void) {
  two_tokens t;
  float a_lse[2], b_lse[2] = {0, -INFINITY}, lse[2];
  int64_t lse_shape[2] = {2, 1};
  init(&t);
  a_lse[0] = -logf(3), a_lse[1] = 5;
  hyla_attention_merge_params p = {.struct_size = sizeof p};
  p.a = floats(t.v, 3, t.tokens_shape); /* 1, then 3 */
  p.b = floats(t.q, 3, t.tokens_shape);
  for (int i = 0; i < 2 * kDim; ++i) t.q[i] = 5;
  p.a_lse = floats(a_lse, 2, lse_shape);
  p.b_lse = floats(b_lse, 2, lse_shape);
  p.out = floats(t.out, 3, t.tokens_shape);
  CHECK(hyla_attention_merge(&p, NULL) == HYLA_OK);
  for (int i = 0; i < kDim; ++i) {
    CHECK(fabsf(t.out[i] - 4) < 1e-5f); /* (1 + 3 * 5) / 4 */
    CHECK(t.out[kDim + i] == 3);
  }
  p.lse = floats(lse, 2, lse_shape);
  CHECK(hyla_attention_merge(&p, NULL) == HYLA_OK);
  CHECK(fabsf(lse[0] - logf(4.0f / 3)) < 1e-6f && lse[1] == 5);
  p.out = p.b;
  p.lse = p.a_lse;
  CHECK(hyla_attention_merge(&p, NULL) == HYLA_OK);
  CHECK(t.q[kDim] == 3 && fabsf(a_lse[0] - logf(4.0f / 3)) < 1e-6f);
}

int main(void) {
  paged();
  dense();
  by_slots();
  merge();
  return failures != 0;
}
