// Integers, sixteen units at a time, on every instruction set: more of simd.h, for codes and for rows in eight bits.
#pragma once

#include "simd.h"

namespace tgi {

#if defined(__AVX512F__)

TGI_INLINE f32x16 float_integers(u32x16 v) { return _mm512_cvtepi32_ps(v); }
TGI_INLINE u32x16 sub_units(u32x16 a, u32x16 b) { return _mm512_sub_epi32(a, b); }
TGI_INLINE u32x16 sub_bytes(u32x16 a, u32x16 b) { return _mm512_sub_epi8(a, b); }
TGI_INLINE u32x16 add_bytes(u32x16 a, u32x16 b) { return _mm512_add_epi8(a, b); }
// Rounds numbers from -127 to 127 to signed bytes.
TGI_INLINE void store_bytes(int8_t* to, f32x16 v) { _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))); }
// sum + the products of four unsigned bytes of `a` with four signed ones of `b`, exact in each unit.
TGI_INLINE u32x16 add_byte_products(u32x16 sum, u32x16 a, u32x16 b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(sum, a, b);
#else
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#endif
}
#if defined(__AVX512VNNI__)
// The same where the sum is. A compiler that may choose the register copies it before every other product of a long loop.
TGI_INLINE void add_byte_products_here(u32x16& sum, u32x16 a, u32x16 b) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
#endif
// The same for `a` of at most 15, in a form of the instruction set's own: at most kNibbleProducts of them may be summed before add_words,
// which is not needed if kWordsAreUnits.
#if defined(__AVX512VNNI__)
constexpr bool kWordsAreUnits = true;
#else
constexpr bool kWordsAreUnits = false;
#endif
constexpr int kNibbleProducts = 8;  // 8 · 2 · 15 · 127 fits into 16 bits
TGI_INLINE u32x16 add_nibble_products(u32x16 words, u32x16 a, u32x16 b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(words, a, b);
#else
  return _mm512_add_epi16(words, _mm512_maddubs_epi16(a, b));
#endif
}
TGI_INLINE u32x16 add_words(u32x16 sum, u32x16 words) {
#if defined(__AVX512VNNI__)
  return _mm512_add_epi32(sum, words);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
#endif
}
// Units of two numbers each, rounded to bfloat16.
TGI_INLINE u32x16 bf16_pairs(f32x16 even, f32x16 odd) {
#if defined(__AVX512BF16__)
  const __m512i first = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008, 0x190009,
                                          0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
  return _mm512_permutexvar_epi16(first, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
#else
  return _mm512_ternarylogic_epi32(to_bf16(odd), _mm512_set1_epi32((int)0xffff0000u), _mm512_srli_epi32(to_bf16(even), 16), 0xea);
#endif
}
TGI_INLINE u32x16 load_byte_units(const int8_t* from) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)); }
// Units of two equal words each.
TGI_INLINE u32x16 load_byte_twice(const int8_t* from) {
  const u32x16 v = load_byte_units(from);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, v, _mm512_slli_epi32(v, 16));
}
TGI_INLINE u32x16 mul_units(u32x16 a, u32x16 b) { return _mm512_mullo_epi32(a, b); }
TGI_INLINE u32x16 add_units(u32x16 a, u32x16 b) { return _mm512_add_epi32(a, b); }
// sum - a · b in each unit, for `a` from 0 to 255 and the same `b` of 16 bits everywhere.
TGI_INLINE u32x16 sub_word_product(u32x16 sum, u32x16 a, int b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, _mm512_set1_epi32(-b & 0xffff));
#else
  return _mm512_sub_epi32(sum, _mm512_madd_epi16(a, _mm512_set1_epi32(b & 0xffff)));
#endif
}
// Each unit shifted; right with copies of its sign, or with zeros.
template <int BITS>
TGI_INLINE u32x16 left(u32x16 v) { return _mm512_slli_epi32(v, BITS); }
template <int BITS>
TGI_INLINE u32x16 right(u32x16 v) { return _mm512_srai_epi32(v, BITS); }
template <int BITS>
TGI_INLINE u32x16 right_unsigned(u32x16 v) { return _mm512_srli_epi32(v, BITS); }

#else

TGI_INLINE __m256i bf16_pairs(__m256 even, __m256 odd) {
  return _mm256_or_si256(_mm256_and_si256(to_bf16(odd), _mm256_set1_epi32((int)0xffff0000u)), _mm256_srli_epi32(to_bf16(even), 16));
}
TGI_INLINE u32x16 bf16_pairs(f32x16 even, f32x16 odd) { return {bf16_pairs(even.lo, odd.lo), bf16_pairs(even.hi, odd.hi)}; }
TGI_INLINE __m256i eight_units(const int8_t* from) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
TGI_INLINE u32x16 load_byte_units(const int8_t* from) { return {eight_units(from), eight_units(from + 8)}; }
TGI_INLINE __m256i twice(__m256i v) { return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa); }
TGI_INLINE u32x16 load_byte_twice(const int8_t* from) { return {twice(eight_units(from)), twice(eight_units(from + 8))}; }
TGI_INLINE u32x16 mul_units(u32x16 a, u32x16 b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
TGI_INLINE u32x16 add_units(u32x16 a, u32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
TGI_INLINE u32x16 sub_word_product(u32x16 sum, u32x16 a, int b) {
  const __m256i word = _mm256_set1_epi32(b & 0xffff);
  return {_mm256_sub_epi32(sum.lo, _mm256_madd_epi16(a.lo, word)), _mm256_sub_epi32(sum.hi, _mm256_madd_epi16(a.hi, word))};
}
TGI_INLINE f32x16 float_integers(u32x16 v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
TGI_INLINE u32x16 sub_units(u32x16 a, u32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
TGI_INLINE __m128i signed_words(__m256 v) {
  const __m256i integers = _mm256_cvtps_epi32(v);
  return _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
}
TGI_INLINE void store_bytes(int8_t* to, f32x16 v) { _mm_storeu_si128((__m128i*)to, _mm_packs_epi16(signed_words(v.lo), signed_words(v.hi))); }
#if defined(__AVXVNNI__)
TGI_INLINE __m256i add_byte_products(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
TGI_INLINE __m256i add_nibble_products(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
TGI_INLINE __m256i add_words(__m256i sum, __m256i words) { return _mm256_add_epi32(sum, words); }
constexpr bool kWordsAreUnits = true;
#else
TGI_INLINE __m256i add_byte_products(__m256i sum, __m256i a, __m256i b) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
TGI_INLINE __m256i add_nibble_products(__m256i words, __m256i a, __m256i b) { return _mm256_add_epi16(words, _mm256_maddubs_epi16(a, b)); }
TGI_INLINE __m256i add_words(__m256i sum, __m256i words) { return _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1))); }
constexpr bool kWordsAreUnits = false;
#endif
TGI_INLINE u32x16 add_byte_products(u32x16 sum, u32x16 a, u32x16 b) {
  return {add_byte_products(sum.lo, a.lo, b.lo), add_byte_products(sum.hi, a.hi, b.hi)};
}
constexpr int kNibbleProducts = 8;  // 8 · 2 · 15 · 127 fits into 16 bits
TGI_INLINE u32x16 add_nibble_products(u32x16 words, u32x16 a, u32x16 b) {
  return {add_nibble_products(words.lo, a.lo, b.lo), add_nibble_products(words.hi, a.hi, b.hi)};
}
TGI_INLINE u32x16 add_words(u32x16 sum, u32x16 words) { return {add_words(sum.lo, words.lo), add_words(sum.hi, words.hi)}; }
template <int BITS>
TGI_INLINE u32x16 left(u32x16 v) { return {_mm256_slli_epi32(v.lo, BITS), _mm256_slli_epi32(v.hi, BITS)}; }
template <int BITS>
TGI_INLINE u32x16 right(u32x16 v) { return {_mm256_srai_epi32(v.lo, BITS), _mm256_srai_epi32(v.hi, BITS)}; }
template <int BITS>
TGI_INLINE u32x16 right_unsigned(u32x16 v) { return {_mm256_srli_epi32(v.lo, BITS), _mm256_srli_epi32(v.hi, BITS)}; }

#endif

// Divides `count` numbers by a scale, by which the largest becomes `most_stored`, and stores 16 at a time as bytes by `store16`. Returns the scale,
// which is NaN if a number is not finite.
template <class T, class Store>
TGI_INLINED float round_by_largest(const T* from, int count, int8_t* to, float most_stored, Store store16) {
  f32x16 most = zero(), strange = zero();
  for (int i = 0; i < count; i += 16) {
    const f32x16 v = load_first(from + i, count - i);
    most = max(max(v, sub(zero(), v)), most);
    strange = fma(v, zero(), strange);
  }
  const float top = highest(most), odd = sum(strange);
  const bool usable = odd == 0 && top > 1e-30f;
  const f32x16 inverse = splat(usable ? most_stored / top : 0.0f);
  for (int i = 0; i < count; i += 16) {
    int8_t whole[16];
    store16(whole, usable ? mul(load_first(from + i, count - i), inverse) : zero());
    memcpy(to + i, whole, (size_t)std::min(16, count - i));
  }
  return odd == 0 ? (usable ? top / most_stored : 0.0f) : odd;
}

// Rounds `count` numbers to integers and returns their scale. One that is not finite makes it NaN.
template <class T>
TGI_INLINED float round_to_bytes(const T* from, int count, int8_t* to) {
  return round_by_largest(from, count, to, 127.0f, [](int8_t* at, f32x16 v) { store_bytes(at, v); });
}

// Integers of eight bits as a unit's part of a dtype, see `Bf16`.
template <class Op>
TGI_INLINED auto integer_part(const int8_t* from, int pass) {
  if constexpr (Op::per_unit == 1)
    return float_integers(load_byte_units(from));
  else if constexpr (Op::passes == 1)
    return bf16_integers(load_byte_words(from));
  else
    return float_integers(right<16>(pass ? load_byte_words(from) : left<16>(load_byte_words(from))));
}

}  // namespace tgi
