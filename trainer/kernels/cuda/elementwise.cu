// SwiGLU, rotary embedding, AdamW and the join of attention over two sets of keys. Each reads and
// writes its operands once.
#include "common.cuh"

namespace rljob {
namespace {

constexpr int kThreads = 256;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// gate_up [rows, 2 F] → y [rows, F]. `half` is F in packs.
__global__ void swiglu(const Pack* gate_up, Pack* y, int64_t total, int half) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= total) return;
  const int64_t row = at / half, column = at % half;
  float gate[kPack], up[kPack];
  unpack(gate_up[row * 2 * half + column], gate);
  unpack(gate_up[row * 2 * half + half + column], up);
#pragma unroll
  for (int j = 0; j < kPack; j++) up[j] *= gate[j] * sigmoid(gate[j]);
  y[at] = pack(up);
}

__global__ void swiglu_backward(const Pack* dy, const Pack* gate_up, Pack* y, Pack* dgate_up,
                                int64_t total, int half) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= total) return;
  const int64_t row = at / half, column = at % half;
  const int64_t gate_at = row * 2 * half + column, up_at = gate_at + half;
  float gate[kPack], up[kPack], d[kPack], out[kPack];
  unpack(gate_up[gate_at], gate);
  unpack(gate_up[up_at], up);
  unpack(dy[at], d);
#pragma unroll
  for (int j = 0; j < kPack; j++) {
    const float s = sigmoid(gate[j]), silu = gate[j] * s;
    out[j] = silu * up[j];
    const float dup = d[j] * silu;
    gate[j] = d[j] * up[j] * s * (1.0f + gate[j] * (1.0f - s));
    up[j] = dup;
  }
  y[at] = pack(out);
  dgate_up[gate_at] = pack(gate);
  dgate_up[up_at] = pack(up);
}

// Rotates the pairs (i, i + D/2) of the first `heads` heads of each row of `stride` values, in
// place. A thread rotates one pack of pairs. `sign` is 1, or -1 for the inverse.
__global__ void rotate(__nv_bfloat16* x, const float* cosines, const float* sines, int64_t total,
                       int heads, int half, int64_t stride, float sign) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= total) return;
  const int packs = half / kPack;
  const int column = at % packs;
  const int head = at / packs % heads;
  const int64_t row = at / packs / heads;
  __nv_bfloat16* first = x + row * stride + head * 2 * half + column * kPack;
  Pack* low = reinterpret_cast<Pack*>(first);
  Pack* high = reinterpret_cast<Pack*>(first + half);
  float a[kPack], b[kPack], out_a[kPack], out_b[kPack];
  unpack(*low, a);
  unpack(*high, b);
  const float* c = cosines + row * half + column * kPack;
  const float* s = sines + row * half + column * kPack;
#pragma unroll
  for (int j = 0; j < kPack; j++) {
    const float cosine = c[j], sine = sign * s[j];
    out_a[j] = a[j] * cosine - b[j] * sine;
    out_b[j] = b[j] * cosine + a[j] * sine;
  }
  *low = pack(out_a);
  *high = pack(out_b);
}

struct AdamW {
  float learning_rate, beta1, beta2, weight_decay, epsilon, correction1, root_correction2, scale;
};

__device__ inline void update(float& p, float g, float& m, float& v, const AdamW& s) {
  g *= s.scale;
  p -= s.learning_rate * s.weight_decay * p;
  m += (1.0f - s.beta1) * (g - m);
  v = s.beta2 * v + (1.0f - s.beta2) * g * g;
  p -= s.learning_rate / s.correction1 * m / (sqrtf(v) / s.root_correction2 + s.epsilon);
}

// Four values per thread. `copy` may be null, and `scale`, which replaces that of the settings. A
// scale that is not a number updates nothing.
__global__ void adamw(float4* p, float4* g, float4* m, float4* v, __nv_bfloat162* copy,
                      int64_t quads, AdamW settings, const float* scale) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= quads) return;
  if (scale != nullptr) {
    settings.scale = *scale;
    if ((__float_as_uint(settings.scale) & 0x7fffffffu) > 0x7f800000u) return;
  }
  float4 weight = p[at], first = m[at], second = v[at];
  const float4 gradient = g[at];
  update(weight.x, gradient.x, first.x, second.x, settings);
  update(weight.y, gradient.y, first.y, second.y, settings);
  update(weight.z, gradient.z, first.z, second.z, settings);
  update(weight.w, gradient.w, first.w, second.w, settings);
  p[at] = weight;
  m[at] = first;
  v[at] = second;
  if (copy != nullptr) {
    copy[2 * at] = __floats2bfloat162_rn(weight.x, weight.y);
    copy[2 * at + 1] = __floats2bfloat162_rn(weight.z, weight.w);
  }
}

// Heads of `packs` packs each: out = out + (other - out) * sigmoid(other sum - sum), with the
// logarithms of the sums of exponentials. Without another sum, -inf, `other` is not read.
__global__ void join_attention(Pack* out, const float* sums, const Pack* other,
                               const float* other_sums, int64_t total, int packs) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= total) return;
  const int64_t head = at / packs;
  const float other_sum = other_sums[head];
  if (isinf(other_sum)) return;
  const float share = sigmoid(other_sum - sums[head]);
  float a[kPack], b[kPack];
  unpack(out[at], a);
  unpack(other[at], b);
#pragma unroll
  for (int j = 0; j < kPack; j++) a[j] += (b[j] - a[j]) * share;
  out[at] = pack(a);
}

unsigned blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace
}  // namespace rljob

using rljob::Pack;

extern "C" int rljob_swiglu(const void* gate_up, void* y, int64_t rows, int64_t width,
                            cudaStream_t stream) {
  const int64_t half = width / rljob::kPack, total = rows * half;
  if (total == 0) return 0;
  rljob::swiglu<<<rljob::blocks(total), rljob::kThreads, 0, stream>>>(
      static_cast<const Pack*>(gate_up), static_cast<Pack*>(y), total, half);
  return cudaGetLastError();
}

extern "C" int rljob_swiglu_backward(const void* dy, const void* gate_up, void* y, void* dgate_up,
                                     int64_t rows, int64_t width, cudaStream_t stream) {
  const int64_t half = width / rljob::kPack, total = rows * half;
  if (total == 0) return 0;
  rljob::swiglu_backward<<<rljob::blocks(total), rljob::kThreads, 0, stream>>>(
      static_cast<const Pack*>(dy), static_cast<const Pack*>(gate_up), static_cast<Pack*>(y),
      static_cast<Pack*>(dgate_up), total, half);
  return cudaGetLastError();
}

extern "C" int rljob_rotate(void* x, const float* cosines, const float* sines, int64_t rows,
                            int64_t heads, int64_t head_size, int64_t stride, float sign,
                            cudaStream_t stream) {
  const int64_t half = head_size / 2, total = rows * heads * (half / rljob::kPack);
  if (total == 0) return 0;
  rljob::rotate<<<rljob::blocks(total), rljob::kThreads, 0, stream>>>(
      static_cast<__nv_bfloat16*>(x), cosines, sines, total, heads, half, stride, sign);
  return cudaGetLastError();
}

// The length is a multiple of four.
extern "C" int rljob_adamw(float* p, float* g, float* m, float* v, void* copy, int64_t length,
                           const float settings[8], const float* scale, cudaStream_t stream) {
  const rljob::AdamW all{settings[0], settings[1], settings[2], settings[3],
                         settings[4], settings[5], settings[6], settings[7]};
  const int64_t quads = length / 4;
  if (quads == 0) return 0;
  rljob::adamw<<<rljob::blocks(quads), rljob::kThreads, 0, stream>>>(
      reinterpret_cast<float4*>(p), reinterpret_cast<float4*>(g), reinterpret_cast<float4*>(m),
      reinterpret_cast<float4*>(v), static_cast<__nv_bfloat162*>(copy), quads, all,
      scale);
  return cudaGetLastError();
}

extern "C" int rljob_join_attention(void* out, const float* sums, const void* other,
                                    const float* other_sums, int64_t heads, int64_t head_size,
                                    cudaStream_t stream) {
  const int64_t packs = head_size / rljob::kPack, total = heads * packs;
  if (total == 0) return 0;
  rljob::join_attention<<<rljob::blocks(total), rljob::kThreads, 0, stream>>>(
      static_cast<Pack*>(out), sums, static_cast<const Pack*>(other), other_sums, total, packs);
  return cudaGetLastError();
}
