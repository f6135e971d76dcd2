// Vectorized access to bfloat16 rows, and sums over a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace rljob {

// Eight bfloat16 values, read and written with one instruction.
struct alignas(16) Pack {
  __nv_bfloat162 pairs[4];
};

constexpr int kPack = 8;

__device__ inline void unpack(const Pack& pack, float out[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack / 2; i++) {
    const float2 pair = __bfloat1622float2(pack.pairs[i]);
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

__device__ inline Pack pack(const float in[kPack]) {
  Pack result;
#pragma unroll
  for (int i = 0; i < kPack / 2; i++) {
    result.pairs[i] = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
  }
  return result;
}

// As a plain operation that stores its result in bfloat16 would.
__device__ inline float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The sum over a block of whole warps, on every thread. `scratch` has 32 floats.
__device__ inline float block_sum(float value, float* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (warps == 1) return value;
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

}  // namespace rljob
