// The algorithm of AReaL's `gae_1d_nolp_misalign` (csrc/cugae of its release 0.3): one thread for
// each sequence computes its tokens one after the other. A sequence has one value more than it has
// tokens, which counts if `bootstrap` is set.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void advantages(const float* rewards, const float* values, const int32_t* cu_seqlens,
                           const bool* bootstrap, float* out, float* returns, int sequences,
                           float discount, float lambda) {
  const int sequence = blockIdx.x * blockDim.x + threadIdx.x;
  if (sequence >= sequences) return;
  const int start = cu_seqlens[sequence], end = cu_seqlens[sequence + 1];
  float next = 0.0f, next_value = bootstrap[sequence] ? values[end + sequence] : 0.0f;
  for (int token = end - 1; token >= start; token--) {
    const float value = values[token + sequence];
    next = rewards[token] + discount * next_value - value + discount * lambda * next;
    next_value = value;
    out[token] = next;
    returns[token] = next + value;
  }
}

}  // namespace

extern "C" int rljob_gae_peer(const float* rewards, const float* values, const int32_t* cu_seqlens,
                              const bool* bootstrap, float* out, float* returns, int sequences,
                              float discount, float lambda) {
  constexpr int kThreads = 256;
  advantages<<<(sequences + kThreads - 1) / kThreads, kThreads>>>(
      rewards, values, cu_seqlens, bootstrap, out, returns, sequences, discount, lambda);
  return cudaGetLastError();
}
