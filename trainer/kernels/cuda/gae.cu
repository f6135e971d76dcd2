// Advantages of packed sequences: A_t = δ_t + d · A_{t+1} from the end of each sequence, with its
// decay d = γλ, as a parallel scan in fp64 and in a fixed order. Values are fp32.
#include <cuda_runtime.h>

#include <cstdint>

namespace rljob {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Consecutive tokens of a thread.
constexpr int kTokens = 4;
constexpr int kChunk = kThreads * kTokens;
// Steps of a scan over a warp.
constexpr int kScan = 5;

// One block per sequence, which computes chunks of tokens from the last to the first. Threads
// compute their tokens as if nothing followed; what follows is then added with its decay.
__global__ void __launch_bounds__(kThreads)
    advantages(const float* rewards, const float* values, const int64_t* ends,
               const float* end_values, float* out, double discount, const double* lambdas) {
  const double decay = discount * lambdas[blockIdx.x];
  __shared__ double totals[2][kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // decay^(kTokens · 2^i): over the tokens of 2^i threads.
  double decays[kScan + 1];
  decays[0] = 1.0;
#pragma unroll
  for (int i = 0; i < kTokens; i++) decays[0] *= decay;
#pragma unroll
  for (int i = 0; i < kScan; i++) decays[i + 1] = decays[i] * decays[i];
  // Over the tokens of the later threads of the warp.
  double to_warp_end = 1.0;
#pragma unroll
  for (int i = 0; i < kScan; i++) {
    if ((31 - lane) >> i & 1) to_warp_end *= decays[i];
  }
  const int64_t start = blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1];
  const int64_t sequence_end = ends[blockIdx.x];
  // Advantage of the token after the chunk.
  double after_chunk = 0.0;
  int buffer = 0;
  for (int64_t end = sequence_end; end > start; end -= kChunk, buffer ^= 1) {
    const int64_t first = end - kChunk + threadIdx.x * kTokens, last = first + kTokens - 1;
    double own[kTokens], next = 0.0, next_value = 0.0;
    if (last >= start) {
      next_value = last + 1 == sequence_end ? end_values[blockIdx.x] : values[last + 1];
    }
#pragma unroll
    for (int i = kTokens - 1; i >= 0; i--) {
      if (first + i >= start) {
        const double value = values[first + i];
        next = rewards[first + i] + discount * next_value - value + decay * next;
        next_value = value;
      }
      own[i] = next;
    }
    // Of this thread's first token, as if nothing followed the warp.
    double total = own[0];
#pragma unroll
    for (int i = 0; i < kScan; i++) {
      const double later = __shfl_down_sync(0xffffffffu, total, 1 << i);
      if (lane + (1 << i) < 32) total += decays[i] * later;
    }
    if (lane == 0) totals[buffer][warp] = total;
    __syncthreads();
    double after_warp = 0.0;
#pragma unroll
    for (int i = kWarps - 1; i >= 0; i--) {
      if (i == warp) after_warp = after_chunk;
      after_chunk = totals[buffer][i] + decays[kScan] * after_chunk;
    }
    const double later = __shfl_down_sync(0xffffffffu, total, 1);
    double after = (lane < 31 ? later : 0.0) + to_warp_end * after_warp;
#pragma unroll
    for (int i = kTokens - 1; i >= 0; i--) {
      after *= decay;
      if (first + i >= start) out[first + i] = static_cast<float>(own[i] + after);
    }
  }
}

}  // namespace
}  // namespace rljob

// Sequence q has the tokens from ends[q − 1], or 0, up to ends[q].
extern "C" int rljob_gae(const float* rewards, const float* values, const int64_t* ends,
                         const float* end_values, float* out, int64_t sequences, double discount,
                         const double* lambdas, cudaStream_t stream) {
  if (sequences == 0) return 0;
  rljob::advantages<<<sequences, rljob::kThreads, 0, stream>>>(
      rewards, values, ends, end_values, out, discount, lambdas);
  return cudaGetLastError();
}
