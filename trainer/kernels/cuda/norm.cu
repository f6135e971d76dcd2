// RMSNorm over rows of bfloat16, forward and backward. Sums are fp32 and in a fixed order.
#include <type_traits>

#include "common.cuh"

namespace rljob {
namespace {

// Packs of a row that a thread keeps in registers; 256 threads then have rows of 16,384 values.
constexpr int kMaxPacks = 8;

// One block per row.
template <int kPacks>
__global__ void forward(const Pack* x, const Pack* weight, Pack* y, float* scale, int packs,
                        float width, float epsilon) {
  __shared__ float scratch[32];
  const Pack* row = x + static_cast<int64_t>(blockIdx.x) * packs;
  Pack* out = y + static_cast<int64_t>(blockIdx.x) * packs;
  Pack kept[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < packs) kept[i] = row[at];
  }
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    if (threadIdx.x + i * blockDim.x >= packs) break;
    float values[kPack];
    unpack(kept[i], values);
#pragma unroll
    for (int j = 0; j < kPack; j++) square += values[j] * values[j];
  }
  const float inverse = rsqrtf(block_sum(square, scratch) / width + epsilon);
  if (threadIdx.x == 0) scale[blockIdx.x] = inverse;
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= packs) break;
    float values[kPack], w[kPack], result[kPack];
    unpack(kept[i], values);
    unpack(weight[at], w);
#pragma unroll
    for (int j = 0; j < kPack; j++) result[j] = rounded(values[j] * inverse) * w[j];
    out[at] = pack(result);
  }
}

// Block b computes rows b, b + blocks, …; its sums of the weight's gradient are row b of `partial`.
template <int kPacks>
__global__ void backward(const Pack* dy, const Pack* x, const float* scale, const Pack* weight,
                         const Pack* residual, Pack* dx, float* partial, int rows, int packs,
                         float width) {
  __shared__ float scratch[32];
  float w[kPacks][kPack], sums[kPacks][kPack];
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at < packs) unpack(weight[at], w[i]);
#pragma unroll
    for (int j = 0; j < kPack; j++) sums[i][j] = 0.0f;
  }
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t first = static_cast<int64_t>(row) * packs;
    const float inverse = scale[row];
    float normed[kPacks][kPack], dnormed[kPacks][kPack];
    float along = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; i++) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= packs) break;
      unpack(x[first + at], normed[i]);
      unpack(dy[first + at], dnormed[i]);
#pragma unroll
      for (int j = 0; j < kPack; j++) {
        normed[i][j] *= inverse;
        sums[i][j] += dnormed[i][j] * normed[i][j];
        dnormed[i][j] *= w[i][j];
        along += dnormed[i][j] * normed[i][j];
      }
    }
    along = block_sum(along, scratch) / width;
#pragma unroll
    for (int i = 0; i < kPacks; i++) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= packs) break;
      float result[kPack];
#pragma unroll
      for (int j = 0; j < kPack; j++) result[j] = (dnormed[i][j] - normed[i][j] * along) * inverse;
      if (residual != nullptr) {
        float other[kPack];
        unpack(residual[first + at], other);
#pragma unroll
        for (int j = 0; j < kPack; j++) result[j] = rounded(result[j]) + other[j];
      }
      dx[first + at] = pack(result);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= packs) break;
    float* out = partial + (static_cast<int64_t>(blockIdx.x) * packs + at) * kPack;
#pragma unroll
    for (int j = 0; j < kPack; j++) out[j] = sums[i][j];
  }
}

// Calls `run` with the number of packs of a row that a thread has, as a constant.
template <typename Run>
void with_packs(int packs, int threads, Run run) {
  switch ((packs + threads - 1) / threads) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    case 3: return run(std::integral_constant<int, 3>());
    case 4: return run(std::integral_constant<int, 4>());
    default: return run(std::integral_constant<int, kMaxPacks>());
  }
}

}  // namespace
}  // namespace rljob

using rljob::Pack;

// `threads` · kMaxPacks packs are at least a row.
extern "C" int rljob_rms_norm(const void* x, const void* weight, void* y, float* scale,
                              int64_t rows, int64_t width, int64_t threads, float epsilon,
                              cudaStream_t stream) {
  const int packs = width / rljob::kPack;
  rljob::with_packs(packs, threads, [&](auto count) {
    rljob::forward<count()><<<rows, threads, 0, stream>>>(
        static_cast<const Pack*>(x), static_cast<const Pack*>(weight), static_cast<Pack*>(y),
        scale, packs, static_cast<float>(width), epsilon);
  });
  return cudaGetLastError();
}

// `partial` is [blocks, width]; `residual` may be null.
extern "C" int rljob_rms_norm_backward(const void* dy, const void* x, const float* scale,
                                       const void* weight, const void* residual, void* dx,
                                       float* partial, int64_t blocks, int64_t rows, int64_t width,
                                       int64_t threads, cudaStream_t stream) {
  const int packs = width / rljob::kPack;
  rljob::with_packs(packs, threads, [&](auto count) {
    rljob::backward<count()><<<blocks, threads, 0, stream>>>(
        static_cast<const Pack*>(dy), static_cast<const Pack*>(x), scale,
        static_cast<const Pack*>(weight), static_cast<const Pack*>(residual),
        static_cast<Pack*>(dx), partial, rows, packs, static_cast<float>(width));
  });
  return cudaGetLastError();
}
