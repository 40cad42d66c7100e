// Sampling for plain rows: the argmax, or a draw at a temperature, in one or two passes over the logits.
#pragma once

#include "simd.h"

namespace tgi {

// One row: the lowest id with the highest logit, that logit, the log-sum-exp, and whether all logits are finite.
struct Summary {
  int64_t token;
  float highest, log_total;
  int32_t finite;
};

inline Summary summarize(const float* logits, int vocabulary, bool wants_total) {
  f32x16 top = splat(logits[0]), taint = zero();
  for (int i = 0; i < vocabulary; i += 16) {
    const f32x16 v = i + 16 <= vocabulary ? load(logits + i) : within(load_first(logits + i, vocabulary - i), 0, vocabulary - i, top);
    top = max(top, v);
    taint = fma(v, zero(), taint);  // zero, unless a value is infinite or NaN
  }
  const float highest_logit = highest(top);
  Summary found{0, highest_logit, 0, sum(taint) == 0.0f};
  while (found.finite && logits[found.token] != highest_logit) found.token++;
  if (!wants_total || !found.finite) return found;
  double total = 0;
  for (int start = 0; start < vocabulary; start += 1024) {
    f32x16 part = zero();
    const int end = start + 1024 < vocabulary ? start + 1024 : vocabulary;
    for (int i = start; i < end; i += 16) {
      const int left = end - i;
      const f32x16 e = exp(sub(left >= 16 ? load(logits + i) : load_first(logits + i, left), splat(highest_logit)));
      part = add(part, left >= 16 ? e : within(e, 0, left, zero()));
    }
    total += (double)sum(part);
  }
  found.log_total = highest_logit + (float)__builtin_log(total);
  return found;
}

// Eight doubles at a time; the compiler splits them if registers are shorter.
typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));

// a · b + c
TGI_INLINE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
#if defined(__AVX512F__)
  return (f64x8)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
  __m256d part[3][2];
  memcpy(part[0], &a, 64), memcpy(part[1], &b, 64), memcpy(part[2], &c, 64);
  for (int i = 0; i < 2; i++) part[0][i] = _mm256_fmadd_pd(part[0][i], part[1][i], part[2][i]);
  memcpy(&a, part[0], 64);
  return a;
#endif
}
TGI_INLINE f64x8 all(double value) { return f64x8{} + value; }

// exp(v) with a relative error of 3e-16 for v from -700 to 0; 0 below. Taylor series to the twelfth power over ±ln 2 / 2.
TGI_INLINE f64x8 exp_doubles(f64x8 v) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 · 2^52: adding it leaves the nearest whole number in the lowest bits
  const f64x8 held = v < -700.0 ? f64x8{} - 700.0 : v;
  f64x8 n = fma(held, all(1.4426950408889634), all(kShift));
  i64x8 bits;
  memcpy(&bits, &n, 64);
  n -= kShift;
  const f64x8 f = fma(n, all(-1.90821492927058770002e-10), fma(n, all(-0.69314718036912381649), held));
  f64x8 p = fma(f, all(1.0 / 479001600.0), all(1.0 / 39916800.0));
  constexpr double kFactorials[] = {3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0};
  TGI_UNROLL for (int i = 0; i < 11; i++) p = fma(p, f, all(1.0 / kFactorials[i]));
  const i64x8 exponent = (bits << 52) + ((int64_t)1023 << 52);
  f64x8 power;
  memcpy(&power, &exponent, 64);
  return v < -700.0 ? f64x8{} : p * power;
}

constexpr int kGroup = 64;  // tokens per group: groups are summed first, and only one is searched token by token

// softmax(logits / temperature) before the division by its sum. Weights beyond the vocabulary are zero.
struct Weights {
  const float* logits;
  int vocabulary;
  double highest, factor;

  // The sum of the kGroup weights from `start` on; also stores them to `to` unless it is null.
  TGI_INLINE double group(const Weights& w, int start, double* to) {
    f64x8 sums = {};
    for (int i = start; i < start + kGroup; i += 8) {
      float own[8];
      const float* from = w.logits + i;
      if (i + 8 > w.vocabulary) {
        for (int k = 0; k < 8; k++) own[k] = i + k < w.vocabulary ? from[k] : -__builtin_inff();
        from = own;
      }
      f32x8 narrow;
      memcpy(&narrow, from, 32);
      const f64x8 weight = exp_doubles((__builtin_convertvector(narrow, f64x8) - w.highest) * w.factor);
      sums += weight;
      if (to) memcpy(to + (i - start), &weight, 64);
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }
};

// A draw by the published formula: the first token at which the cumulative probability of softmax(logits / temperature) exceeds `uniform`.
// `sums` has room for vocabulary / kGroup + 1 values.
inline int64_t draw(const float* logits, int vocabulary, float highest, double temperature, double uniform, double* sums, double* logprob) {
  const Weights all{logits, vocabulary, (double)highest, 1.0 / temperature};
  double total = 0;
  int groups = 0;
  for (int start = 0; start < vocabulary; start += kGroup) sums[groups++] = total += Weights::group(all, start, nullptr);
  const double target = uniform * total;
  int group = 0;
  while (group + 1 < groups && sums[group] <= target) group++;
  // Rounding may leave the target just beyond the last sum: then the last token with a nonzero weight is drawn.
  int64_t token = -1;
  for (bool found = false; !found && token < 0 && group >= 0; group--) {
    double weight[kGroup], reached = group ? sums[group - 1] : 0;
    Weights::group(all, group * kGroup, weight);
    for (int i = 0; i < kGroup && !found; i++) {
      if (weight[i] == 0) continue;
      reached += weight[i];
      token = (int64_t)group * kGroup + i;
      found = reached > target;
    }
  }
  *logprob = ((double)logits[token] - (double)highest) / temperature - __builtin_log(total);
  return token;
}

}  // namespace tgi
