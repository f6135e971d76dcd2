// y[m][n] = Σ_k x[m][k] · w[n][k] for few rows m. Bound by memory bandwidth: the weights are read
// once, in order. Included once per instruction set in a separate namespace, with LANES (floats per
// register), ROWS and COLUMNS (accumulators of a tile) defined.
//
// The order of the sum over k does not depend on the tile, so that the bits of a row's result do
// not depend on other rows.

typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

inline Lanes load(const float* from) {
  Lanes lanes;
  memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// bfloat16 is the upper half of a float.
inline Lanes load(const uint16_t* from) {
  Halves halves;
  memcpy(&halves, from, sizeof halves);
  return reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}

inline float widen(float value) { return value; }
inline float widen(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Sum of the lanes by recursive halving.
inline float sum(Lanes lanes) {
  float values[LANES];
  memcpy(values, &lanes, sizeof lanes);
  for (int width = LANES / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int lane = 0; lane < width; ++lane) values[lane] += values[lane + width];
  }
  return values[0];
}

// Prefetch distance in bytes; the hardware prefetcher stops at the end of a page.
constexpr int64_t AHEAD = 4096;

template <typename T, int M, int N>
void tile(const float* x, const T* w, float* y, int64_t k, int64_t n) {
  Lanes sums[M][N] = {};
  int64_t i = 0;
  for (; i + LANES <= k; i += LANES) {
    Lanes weights[N];
#pragma GCC unroll 8
    for (int b = 0; b < N; ++b) {
      weights[b] = load(w + b * k + i);
      __builtin_prefetch(w + b * k + i + AHEAD / sizeof(T));
    }
#pragma GCC unroll 8
    for (int a = 0; a < M; ++a) {
      const Lanes row = load(x + a * k + i);
#pragma GCC unroll 8
      for (int b = 0; b < N; ++b) sums[a][b] += row * weights[b];
    }
  }
  for (int a = 0; a < M; ++a) {
    for (int b = 0; b < N; ++b) {
      float total = sum(sums[a][b]);
      for (int64_t rest = i; rest < k; ++rest) {
        total = __builtin_fmaf(x[a * k + rest], widen(w[b * k + rest]), total);
      }
      y[a * n + b] = total;
    }
  }
}

#include "linear_tiles.h"
