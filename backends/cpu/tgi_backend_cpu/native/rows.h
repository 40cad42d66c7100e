// Operations on one row at a time: RMS norm, RoPE, embedding.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simd.h"

namespace tgi {

// to[i] = from[i] / rms(from) · weight[i]. `from` may be `to` when T is float.
template <class T>
void rms_norm(const float* from, const float* weight, float epsilon, int width, T* to) {
  f32x16 squares[4] = {zero(), zero(), zero(), zero()};  // four chains, since a single one would wait for each addition
  int at = 0;
  for (; at + 64 <= width; at += 64)
    TGI_UNROLL for (int c = 0; c < 4; c++) squares[c] = fma(load(from + at + 16 * c), load(from + at + 16 * c), squares[c]);
  for (; at < width; at += 16) {
    const f32x16 v = load_first(from + at, width - at);
    squares[0] = fma(v, v, squares[0]);
  }
  const float total = sum(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  const f32x16 factor = splat(1.0f / std::sqrt(total / (float)width + epsilon));
  for (int i = 0; i < width; i += 16) {
    const f32x16 v = mul(load_first(from + i, width - i), factor);
    store_first(to + i, mul(v, load_first(weight + i, width - i)), width - i);
  }
}

// Cosines and sines [half] of one position's angles.
inline void rotation(int position, const float* frequencies, int half, float factor, float* cosines, float* sines) {
  for (int i = 0; i < half; i++) {
    const float angle = (float)position * frequencies[i];
    cosines[i] = std::cos(angle) * factor;
    sines[i] = std::sin(angle) * factor;
  }
}

// Applies RoPE to a head: of its first 2 · half elements, i is rotated with i + half; the others are copied.
template <class T>
void rotate(const float* head, const float* cosines, const float* sines, int half, int size, T* to) {
  for (int i = 0; i < half; i += 16) {
    const int n = half - i;
    const f32x16 a = load_first(head + i, n), b = load_first(head + half + i, n);
    const f32x16 cosine = load_first(cosines + i, n), sine = load_first(sines + i, n);
    store_first(to + i, sub(mul(a, cosine), mul(b, sine)), n);
    store_first(to + half + i, add(mul(b, cosine), mul(a, sine)), n);
  }
  for (int i = 2 * half; i < size; i += 16) store_first(to + i, load_first(head + i, size - i), size - i);
}

template <class T>
void cast_row(const float* from, int width, T* to) {
  for (int i = 0; i < width; i += 16) store_first(to + i, load_first(from + i, width - i), width - i);
}

// Reads from an open file. Ends the process where it cannot be read, as a signal would in a mapped file.
inline void read_file(int file, int64_t start, char* to, size_t bytes) {
  while (bytes) {
    const ssize_t got = pread(file, to, bytes, start);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fprintf(stderr, "the embedding cannot be read from the model's file: %s\n", got ? strerror(errno) : "it is shorter than it was");
      abort();
    }
    to += got, start += got, bytes -= (size_t)got;
  }
}

// `from` may be the end of `to`.
template <class T>
void embed(const T* from, int width, float scale, float* to) {
  for (int i = 0; i < width; i += 16) store_first(to + i, mul(load_first(from + i, width - i), splat(scale)), width - i);
}

}  // namespace tgi
