// The gated delta rule written down again, three times, without a token loop that looks like the
// library's: by dense transition matrices, by their expanded products, and in the chunked WY form.
// All in float64, for one head of one sequence.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace hyla::gdn_test {

using Matrix = std::vector<double>;  // row-major

struct HeadInput {
  std::int64_t T = 0, K = 0, V = 0;
  Matrix q, k;                          // [T, K], normalised already where that was asked
  Matrix v;                             // [T, V]
  std::vector<double> log_alpha, beta;  // [T]
  Matrix S0;                            // [K, V]
  double scale = 1;
};

struct HeadResult {
  Matrix o;                               // [T, V]
  std::map<std::int64_t, Matrix> states;  // after that many tokens: [K, V]
};

// S_t = A_t S_{t-1} + beta_t k_t v_t^T with A_t = alpha_t (I - beta_t k_t k_t^T). Every state.
HeadResult dense(const HeadInput& head);

// S_t = sum over s of (A_t ... A_{s+1}) beta_s k_s v_s^T, plus (A_t ... A_1) S_0, every product
// multiplied out. Every state. For small T and K.
HeadResult expanded(const HeadInput& head);

// Chunks end after each of `cuts` tokens (rising, the last one T). States at the cuts.
HeadResult wy(const HeadInput& head, const std::vector<std::int64_t>& cuts);
std::vector<std::int64_t> every(std::int64_t chunk, std::int64_t T);

double largest(const Matrix& values);  // magnitude

}  // namespace hyla::gdn_test
