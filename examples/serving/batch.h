// One step of the engine as the operations see it: tokens lie in one flat list, first the decode
// rows (one token, or one and its drafts), then the prefill chunks.
//
// The decode section has a fixed size, as a captured CUDA graph needs: rows that are not in use
// have the null slot and no tokens, and token places that are not in use are computed by the matrix
// products and by nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace serving {

inline constexpr int kNullSlot = 0;  // slots are handed out from 1 (first_slot = 1)

// An index table [rows, cols] that grows by rows.
struct Table {
  int cols = 0;
  std::vector<std::int32_t> data;

  void add(std::vector<std::int32_t> row, std::int32_t filler) {
    row.resize(cols, filler);
    data.insert(data.end(), row.begin(), row.end());
  }
};

struct DecodeSection {
  int rows = 0;         // the fixed batch size, padding included; 0: nobody decodes
  int tokens = 0;       // places in the flat list
  bool drafts = false;  // has any row more than one token?
  std::vector<std::int32_t> cu_seqlens{0};
  Table slots;                        // [rows, drafts + 1]: the state after the row's i-th token
  std::vector<std::int32_t> columns;  // [rows]: which of them, and which window, to start from
};

struct PrefillSection {
  std::vector<std::int32_t> cu_seqlens{0}, read_slots, write_slots, window_offsets;
  std::vector<std::uint8_t> has_initial_state;
  Table checkpoint_offsets, checkpoint_slots;  // [rows, most checkpoints in a chunk]
};

struct Batch {
  std::vector<std::int32_t> tokens, positions;
  DecodeSection decode;
  PrefillSection prefill;
  // Rows of the attention layer: those that decode, then those that prefill.
  std::vector<std::int32_t> starts, lengths, kv_lengths;
  Table page_table;
  std::vector<std::int32_t> logit_places;  // tokens whose logits somebody wants

  // Returns the place of the row's first token.
  int add_attention_row(const std::vector<int>& row, int position,
                        const std::vector<std::int32_t>& pages) {
    const int start = int(tokens.size()), count = int(row.size());
    for (int i = 0; i < count; ++i) {
      tokens.push_back(row[i]);
      positions.push_back(position + i);
    }
    starts.push_back(start);
    lengths.push_back(count);
    kv_lengths.push_back(position + count);
    page_table.add(pages, -1);
    return start;
  }

  // Returns the index of the row's first logits.
  int add_decode_row(const std::vector<int>& row, int position,
                     const std::vector<std::int32_t>& slots, int column,
                     const std::vector<std::int32_t>& pages) {
    const int start = add_attention_row(row, position, pages);
    decode.drafts |= row.size() > 1;
    decode.cu_seqlens.push_back(int(tokens.size()));
    decode.slots.add(slots, kNullSlot);
    decode.columns.push_back(column);
    const int first = int(logit_places.size());
    for (int i = 0; i < int(row.size()); ++i) logit_places.push_back(start + i);
    return first;
  }

  void pad_decode_section(int rows) {
    if (decode.columns.empty()) return;
    decode.rows = rows;
    decode.tokens = rows * (decode.drafts ? decode.slots.cols : 1);
    decode.cu_seqlens.resize(rows + 1, int(tokens.size()));
    decode.columns.resize(rows, 0);
    decode.slots.data.resize(std::size_t(rows) * decode.slots.cols, kNullSlot);
    tokens.resize(decode.tokens, 0);
    positions.resize(decode.tokens, 0);
  }
};

}  // namespace serving
