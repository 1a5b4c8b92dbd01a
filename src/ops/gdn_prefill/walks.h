// The forms that a plan may take.
#pragma once

namespace hyla::gdn {

// How the chunks are walked over: parts of a sequence, blocks of value rows on a multiprocessor.
struct Walks {
  int parts = 0, blocks_a_cta = 1;
  int cuts = 1;         // pieces of a part, see segments.cuh
  bool beside = false;  // chunks are prepared beside the walk, see handover.cuh
  double us = 0;        // expected

  bool same_form(const Walks& w) const {
    return parts == w.parts && blocks_a_cta == w.blocks_a_cta && cuts == w.cuts &&
           beside == w.beside;
  }
};

}  // namespace hyla::gdn
