// Linear layer for few rows, as in a decode step: matrix multiplications of torch copy (fp32) or
// reorder (bfloat16) the weights on every call. All exceptions are caught in this file.
#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
namespace avx512 {
#define LANES 16
#define ROWS 8
#define COLUMNS 3
#include "linear_kernel.h"
#undef LANES
}  // namespace avx512
#pragma GCC pop_options

// Kernel for processors with dot products of bfloat16 pairs (AVX512-BF16).
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prefer-vector-width=512")
namespace avx512bf16 {
template <typename T, int M, int N>
void tile(const uint16_t* x, const uint16_t* w, float* y, int64_t k, int64_t n) {
  __m512 sums[M][N];
#pragma GCC unroll 8
  for (int a = 0; a < M; ++a) {
#pragma GCC unroll 8
    for (int b = 0; b < N; ++b) sums[a][b] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k; i += 32) {
    const __mmask32 mask = k - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
    __m512bh weights[N];
#pragma GCC unroll 8
    for (int b = 0; b < N; ++b) {
      weights[b] = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, w + b * k + i));
      __builtin_prefetch(w + b * k + i + avx512::AHEAD / 2);
    }
#pragma GCC unroll 8
    for (int a = 0; a < M; ++a) {
      const __m512bh row =
          reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, x + a * k + i));
#pragma GCC unroll 8
      for (int b = 0; b < N; ++b) sums[a][b] = _mm512_dpbf16_ps(sums[a][b], row, weights[b]);
    }
  }
  for (int a = 0; a < M; ++a) {
    for (int b = 0; b < N; ++b) y[a * n + b] = _mm512_reduce_add_ps(sums[a][b]);
  }
}
#include "linear_tiles.h"
#undef ROWS
#undef COLUMNS
}  // namespace avx512bf16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LANES 8
#define ROWS 4
#define COLUMNS 2
#include "linear_kernel.h"
}  // namespace avx2
#pragma GCC pop_options

namespace {

// Columns of y per task: a multiple of the widths of both tiles.
constexpr int64_t GRAIN = 48;

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

enum class Set { avx2, avx512, avx512bf16 };

Set best_set() {
  if (!has_avx512()) return Set::avx2;
  return __builtin_cpu_supports("avx512bf16") ? Set::avx512bf16 : Set::avx512;
}

const Set set = best_set();

template <class F>
void over_columns(int64_t n, F body) {
  at::parallel_for(0, (n + GRAIN - 1) / GRAIN, 1, [&](int64_t first, int64_t last) {
    body(first * GRAIN, std::min(last * GRAIN, n));
  });
}

template <typename T>
void multiply(const float* x, const T* w, float* y, int64_t m, int64_t k, int64_t n) {
  over_columns(n, [&](int64_t first, int64_t last) {
    if (set == Set::avx2) {
      avx2::columns(x, w, y, m, k, n, first, last);
    } else {
      avx512::columns(x, w, y, m, k, n, first, last);
    }
  });
}

void multiply_half(const uint16_t* x, const uint16_t* w, float* y, int64_t m, int64_t k,
                   int64_t n) {
  if (set == Set::avx512bf16) {
    over_columns(n, [&](int64_t first, int64_t last) {
      avx512bf16::columns(x, w, y, m, k, n, first, last);
    });
    return;
  }
  std::vector<float> wide(m * k);
  for (int64_t i = 0; i < m * k; ++i) wide[i] = avx2::widen(x[i]);
  multiply(wide.data(), w, y, m, k, n);
}

}  // namespace

extern "C" {

bool rljob_linear_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

// x [m, k] and w [n, k] are fp32 or, if `half`, bfloat16; y [m, n] is fp32; all are contiguous.
char* rljob_linear(const void* x, const void* w, bool half, float* y, int64_t m, int64_t k,
                   int64_t n) {
  try {
    if (half) {
      multiply_half(static_cast<const uint16_t*>(x), static_cast<const uint16_t*>(w), y, m, k, n);
    } else {
      multiply(static_cast<const float*>(x), static_cast<const float*>(w), y, m, k, n);
    }
    return nullptr;
  } catch (...) {
    return strdup("a thread of the linear layer failed");
  }
}

}  // extern "C"
#else
extern "C" {
bool rljob_linear_supported() { return false; }
char* rljob_linear(const void*, const void*, bool, float*, int64_t, int64_t, int64_t) {
  return strdup("not supported on this processor");
}
}
#endif
