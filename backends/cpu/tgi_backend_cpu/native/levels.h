// Codebooks of sixteen numbers, on every instruction set.
#pragma once

#include "simd_integers.h"

namespace tgi {

// The numbers as bfloat16, twice, since five bits of a word choose one; and their lower and upper bytes.
struct LevelTable {
  bf16 words[32];
  uint8_t lower[16], upper[16];

  LevelTable() = default;
  explicit LevelTable(const float* levels) {
    store(words, load(levels)), store(words + 16, load(levels));
    for (int i = 0; i < 16; i++) lower[i] = (uint8_t)words[i], upper[i] = (uint8_t)(words[i] >> 8);
  }
};

// Words whose low four bits are an index into the table, as bfloat16; other bits don't count.
#if defined(__AVX512F__)

TGI_INLINE u32x16 level_words(u32x16 v, const LevelTable& table) { return _mm512_permutexvar_epi16(v, _mm512_loadu_si512(table.words)); }

#else

TGI_INLINE u32x16 level_words(u32x16 v, const LevelTable& table) {
  const u32x16 which = low_nibble_words(v), lower = look_up(splat_table(table.lower), which), upper = look_up(splat_table(table.upper), which);
  const __m256i low = _mm256_set1_epi16(0xff);
  return {_mm256_or_si256(_mm256_and_si256(lower.lo, low), _mm256_slli_epi16(upper.lo, 8)),
          _mm256_or_si256(_mm256_and_si256(lower.hi, low), _mm256_slli_epi16(upper.hi, 8))};
}

#endif

}  // namespace tgi
