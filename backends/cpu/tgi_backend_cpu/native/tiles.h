// The tile unit (AMX): per thread, eight registers of up to 16 rows of 64 bytes, and products of them.
//
// A variant that is compiled for AMX uses the instructions. Elsewhere the same functions run over an emulated unit, with the shapes,
// roundings and order of additions that Intel's manual states (Software Developer's Manual, volume 2, TDPBF16PS and TDPBSUD), so that
// kernels over tiles are tested on every machine: TGI_EMULATED_TILES compiles them that way.
#pragma once

#include <cerrno>
#include <cstdlib>

#include <sys/syscall.h>
#include <unistd.h>

#include "simd_integers.h"

namespace tgi {

#if defined(__AMX_BF16__) || defined(TGI_EMULATED_TILES)
constexpr bool kTiles = true;  // whether bfloat16 is multiplied by the tile unit
#else
constexpr bool kTiles = false;
#endif

constexpr int kTileRows = 16, kTileBytes = 64;

// Rows and bytes per row of each tile, as LDTILECFG reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int row_bytes = kTileBytes) {
    rows[tile] = (uint8_t)tile_rows;
    bytes[tile] = (uint16_t)row_bytes;
  }
};

#if defined(__AMX_BF16__)

// Asks the system for the 8 KiB of tile registers; once per process, before any thread uses them. Returns 0 or an errno.
inline int permit_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) ? errno : 0;
}

// Not the compiler's intrinsics: those of GCC 12 do not say that they access memory, so that stores could move behind the load that reads
// them.
TGI_INLINE void load_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
TGI_INLINE void drop_tiles() { asm volatile("tilerelease" ::: "memory"); }
template <int T>
TGI_INLINED void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T) : "memory");
}
template <int T>
TGI_INLINED void tile_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
// The same for what is not needed again soon: it leaves other lines in the first cache.
template <int T>
TGI_INLINED void tile_stream(const void* from, size_t stride) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
TGI_INLINED void tile_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(stride) : "memory");
}
template <int C, int A, int B>
TGI_INLINED void tile_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B) : "memory");
}
// C += A · B over quadruples of bytes, signed in A and unsigned in B.
template <int C, int A, int B>
TGI_INLINED void tile_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B) : "memory");
}

#else

inline int permit_tiles() { return 0; }

// What the hardware refuses ends the process here too.
struct EmulatedTiles {
  alignas(64) unit at[8][kTileRows][kTileBytes / 4] = {};
  TileShapes shapes = {};
  bool configured = false;

  static EmulatedTiles& own() {
    thread_local EmulatedTiles unit;
    return unit;
  }
  void need(bool legal) const {
    if (!legal || !configured) abort();
  }
  void need_product(int c, int a, int b) const {
    const TileShapes& s = shapes;
    need(s.rows[c] && s.rows[c] == s.rows[a] && s.bytes[c] == s.bytes[b] && s.bytes[a] == 4 * s.rows[b]);
  }
};

inline void load_shapes(const TileShapes& shapes) {
  EmulatedTiles& u = EmulatedTiles::own();
  u.shapes = shapes, u.configured = true;
  for (int t = 0; t < 8; t++) u.need(shapes.rows[t] <= kTileRows && shapes.bytes[t] <= kTileBytes);
  memset(u.at, 0, sizeof u.at);
}
inline void drop_tiles() { EmulatedTiles::own().configured = false; }
template <int T>
void tile_zero() {
  EmulatedTiles& u = EmulatedTiles::own();
  u.need(u.shapes.rows[T]);
  memset(u.at[T], 0, sizeof u.at[T]);
}
template <int T>
void tile_load(const void* from, size_t stride) {
  EmulatedTiles& u = EmulatedTiles::own();
  u.need(u.shapes.rows[T]);
  memset(u.at[T], 0, sizeof u.at[T]);
  for (int r = 0; r < u.shapes.rows[T]; r++) memcpy(u.at[T][r], (const char*)from + r * stride, u.shapes.bytes[T]);
}
template <int T>
void tile_stream(const void* from, size_t stride) {
  tile_load<T>(from, stride);
}
template <int T>
void tile_store(void* to, size_t stride) {
  EmulatedTiles& u = EmulatedTiles::own();
  u.need(u.shapes.rows[T]);
  for (int r = 0; r < u.shapes.rows[T]; r++) memcpy((char*)to + r * stride, u.at[T][r], u.shapes.bytes[T]);
}

// Denormal numbers count as zero, as operands and as results, while this lives.
struct FlushDenormals {
  const unsigned before = _mm_getcsr();
  FlushDenormals() { set(0x9fc0); }
  ~FlushDenormals() { set(before); }
  static void set(unsigned mode) { asm volatile("ldmxcsr %0" ::"m"(mode) : "memory"); }
};

// C += A · B over pairs of bfloat16: even and odd elements are summed apart, each by fused multiply-adds from zero, then added.
inline void emulated_bf16(int c, int a, int b) {
  EmulatedTiles& u = EmulatedTiles::own();
  const TileShapes& s = u.shapes;
  u.need_product(c, a, b);
  const FlushDenormals mode;
  for (int m = 0; m < s.rows[c]; m++) {
    f32x16 even = zero(), odd = zero();
    for (int k = 0; k < s.rows[b]; k++) {
      const u32x16 x = splat_unit(u.at[a][m][k]), w = load_units(u.at[b][k]);
      even = fma(even_half(x), even_half(w), even);
      odd = fma(odd_half(x), odd_half(w), odd);
    }
    float* to = (float*)u.at[c][m];
    store(to, add(load(to), add(even, odd)));
  }
}
template <int C, int A, int B>
void tile_bf16() {
  emulated_bf16(C, A, B);
}
template <int C, int A, int B>
void tile_bytes() {
  EmulatedTiles& u = EmulatedTiles::own();
  u.need_product(C, A, B);
  for (int m = 0; m < u.shapes.rows[C]; m++)
    for (int k = 0; k < u.shapes.rows[B]; k++)
      store_units(u.at[C][m], add_byte_products(load_units(u.at[C][m]), load_units(u.at[B][k]), splat_unit(u.at[A][m][k])));
}

#endif

// Which shapes this thread's tiles have; 0: none. A caller numbers the shapes that it uses.
inline uint32_t& own_shapes() {
  thread_local uint32_t number = 0;
  return number;
}
template <class Shapes>
TGI_INLINED void use_shapes(uint32_t number, const Shapes& make) {
  if (own_shapes() == number) return;
  load_shapes(make());
  own_shapes() = number;
}

// When a thread goes idle: as long as it has tiles, each switch to another thread saves and restores them.
inline void release_tiles() {
  if constexpr (kTiles) {
    if (own_shapes() == 0) return;
    drop_tiles();
    own_shapes() = 0;
  }
}

}  // namespace tgi
