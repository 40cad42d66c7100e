// Floats of eight bits, e4m3fn, on every instruction set: a sign, four bits of exponent and three of mantissa, up to 448.
//
// Where they are written here, for the KV cache, numbers below 2^-6 become that or zero, never subnormal numbers: widening is then an addition
// to the exponent. The scale is chosen for the largest number of a position, next to which they are smaller than 1/28672. Checkpoints have
// subnormal numbers; their weights are widened by `any_e4m3_words`.
#pragma once

#include "simd_integers.h"

namespace tgi {

constexpr float kMostE4m3 = 448.0f;
constexpr int kE4m3Bias = 120;  // that of 8-bit exponents, 127, less that of 4-bit ones, 7
constexpr int kDropped = 20;    // bits of a float32's mantissa that are rounded away
constexpr int kLeastE4m3 = 1 << 3, kLargestE4m3 = 0x7e;  // the codes of 2^-6 and 448
constexpr int kHalfOfLeast = 0x3c000000;                 // 2^-7 as a float32

#if defined(__AVX512F__)

// The subnormal numbers, m · 2^-9 for codes m below kLeastE4m3, as bfloat16.
alignas(64) constexpr bf16 kSubnormals[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};

// Rounds numbers from -448 to 448 to the nearest, ties to even and to 2^-6.
TGI_INLINE void store_e4m3(int8_t* to, f32x16 v) {
  const __m512i bits = _mm512_castps_si512(v), magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, kDropped), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32((1 << (kDropped - 1)) - 1)));
  const __m512i code = _mm512_sub_epi32(_mm512_srli_epi32(rounded, kDropped), _mm512_set1_epi32(kE4m3Bias << 3));
  const __m512i bounded = _mm512_min_epi32(_mm512_max_epi32(code, _mm512_set1_epi32(kLeastE4m3)), _mm512_set1_epi32(kLargestE4m3));
  const __mmask16 above = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(kHalfOfLeast));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_maskz_or_epi32(above, bounded, sign)));
}
// Sign-extended bytes as float32, and pairs of them as bfloat16.
TGI_INLINE u32x16 e4m3_units(u32x16 v) {
  const __m512i bits = _mm512_set1_epi32(0x7f), exponent = _mm512_set1_epi32(kE4m3Bias << 23);
  const __m512i shifted = _mm512_slli_epi32(_mm512_and_si512(v, bits), kDropped);
  const __m512i magnitude = _mm512_maskz_add_epi32(_mm512_test_epi32_mask(v, bits), shifted, exponent);
  return bits_or(v, _mm512_set1_epi32((int)0x80000000u), magnitude);
}
TGI_INLINE u32x16 e4m3_words(u32x16 v) {
  const __m512i bits = _mm512_set1_epi16(0x7f), exponent = _mm512_set1_epi16(kE4m3Bias << 7);
  const __m512i shifted = _mm512_slli_epi16(_mm512_and_si512(v, bits), kDropped - 16);
  const __m512i magnitude = _mm512_maskz_add_epi16(_mm512_test_epi16_mask(v, bits), shifted, exponent);
  return bits_or(v, _mm512_set1_epi16((short)0x8000), magnitude);
}
// The same for all numbers but NaN.
TGI_INLINE u32x16 any_e4m3_words(u32x16 v) {
  const __m512i low = _mm512_and_si512(v, _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(low, kDropped - 16), _mm512_set1_epi16(kE4m3Bias << 7));
  const __mmask32 below = _mm512_cmplt_epi16_mask(low, _mm512_set1_epi16(kLeastE4m3));
  const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, below, low, _mm512_load_si512(kSubnormals));
  return bits_or(v, _mm512_set1_epi16((short)0x8000), magnitude);
}

#else

TGI_INLINE __m256i e4m3_codes(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v), magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, kDropped), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32((1 << (kDropped - 1)) - 1)));
  const __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(rounded, kDropped), _mm256_set1_epi32(kE4m3Bias << 3));
  const __m256i bounded = _mm256_min_epi32(_mm256_max_epi32(code, _mm256_set1_epi32(kLeastE4m3)), _mm256_set1_epi32(kLargestE4m3));
  const __m256i above = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kHalfOfLeast - 1));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  return _mm256_and_si256(above, _mm256_or_si256(bounded, sign));
}
TGI_INLINE __m128i words_of(__m256i v) { return _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)); }
TGI_INLINE void store_e4m3(int8_t* to, f32x16 v) {
  _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(words_of(e4m3_codes(v.lo)), words_of(e4m3_codes(v.hi))));
}
TGI_INLINE __m256i e4m3_units(__m256i v) {
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0x7f)), none = _mm256_cmpeq_epi32(low, _mm256_setzero_si256());
  const __m256i magnitude = _mm256_add_epi32(_mm256_slli_epi32(low, kDropped), _mm256_set1_epi32(kE4m3Bias << 23));
  return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32((int)0x80000000u)), _mm256_andnot_si256(none, magnitude));
}
TGI_INLINE u32x16 e4m3_units(u32x16 v) { return {e4m3_units(v.lo), e4m3_units(v.hi)}; }
TGI_INLINE __m256i e4m3_words(__m256i v) {
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi16(0x7f)), none = _mm256_cmpeq_epi16(low, _mm256_setzero_si256());
  const __m256i magnitude = _mm256_add_epi16(_mm256_slli_epi16(low, kDropped - 16), _mm256_set1_epi16(kE4m3Bias << 7));
  return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi16((short)0x8000)), _mm256_andnot_si256(none, magnitude));
}
TGI_INLINE u32x16 e4m3_words(u32x16 v) { return {e4m3_words(v.lo), e4m3_words(v.hi)}; }
TGI_INLINE __m256i any_e4m3_words(__m256i v) {
  // The two bytes of each subnormal number. The upper byte of each word is zero, and so is what it looks up.
  const __m256i lower = _mm256_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i upper = _mm256_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c,
                                         0x3c, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i low = _mm256_and_si256(v, _mm256_set1_epi16(0x7f)), below = _mm256_cmpgt_epi16(_mm256_set1_epi16(kLeastE4m3), low);
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(low, kDropped - 16), _mm256_set1_epi16(kE4m3Bias << 7));
  const __m256i small = _mm256_or_si256(_mm256_shuffle_epi8(lower, low), _mm256_slli_epi16(_mm256_shuffle_epi8(upper, low), 8));
  return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi16((short)0x8000)), _mm256_blendv_epi8(normal, small, below));
}
TGI_INLINE u32x16 any_e4m3_words(u32x16 v) { return {any_e4m3_words(v.lo), any_e4m3_words(v.hi)}; }

#endif

// Rounds `count` numbers and returns their scale. One that is not finite makes it NaN.
template <class T>
TGI_INLINED float round_to_e4m3(const T* from, int count, int8_t* to) {
  return round_by_largest(from, count, to, kMostE4m3, [](int8_t* at, f32x16 v) { store_e4m3(at, v); });
}

// Widens such floats to a unit's part of a dtype; see `Bf16`.
template <class Op>
TGI_INLINED auto e4m3_part(const int8_t* from, int pass) {
  if constexpr (Op::per_unit == 1)
    return Op::part(e4m3_units(load_byte_units(from)), pass);
  else
    return Op::part(e4m3_words(load_byte_words(from)), pass);
}

}  // namespace tgi
