// Slots and sequences: the index arguments that most operations share. On a CPU their contents are
// checked too, so that nothing out of range is ever dereferenced; on a GPU a kernel treats what is
// out of range as null.
#include <algorithm>
#include <vector>

#include "core/bounds.h"
#include "core/check.h"
#include "core/on_host.h"

namespace hyla::core {
namespace {

[[noreturn]] void fail_no_rows(const SequenceArguments& arguments) {
  if (arguments.lengths.present()) fail("starts", "row starts beside lengths", "none");
  fail("cu_seqlens", "row offsets, or starts and lengths", "none");
}

void check_cu_seqlens(const Sequences& sequences) {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= sequences.rows; ++i) {
    const std::int64_t now = sequences.cu_seqlens.at(i);
    if (now < before) {
      fail("cu_seqlens", "offsets >= 0 that do not fall", text(now) + " at index " + text(i));
    }
    if (now > sequences.tokens) {
      fail("cu_seqlens", "offsets up to the " + text(sequences.tokens) + " tokens given",
           text(now) + " at index " + text(i));
    }
    before = now;
  }
}

void check_starts(const Sequences& sequences) {
  for (std::int64_t i = 0; i < sequences.rows; ++i) {
    const std::int64_t start = sequences.starts.at(i), length = sequences.lengths.at(i);
    if (length < 0) fail("lengths", "lengths >= 0", text(length) + " at index " + text(i));
    if (start < 0 || start > sequences.tokens || length > sequences.tokens - start) {
      fail("starts", "rows inside the " + text(sequences.tokens) + " tokens given",
           "start " + text(start) + ", length " + text(length) + " at index " + text(i));
    }
  }
  // Rows that share a token would write the same output twice. In order, as most callers have them,
  // they need no sorting, nor memory for it.
  std::int64_t end = 0;
  bool ordered = true;
  for (std::int64_t i = 0; i < sequences.rows; ++i) {
    if (sequences.length(i) == 0) continue;
    ordered = ordered && sequences.begin(i) >= end;
    end = sequences.begin(i) + sequences.length(i);
  }
  if (ordered) return;
  std::vector<std::int64_t> order(static_cast<std::size_t>(sequences.rows));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::erase_if(order, [&](std::int64_t i) { return sequences.length(i) == 0; });
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return sequences.begin(a) < sequences.begin(b);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (sequences.begin(order[i - 1]) + sequences.length(order[i - 1]) >
        sequences.begin(order[i])) {
      fail("starts", "rows that share no token",
           "rows " + text(order[i - 1]) + " and " + text(order[i]));
    }
  }
}

}  // namespace

void check_slots(Slots& slots, const SlotArguments& arguments, std::int64_t rows,
                 const Context& context) {
  slots.first = arguments.first_slot;
  slots.read_limit = arguments.read_limit;
  slots.write_limit = arguments.write_limit;
  if (arguments.first_slot < 0) fail("first_slot", "a number >= 0", text(arguments.first_slot));
  Shapes shapes;
  shapes.bind("B", rows);
  if (arguments.read_slots.present()) {
    const bool table = arguments.read_slots.rank == 2;
    check_indices(slots.read, "read_slots", arguments.read_slots,
                  table ? Pattern("B S") : Pattern("B"), shapes, context);
    if (table && !arguments.read_columns.present()) {
      fail("read_columns", "the column of each row, because read_slots is a table", "none");
    }
    if (table && slots.read.columns == 0) fail("read_slots", "at least one column", "0");
    if (!table) check_absent("read_columns", arguments.read_columns, "without a read_slots table");
  } else {
    check_absent("read_columns", arguments.read_columns, "without a read_slots table");
    if (rows > arguments.read_limit) {
      fail(arguments.pool, "at least " + text(rows) + " slots, one a row, without read_slots",
           text(arguments.read_limit));
    }
  }
  if (arguments.read_columns.present()) {
    check_indices(slots.read_columns, "read_columns", arguments.read_columns, "B", shapes, context);
  }
  if (arguments.write_slots.present()) {
    check_indices(slots.write, "write_slots", arguments.write_slots, "B", shapes, context);
  }
  if (!on_host(context)) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t read = slots.raw_read(row), write = slots.raw_write(row);
    // Padding: its write slot is not looked at either.
    if (read < slots.first && slots.read_slot(row) == kNullSlot) continue;
    if (read >= slots.read_limit) {
      fail(arguments.read_slots.present() ? "read_slots" : arguments.pool,
           "slots below " + text(slots.read_limit), text(read) + " in row " + text(row));
    }
    if (write >= slots.first && write >= slots.write_limit) {
      fail(arguments.write_slots.present()  ? "write_slots"
           : arguments.read_slots.present() ? "read_slots"
                                            : arguments.pool,
           "slots below " + text(slots.write_limit), text(write) + " in row " + text(row));
    }
  }
}

bool any_given(const SequenceArguments& arguments) {
  return arguments.cu_seqlens.present() || arguments.starts.present() ||
         arguments.lengths.present();
}

std::int64_t rows_of(const SequenceArguments& arguments) {
  const bool offsets = arguments.cu_seqlens.present();
  const TensorView& view = offsets ? arguments.cu_seqlens : arguments.starts;
  const char* name = offsets ? "cu_seqlens" : "starts";
  if (!view.present()) fail_no_rows(arguments);
  if (view.rank != 1 || view.shape[0] < (offsets ? 1 : 0)) {
    fail(name, offsets ? "shape [N+1]" : "shape [N]", describe(view));
  }
  return view.shape[0] - (offsets ? 1 : 0);
}

void check_sequences(Sequences& sequences, const SequenceArguments& arguments, std::int64_t total,
                     const Context& context) {
  sequences.tokens = total;
  Shapes shapes;
  if (arguments.cu_seqlens.present()) {
    check_absent("starts", arguments.starts, "beside cu_seqlens");
    check_absent("lengths", arguments.lengths, "beside cu_seqlens");
    check_indices(sequences.cu_seqlens, "cu_seqlens", arguments.cu_seqlens, "N+1", shapes, context);
    sequences.rows = shapes["N"];
    check_row_count("cu_seqlens", sequences.rows);
    if (on_host(context)) check_cu_seqlens(sequences);
    return;
  }
  if (!arguments.starts.present()) fail_no_rows(arguments);
  check_indices(sequences.starts, "starts", arguments.starts, "N", shapes, context);
  check_indices(sequences.lengths, "lengths", arguments.lengths, "N", shapes, context);
  sequences.rows = shapes["N"];
  check_row_count("starts", sequences.rows);
  if (on_host(context)) check_starts(sequences);
}

}  // namespace hyla::core
