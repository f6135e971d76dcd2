// Log-probability and entropy of a row of logits, and the derivative with respect to the logits,
// without an fp32 copy of the row. Logits are bfloat16 [rows, vocabulary].
#include <math_constants.h>

#include "common.cuh"

namespace rljob {
namespace {

constexpr int kThreads = 512;

// Running maximum m, sum of exp(x − m) and sum of x · exp(x − m).
struct Sums {
  float largest, exps, weighted;
};

__device__ inline Sums joined(const Sums& a, const Sums& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -CUDART_INF_F) return a;
  const float left = __expf(a.largest - largest), right = __expf(b.largest - largest);
  return {largest, a.exps * left + b.exps * right, a.weighted * left + b.weighted * right};
}

__device__ inline Sums warp_joined(Sums sums) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    sums = joined(sums, {__shfl_xor_sync(0xffffffffu, sums.largest, offset),
                         __shfl_xor_sync(0xffffffffu, sums.exps, offset),
                         __shfl_xor_sync(0xffffffffu, sums.weighted, offset)});
  }
  return sums;
}

// One block per row.
__global__ void distribution(const Pack* logits, const int64_t* targets, float* logprobs,
                             float* entropies, float* logsumexps, int packs,
                             float inverse_temperature) {
  __shared__ Sums scratch[32];
  const Pack* row = logits + static_cast<int64_t>(blockIdx.x) * packs;
  Sums sums{-CUDART_INF_F, 0.0f, 0.0f};
  for (int at = threadIdx.x; at < packs; at += kThreads) {
    float x[kPack];
    unpack(row[at], x);
    float largest = x[0];
#pragma unroll
    for (int j = 1; j < kPack; j++) largest = fmaxf(largest, x[j]);
    largest *= inverse_temperature;
    Sums own{largest, 0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kPack; j++) {
      const float value = x[j] * inverse_temperature, e = __expf(value - largest);
      own.exps += e;
      own.weighted += value * e;
    }
    sums = joined(sums, own);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  sums = warp_joined(sums);
  if (lane == 0) scratch[warp] = sums;
  __syncthreads();
  if (warp != 0) return;
  sums = warp_joined(lane < kThreads / 32 ? scratch[lane] : Sums{-CUDART_INF_F, 0.0f, 0.0f});
  if (lane != 0) return;
  const auto* values = reinterpret_cast<const __nv_bfloat16*>(row);
  const float target = __bfloat162float(values[targets[blockIdx.x]]) * inverse_temperature;
  const float logsumexp = sums.largest + logf(sums.exps);
  logprobs[blockIdx.x] = target - logsumexp;
  entropies[blockIdx.x] = logsumexp - sums.weighted / sums.exps;
  logsumexps[blockIdx.x] = logsumexp;
}

// Replaces the logits, with softmax p and entropy H, by
// (gradient · (onehot(target) − p) − entropy gradient · p · (log p + H)) ÷ temperature. Entropies and
// their gradients are null if the loss does not depend on the entropy.
__global__ void gradient(Pack* logits, const int64_t* targets, const float* gradients,
                         const float* logsumexps, const float* entropy_gradients,
                         const float* entropies, int packs, float inverse_temperature) {
  Pack* row = logits + static_cast<int64_t>(blockIdx.x) * packs;
  const float scale = gradients[blockIdx.x] * inverse_temperature;
  const float logsumexp = logsumexps[blockIdx.x];
  const bool has_entropy = entropy_gradients != nullptr;
  const float entropy_scale =
      has_entropy ? entropy_gradients[blockIdx.x] * inverse_temperature : 0.0f;
  const float entropy = has_entropy ? entropies[blockIdx.x] : 0.0f;
  const int64_t target = targets[blockIdx.x];
  for (int at = threadIdx.x; at < packs; at += kThreads) {
    float x[kPack];
    unpack(row[at], x);
#pragma unroll
    for (int j = 0; j < kPack; j++) {
      const float hit = static_cast<int64_t>(at) * kPack + j == target ? 1.0f : 0.0f;
      const float logprob = x[j] * inverse_temperature - logsumexp;
      const float probability = __expf(logprob);
      x[j] = scale * (hit - probability);
      // p log p is 0 where p is.
      if (has_entropy && probability > 0.0f) {
        x[j] -= entropy_scale * probability * (logprob + entropy);
      }
    }
    row[at] = pack(x);
  }
}

}  // namespace
}  // namespace rljob

using rljob::Pack;

extern "C" int rljob_distribution(const void* logits, const int64_t* targets, float* logprobs,
                                  float* entropies, float* logsumexps, int64_t rows,
                                  int64_t vocabulary, float inverse_temperature,
                                  cudaStream_t stream) {
  if (rows == 0) return 0;
  rljob::distribution<<<rows, rljob::kThreads, 0, stream>>>(
      static_cast<const Pack*>(logits), targets, logprobs, entropies, logsumexps,
      vocabulary / rljob::kPack, inverse_temperature);
  return cudaGetLastError();
}

extern "C" int rljob_logits_gradient(void* logits, const int64_t* targets, const float* gradients,
                                     const float* logsumexps, const float* entropy_gradients,
                                     const float* entropies, int64_t rows, int64_t vocabulary,
                                     float inverse_temperature, cudaStream_t stream) {
  if (rows == 0) return 0;
  rljob::gradient<<<rows, rljob::kThreads, 0, stream>>>(
      static_cast<Pack*>(logits), targets, gradients, logsumexps, entropy_gradients, entropies,
      vocabulary / rljob::kPack, inverse_temperature);
  return cudaGetLastError();
}
