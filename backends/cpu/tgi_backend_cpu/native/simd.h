// Sixteen floats at a time, on every instruction set. A kernel is written once over these; what differs is in this file.
//
// Elements come in units of 32 bits: one float, or two bfloat16 that are adjacent in the summed dimension. A multiply-add over
// units is one instruction with AVX512-BF16, and two passes (even, then odd elements) without. Either way an element of a result is
// one chain of additions in a fixed order, so its bits depend only on its own row and column.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory.h"

namespace tgi {

using bf16 = uint16_t;
struct f16 {
  uint16_t bits;
};
using unit = uint32_t;

#define TGI_INLINED inline __attribute__((always_inline))
#define TGI_INLINE static TGI_INLINED
#define TGI_UNROLL _Pragma("GCC unroll 16")

#if defined(__AVX512F__)

constexpr int kRegisters = 32;
using f32x16 = __m512;
using u32x16 = __m512i;

TGI_INLINE f32x16 splat(float value) { return _mm512_set1_ps(value); }
TGI_INLINE f32x16 load(const float* from) { return _mm512_loadu_ps(from); }
TGI_INLINE f32x16 load(const bf16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16));
}
TGI_INLINE f32x16 load(const f16* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
TGI_INLINE void store(float* to, f32x16 v) { _mm512_storeu_ps(to, v); }
TGI_INLINE void store(f16* to, f32x16 v) { _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
TGI_INLINE f32x16 add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
TGI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
TGI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
TGI_INLINE f32x16 div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
TGI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
TGI_INLINE f32x16 max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }
TGI_INLINE f32x16 min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
TGI_INLINE f32x16 rounded(f32x16 a) { return _mm512_roundscale_ps(a, 0); }
// v · 2ⁿ for integers n from -126 to 127
TGI_INLINE f32x16 scaled(f32x16 v, f32x16 n) { return _mm512_scalef_ps(v, n); }
// 1 / v for normal values, relative error 2e-7: a 14-bit estimate and one Newton step; a division takes as long as ten multiplications
TGI_INLINE f32x16 inverse(f32x16 v) {
  const f32x16 guess = _mm512_rcp14_ps(v);
  return _mm512_mul_ps(guess, _mm512_fnmadd_ps(v, guess, _mm512_set1_ps(2.0f)));
}
// to 6e-5
TGI_INLINE f32x16 inverse_short(f32x16 v) { return _mm512_rcp14_ps(v); }
// lanes from…to-1 of `v`, `other` elsewhere
TGI_INLINE f32x16 within(f32x16 v, int from, int to, f32x16 other) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 in = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(from)) & _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(to));
  return _mm512_mask_mov_ps(other, in, v);
}
// `v` where `key` is above `limit` or NaN, zero elsewhere
TGI_INLINE f32x16 where_above(f32x16 key, float limit, f32x16 v) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key, _mm512_set1_ps(limit), _CMP_NLE_UQ), v);
}
TGI_INLINE __m256 low_half(f32x16 v) { return _mm512_castps512_ps256(v); }
TGI_INLINE __m256 high_half(f32x16 v) { return _mm512_extractf32x8_ps(v, 1); }
TGI_INLINE u32x16 load_units(const unit* from) { return _mm512_loadu_si512(from); }
TGI_INLINE void store_units(unit* to, u32x16 v) { _mm512_storeu_si512(to, v); }
TGI_INLINE u32x16 splat_unit(unit value) { return _mm512_set1_epi32((int)value); }
// Bytes: a table of 16 repeated in each 128-bit lane, its entries for bytes of 0 to 15, and the nibbles of bytes.
TGI_INLINE u32x16 splat_table(const uint8_t* table) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)); }
TGI_INLINE u32x16 look_up(u32x16 table, u32x16 which) { return _mm512_shuffle_epi8(table, which); }
TGI_INLINE u32x16 low_nibbles(u32x16 v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
TGI_INLINE u32x16 high_nibbles(u32x16 v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
// (v & mask) | other
TGI_INLINE u32x16 bits_or(u32x16 v, u32x16 mask, u32x16 other) { return _mm512_ternarylogic_epi32(v, mask, other, 0xea); }
// 16-bit elements from their low and high bytes: the first, or the last, eight of each lane.
TGI_INLINE u32x16 joined_first(u32x16 low, u32x16 high) { return _mm512_unpacklo_epi8(low, high); }
TGI_INLINE u32x16 joined_last(u32x16 low, u32x16 high) { return _mm512_unpackhi_epi8(low, high); }
// Words, two to a unit: of 32 signed bytes; their low nibbles; what is above those.
TGI_INLINE u32x16 load_byte_words(const int8_t* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from)); }
TGI_INLINE u32x16 low_nibble_words(u32x16 v) { return _mm512_and_si512(v, _mm512_set1_epi16(15)); }
TGI_INLINE u32x16 next_nibble_words(u32x16 v) { return _mm512_srli_epi16(v, 4); }
TGI_INLINE u32x16 sub_words(u32x16 a, u32x16 b) { return _mm512_sub_epi16(a, b); }
// Words from -256 to 256 as bfloat16.
TGI_INLINE u32x16 bf16_integers(u32x16 v) {
  const __m512i even = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 16), 16)));
  const __m512i odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(v, 16)));
  return _mm512_ternarylogic_epi32(odd, _mm512_set1_epi32((int)0xffff0000u), _mm512_srli_epi32(even, 16), 0xea);
}
// Words whose low four bits are a number with its sign, as bfloat16; other bits don't count. And words from -15 to 15.
alignas(64) constexpr bf16 kNibbles[32] = {0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0,
                                           0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
                                           0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
alignas(64) constexpr bf16 kFives[32] = {0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
                                         0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
                                         0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
TGI_INLINE u32x16 bf16_nibbles(u32x16 v) { return _mm512_permutexvar_epi16(v, _mm512_load_si512(kNibbles)); }
TGI_INLINE u32x16 bf16_fives(u32x16 v) { return _mm512_permutexvar_epi16(v, _mm512_load_si512(kFives)); }
TGI_INLINE f32x16 as_floats(u32x16 v) { return _mm512_castsi512_ps(v); }
TGI_INLINE f32x16 even_half(u32x16 v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
TGI_INLINE f32x16 odd_half(u32x16 v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u))); }

#if defined(__AVX512BF16__)
TGI_INLINE void store(bf16* to, f32x16 v) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(v)); }
#else
// Rounded to bfloat16, in the upper half of each unit.
TGI_INLINE __m512i to_bf16(f32x16 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
TGI_INLINE void store(bf16* to, f32x16 v) {
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(to_bf16(v), 16)));
}
#endif

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int kRegisters = 16;
struct f32x16 {
  __m256 lo, hi;
};
struct u32x16 {
  __m256i lo, hi;
};

TGI_INLINE f32x16 splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
TGI_INLINE f32x16 load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
TGI_INLINE __m256 widened(const bf16* from) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16));
}
TGI_INLINE f32x16 load(const bf16* from) { return {widened(from), widened(from + 8)}; }
TGI_INLINE __m256 widened(const f16* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
TGI_INLINE f32x16 load(const f16* from) { return {widened(from), widened(from + 8)}; }
TGI_INLINE void store(f16* to, f32x16 v) {
  _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(to + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
TGI_INLINE void store(float* to, f32x16 v) {
  _mm256_storeu_ps(to, v.lo);
  _mm256_storeu_ps(to + 8, v.hi);
}
TGI_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
TGI_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
TGI_INLINE f32x16 rounded(f32x16 a) { return {_mm256_round_ps(a.lo, 0), _mm256_round_ps(a.hi, 0)}; }
TGI_INLINE __m256 scaled(__m256 v, __m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
TGI_INLINE f32x16 scaled(f32x16 v, f32x16 n) { return {scaled(v.lo, n.lo), scaled(v.hi, n.hi)}; }
TGI_INLINE f32x16 inverse(f32x16 v) { return div(splat(1.0f), v); }
TGI_INLINE f32x16 inverse_short(f32x16 v) { return inverse(v); }
TGI_INLINE __m256 within(__m256 v, int base, int from, int to, __m256 other) {
  const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
  const __m256i in =
      _mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(from - 1)), _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(in));
}
TGI_INLINE f32x16 within(f32x16 v, int from, int to, f32x16 other) {
  return {within(v.lo, 0, from, to, other.lo), within(v.hi, 8, from, to, other.hi)};
}
TGI_INLINE __m256 where_above(__m256 key, float limit, __m256 v) {
  return _mm256_and_ps(_mm256_cmp_ps(key, _mm256_set1_ps(limit), _CMP_NLE_UQ), v);
}
TGI_INLINE f32x16 where_above(f32x16 key, float limit, f32x16 v) {
  return {where_above(key.lo, limit, v.lo), where_above(key.hi, limit, v.hi)};
}
TGI_INLINE __m256 low_half(f32x16 v) { return v.lo; }
TGI_INLINE __m256 high_half(f32x16 v) { return v.hi; }
TGI_INLINE u32x16 load_units(const unit* from) {
  return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)(from + 8))};
}
TGI_INLINE void store_units(unit* to, u32x16 v) {
  _mm256_storeu_si256((__m256i*)to, v.lo);
  _mm256_storeu_si256((__m256i*)(to + 8), v.hi);
}
TGI_INLINE u32x16 splat_table(const uint8_t* table) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {both, both};
}
TGI_INLINE u32x16 look_up(u32x16 table, u32x16 which) {
  return {_mm256_shuffle_epi8(table.lo, which.lo), _mm256_shuffle_epi8(table.hi, which.hi)};
}
TGI_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
TGI_INLINE u32x16 low_nibbles(u32x16 v) { return {low_nibbles(v.lo), low_nibbles(v.hi)}; }
TGI_INLINE u32x16 high_nibbles(u32x16 v) {
  return {low_nibbles(_mm256_srli_epi16(v.lo, 4)), low_nibbles(_mm256_srli_epi16(v.hi, 4))};
}
TGI_INLINE u32x16 bits_or(u32x16 v, u32x16 mask, u32x16 other) {
  return {_mm256_or_si256(_mm256_and_si256(v.lo, mask.lo), other.lo), _mm256_or_si256(_mm256_and_si256(v.hi, mask.hi), other.hi)};
}
TGI_INLINE u32x16 joined_first(u32x16 low, u32x16 high) {
  return {_mm256_unpacklo_epi8(low.lo, high.lo), _mm256_unpacklo_epi8(low.hi, high.hi)};
}
TGI_INLINE u32x16 joined_last(u32x16 low, u32x16 high) {
  return {_mm256_unpackhi_epi8(low.lo, high.lo), _mm256_unpackhi_epi8(low.hi, high.hi)};
}
TGI_INLINE u32x16 splat_unit(unit value) { return {_mm256_set1_epi32((int)value), _mm256_set1_epi32((int)value)}; }
TGI_INLINE u32x16 load_byte_words(const int8_t* from) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)), _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(from + 16)))};
}
TGI_INLINE __m256i low_nibble_words(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi16(15)); }
TGI_INLINE u32x16 low_nibble_words(u32x16 v) { return {low_nibble_words(v.lo), low_nibble_words(v.hi)}; }
TGI_INLINE u32x16 next_nibble_words(u32x16 v) { return {_mm256_srli_epi16(v.lo, 4), _mm256_srli_epi16(v.hi, 4)}; }
TGI_INLINE u32x16 sub_words(u32x16 a, u32x16 b) { return {_mm256_sub_epi16(a.lo, b.lo), _mm256_sub_epi16(a.hi, b.hi)}; }
TGI_INLINE __m256i bf16_integers(__m256i v) {
  const __m256i even = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16)));
  const __m256i odd = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32(v, 16)));
  return _mm256_or_si256(_mm256_and_si256(odd, _mm256_set1_epi32((int)0xffff0000u)), _mm256_srli_epi32(even, 16));
}
TGI_INLINE u32x16 bf16_integers(u32x16 v) { return {bf16_integers(v.lo), bf16_integers(v.hi)}; }
TGI_INLINE u32x16 bf16_nibbles(u32x16 v) {
  const __m256i eight = _mm256_set1_epi16(8), low = _mm256_xor_si256(low_nibble_words(v.lo), eight);
  const __m256i high = _mm256_xor_si256(low_nibble_words(v.hi), eight);
  return bf16_integers({_mm256_sub_epi16(low, eight), _mm256_sub_epi16(high, eight)});
}
TGI_INLINE u32x16 bf16_fives(u32x16 v) { return bf16_integers(v); }
TGI_INLINE f32x16 as_floats(u32x16 v) { return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)}; }
TGI_INLINE f32x16 even_half(u32x16 v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(v.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v.hi, 16))};
}
TGI_INLINE f32x16 odd_half(u32x16 v) {
  const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
  return {_mm256_castsi256_ps(_mm256_and_si256(v.lo, high)), _mm256_castsi256_ps(_mm256_and_si256(v.hi, high))};
}
// Rounded to bfloat16, in the upper half of each unit.
TGI_INLINE __m256i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
TGI_INLINE void store_eight(bf16* to, __m256 v) {
  const __m256i words = _mm256_srli_epi32(to_bf16(v), 16);
  _mm_storeu_si128((__m128i*)to, _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
TGI_INLINE void store(bf16* to, f32x16 v) { store_eight(to, v.lo), store_eight(to + 8, v.hi); }

#else
#error "these kernels need AVX2 with FMA, or AVX-512"
#endif

TGI_INLINE f32x16 zero() { return splat(0.0f); }

// Sum and maximum over the lanes, in a fixed order: halves are combined until one lane is left.
TGI_INLINE float sum(f32x16 v) {
  const __m256 eight = _mm256_add_ps(low_half(v), high_half(v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// NaN in the second half is ignored.
TGI_INLINE float highest(f32x16 v) {
  const __m256 eight = _mm256_max_ps(high_half(v), low_half(v));
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
  return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
}

// The first n lanes, 1 to 16; those beyond are zero when loaded and untouched when stored.
template <class T>
TGI_INLINE f32x16 load_first(const T* from, int n) {
  if (n >= 16) return load(from);
  T whole[16] = {};
  memcpy(whole, from, (size_t)n * sizeof(T));
  return load(whole);
}
template <class T>
TGI_INLINE void store_first(T* to, f32x16 v, int n) {
  if (n >= 16) return store(to, v);
  T whole[16];
  store(whole, v);
  memcpy(to, whole, (size_t)n * sizeof(T));
}

// exp(v) with a relative error of 2e-7; v is clamped to -87…88, and NaN stays NaN (max and min return their second operand
// then). Polynomial: Cephes, expf.
TGI_INLINE f32x16 exp(f32x16 v) {
  v = min(splat(88.0f), max(splat(-87.0f), v));
  const f32x16 n = rounded(mul(v, splat(1.44269504f)));
  f32x16 f = fma(n, splat(-0.693359375f), v);
  f = fma(n, splat(2.12194440e-4f), f);
  f32x16 p = splat(1.9875691500e-4f);
  p = fma(p, f, splat(1.3981999507e-3f));
  p = fma(p, f, splat(8.3334519073e-3f));
  p = fma(p, f, splat(4.1665795894e-2f));
  p = fma(p, f, splat(1.6666665459e-1f));
  p = fma(p, f, splat(5.0000001201e-1f));
  p = fma(mul(p, f), f, add(f, splat(1.0f)));
  return scaled(p, n);
}
TGI_INLINE float exp_one(float v) {
  float lane[16];
  store(lane, exp(splat(v)));
  return lane[0];
}
// The same with an error of 3e-6, a thousandth of a bfloat16's last place. The polynomial approximates 2ˣ on -0.5…0.5 with the least
// relative error.
TGI_INLINE f32x16 exp_short(f32x16 v) {
  const f32x16 t = mul(min(splat(88.0f), max(splat(-87.0f), v)), splat(1.44269504f)), n = rounded(t), f = sub(t, n);
  f32x16 p = fma(splat(9.5828364e-3f), f, splat(5.5906413e-2f));
  p = fma(p, f, splat(2.4024099e-1f));
  p = fma(p, f, splat(6.9312419e-1f));
  return scaled(fma(p, f, splat(1.0f)), n);
}
TGI_INLINE f32x16 tanh(f32x16 v) { return sub(splat(1.0f), div(splat(2.0f), add(exp(add(v, v)), splat(1.0f)))); }

// How units of a dtype are multiplied: c + a · b in each lane, in `passes` parts. And functions whose results are rounded to the dtype, no
// more exact than it can represent.
struct Float {
  using element = float;
  static constexpr int passes = 1, per_unit = 1;
  TGI_INLINE f32x16 part(u32x16 v, int) { return as_floats(v); }
  TGI_INLINE f32x16 madd(f32x16 c, f32x16 a, f32x16 b) { return fma(a, b, c); }
  TGI_INLINE f32x16 exp(f32x16 v) { return tgi::exp(v); }
  TGI_INLINE f32x16 silu(f32x16 v) { return mul(v, inverse(add(splat(1.0f), exp(sub(zero(), v))))); }
};

struct Bf16 {
  using element = bf16;
  static constexpr int per_unit = 2;
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
  static constexpr int passes = 1;
  TGI_INLINE u32x16 part(u32x16 v, int) { return v; }
  TGI_INLINE f32x16 madd(f32x16 c, u32x16 a, u32x16 b) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
#else
  static constexpr int passes = 2;
  TGI_INLINE f32x16 part(u32x16 v, int pass) { return pass ? odd_half(v) : even_half(v); }
  TGI_INLINE f32x16 madd(f32x16 c, f32x16 a, f32x16 b) { return fma(a, b, c); }
#endif
  TGI_INLINE f32x16 exp(f32x16 v) { return exp_short(v); }
  TGI_INLINE f32x16 silu(f32x16 v) { return mul(v, inverse_short(add(splat(1.0f), exp(sub(zero(), v))))); }
};

// How many bytes ahead a GEMM prefetches a weight from memory: 8 rows run a quarter faster with it on Zen 5. Not more: what follows a
// panel is likely to be another thread's.
constexpr size_t kAhead = 8192;

// Prefetch into L2, for what is read later; into L1, for what is read next.
TGI_INLINE void prefetch(const void* address) { _mm_prefetch((const char*)address, _MM_HINT_T1); }
TGI_INLINE void prefetch_near(const void* address) { _mm_prefetch((const char*)address, _MM_HINT_T0); }
// Prefetch a weight that is decoded. Chips with a tile unit have three times as many lines in flight to L2 as to L1.
TGI_INLINE void prefetch_weight(const void* address) {
#if defined(__AMX_BF16__)
  prefetch(address);
#else
  prefetch_near(address);
#endif
}
// Prefetch some bytes into L1. (GCC drops calls of functions that do nothing else, so those must be inlined.)
TGI_INLINE void fetch(const void* address, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) prefetch_near((const char*)address + at);
}

}  // namespace tgi
