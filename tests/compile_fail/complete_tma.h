// An operand that has everything, tiles of the copy engine included. A test hides one member.
#pragma once

#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operand_base.h>

#include "complete.h"

template <class Operand>
struct CompleteTma : Rows<float>,
                     hyla::attention::KvOperandBase<Operand, float>,
                     hyla::attention::StridedTmaTiles<Operand, float> {
  std::int64_t num_kv_rows() const { return 4; }
  hyla::attention::RowMatrix row_matrix() const { return {data, 4, 1, 16, 16, 16}; }
};
