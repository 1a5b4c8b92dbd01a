// When is a result right? The error model of hyla's checks.
//
// E is the exact result: the float64 algorithm on the same inputs, its outputs rounded to float32
// only. N is the naive algorithm in the precision an implementation may use: float32, and where
// tensor cores are the natural choice (prefill with 16-bit inputs) products of operands rounded to
// the input dtype. An implementation sums in another order than N, so it is not wrong where it
// differs from N; it is wrong where it is much farther from E than N is:
//
//     eps   = max over vectors of |N - E|_max / |E|_max    (a tensor's last dimension is a vector)
//     bound = max(kFactor * max(eps, floor), kChunkedFactor * eps of chunks) * |E of its vector|_max
//             + half an ulp of the element in its storage dtype
//             + half an ulp of float32, for E's own rounding
//
// Prefill in chunks rounds other operands than N, which goes token by token: the inverse of a chunk
// and what it is multiplied by. So N in chunks counts there too, with a smaller factor, as it is
// what implementations do up to the order of their sums.
//
// The relative error is taken per vector, so that a large head cannot hide a wrong small one; a
// log-sum-exp counts as 1 at least. A vector that N itself misses has a bound of its own. NaN
// and infinity must be where E has them. What E leaves untouched (still poison) must be untouched
// to the bit, and so must every input, guard zone and stride gap.
#pragma once

#include <optional>
#include <string>

#include "testing/call.h"

namespace hyla::testing {

inline constexpr double kFactor = 4.0, kChunkedFactor = 2.0;
// The floor, because small tensors can be lucky and have almost no naive error: so many roundoffs
// of float32, and one of the operands' dtype where that is coarser.
inline constexpr double kFloorRoundoffs = 16.0;

// Of a vector's size: by so much N misses it, in sums that cancel.
inline constexpr double kHopeless = 0.25;

struct Comparison {
  bool ok = true;
  std::string tensor;    // of the worst element: largest error / bound
  double max_error = 0;  // its error
  double bound = 0;      // what was allowed there
  std::string failure;   // empty when ok, otherwise the first thing that is wrong

  double ratio() const { return bound > 0 ? max_error / bound : max_error; }
};

enum class Exact {
  kReference,  // the reference implementation, for judging the others
  // the naive algorithm in float64, for judging the reference, which has no excuse for 16-bit
  // operands: N is in float32 then
  kIndependent,
};

// Computes E and N once; then any number of results of the same call can be judged.
class Judge {
 public:
  explicit Judge(const Call& call, Exact exact = Exact::kReference);

  // `result`: a copy of the call after an implementation ran on it.
  Comparison compare(const Call& result) const;

 private:
  Comparison compare_tensor(const NamedTensor& got, const NamedTensor& exact,
                            const NamedTensor& naive, const NamedTensor* chunked) const;

  Call before_, exact_, naive_;
  std::optional<Call> chunked_;
  DType operands_;
};

// The dtype to which an implementation of this call may round operands of matrix products.
DType operand_dtype(const Call& call);

// Half the distance between neighbouring numbers of a dtype around a value.
double half_ulp(DType dtype, double value);

}  // namespace hyla::testing
