// Causal attention with grouped heads, by tiles of B queries and B keys with a running maximum (Dao, 2023): no matrix
// of scores is stored. T is float or bf16, all products and sums float (plain FMA, no tensor cores): for float32, and
// for what cuDNN refuses. D is the head dim, padded. Blocks of 256 threads, 16 by 16; dq, dk and dv are summed by one
// block each, in a fixed order. Against float64: float 1e-5, bf16 its rounding (8e-3).
#include "common.cuh"

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

// q and o are [batch, seqQ, heads, dim], k and v [batch, seqK, kvHeads, dim]. Query i is at position qStart + i, key j at
// kStart + j; a query sees the keys at or before its position.
struct shape { i64 batch, seqQ, seqK, heads, kvHeads, dim, qStart, kStart; };

// Copies rows [r0, r0+B) of a head into shared memory, rows D + 1 apart; zeros beyond.
template <int D, int B, class T> __device__ inline void fetch(float* to, const T* x, i64 b, i64 r0, i64 seq, i64 heads, i64 h, i64 dim) {
  for (int i = threadIdx.x; i < B * D; i += 256) {
    int r = i / D, d = i % D;
    to[r * (D + 1) + d] = r0 + r < seq && d < dim ? widen(x[((b * seq + r0 + r) * heads + h) * dim + d]) : 0;
  }
}

// c[r][c] = sum over d of a[ty + 16 r][d] * b[tx + 16 c][d]
template <int D, int R> __device__ inline void scores(float (&x)[R][R], const float* a, const float* b, int tx, int ty) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int c = 0; c < R; c++) x[r][c] = 0;
#pragma unroll 4
  for (int d = 0; d < D; d++) {
    float u[R], w[R];
#pragma unroll
    for (int r = 0; r < R; r++) u[r] = a[(ty + 16 * r) * (D + 1) + d], w[r] = b[(tx + 16 * r) * (D + 1) + d];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int c = 0; c < R; c++) x[r][c] += u[r] * w[c];
  }
}

// Whether query row i of the tile sees key j.
__device__ inline bool sees(const shape& s, i64 i, i64 j) { return i < s.seqQ && j < s.seqK && s.kStart + j <= s.qStart + i; }

// How many keys, from the first, the last query before q1 sees.
__device__ inline i64 visible(const shape& s, i64 q1) { return min(s.seqK, s.qStart + min(q1, s.seqQ) - s.kStart); }

template <class T, int D, int B>
__global__ void __launch_bounds__(256) attention(const T* q, const T* k, const T* v, T* o, float* lse, const __grid_constant__ shape s, float scale) {
  constexpr int R = B / 16, C = D / 16, L = D + 1;
  extern __shared__ float mem[];
  float *Q = mem, *K = Q + B * L, *V = K + B * L, *P = V + B * L;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 b = blockIdx.y / s.heads, h = blockIdx.y % s.heads, g = h * s.kvHeads / s.heads;
  i64 q0 = (gridDim.x - 1 - blockIdx.x) * (i64)B;  // the longest first
  fetch<D, B>(Q, q, b, q0, s.seqQ, s.heads, h, s.dim);
  float acc[R][C] = {}, top[R], sum[R] = {}, x[R][R];
  for (int r = 0; r < R; r++) top[r] = -INFINITY_F;
  i64 last = visible(s, q0 + B);
  for (i64 k0 = 0; k0 < last; k0 += B) {
    __syncthreads();
    fetch<D, B>(K, k, b, k0, s.seqK, s.kvHeads, g, s.dim);
    fetch<D, B>(V, v, b, k0, s.seqK, s.kvHeads, g, s.dim);
    __syncthreads();
    scores<D>(x, Q, K, tx, ty);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float m = top[r], part = 0;
#pragma unroll
      for (int c = 0; c < R; c++) {
        x[r][c] = sees(s, q0 + ty + 16 * r, k0 + tx + 16 * c) ? x[r][c] * scale * LOG2E : -INFINITY_F;
        m = fmaxf(m, x[r][c]);
      }
      for (int w = 8; w > 0; w /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, w));
      float down = top[r] == m ? 1 : exp2f(top[r] - m);
#pragma unroll
      for (int c = 0; c < R; c++) {
        float p = x[r][c] == -INFINITY_F ? 0 : exp2f(x[r][c] - m);
        P[(ty + 16 * r) * (B + 1) + tx + 16 * c] = p;
        part += p;
      }
      for (int w = 8; w > 0; w /= 2) part += __shfl_xor_sync(~0u, part, w);
      sum[r] = sum[r] * down + part;
      top[r] = m;
#pragma unroll
      for (int c = 0; c < C; c++) acc[r][c] *= down;
    }
    __syncwarp();  // a row of P is of one warp alone
#pragma unroll 4
    for (int j = 0; j < B; j++) {
      float p[R];
#pragma unroll
      for (int r = 0; r < R; r++) p[r] = P[(ty + 16 * r) * (B + 1) + j];
#pragma unroll
      for (int c = 0; c < C; c++) {
        float w = V[j * L + tx + 16 * c];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r][c] += p[r] * w;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    i64 i = q0 + ty + 16 * r;
    if (i >= s.seqQ) continue;
    float inv = sum[r] > 0 ? 1 / sum[r] : 0;
    if (tx == 0) lse[blockIdx.y * s.seqQ + i] = (top[r] + log2f(sum[r])) * LN2;
#pragma unroll
    for (int c = 0; c < C; c++)
      if (tx + 16 * c < s.dim) put(o + ((b * s.seqQ + i) * s.heads + h) * s.dim + tx + 16 * c, acc[r][c] * inv);
  }
}

// delta[b, h, i] = sum over channels of do * o. A warp has a row.
template <class T> __global__ void attention_delta(const T* dout, const T* o, float* delta, const __grid_constant__ shape s) {
  i64 row = blockIdx.x * 8ll + threadIdx.x / 32;
  if (row >= s.batch * s.seqQ * s.heads) return;
  float d = 0;
  for (i64 j = threadIdx.x % 32; j < s.dim; j += 32) d += widen(dout[row * s.dim + j]) * widen(o[row * s.dim + j]);
  for (int w = 16; w > 0; w /= 2) d += __shfl_xor_sync(~0u, d, w);
  i64 h = row % s.heads, i = row / s.heads % s.seqQ, b = row / s.heads / s.seqQ;
  if (threadIdx.x % 32 == 0) delta[(b * s.heads + h) * s.seqQ + i] = d;
}

// p = exp(scale q.k - lse) and ds = p * (do.v - delta) for a tile, into P (if it is not null) and S.
template <int D, int B> __device__ inline void gradients(const float* Q, const float* K, const float* V, const float* O, float* P, float* S,
    const float* lse, const float* delta, const shape& s, i64 head, i64 q0, i64 k0, float scale, int tx, int ty) {
  constexpr int R = B / 16;
  float x[R][R], y[R][R];
  scores<D>(x, Q, K, tx, ty);
  scores<D>(y, O, V, tx, ty);
#pragma unroll
  for (int r = 0; r < R; r++) {
    i64 i = q0 + ty + 16 * r;
    float l = i < s.seqQ ? lse[head * s.seqQ + i] * LOG2E : 0, d = i < s.seqQ ? delta[head * s.seqQ + i] : 0;
#pragma unroll
    for (int c = 0; c < R; c++) {
      float p = sees(s, i, k0 + tx + 16 * c) ? exp2f(x[r][c] * scale * LOG2E - l) : 0;
      int at = (ty + 16 * r) * (B + 1) + tx + 16 * c;
      if (P) P[at] = p;
      S[at] = p * (y[r][c] - d);
    }
  }
}

// dq = scale * ds k. A block has B queries of a head.
template <class T, int D, int B>
__global__ void __launch_bounds__(256) attention_dq(const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta, T* dq,
    const __grid_constant__ shape s, float scale) {
  constexpr int R = B / 16, C = D / 16, L = D + 1;
  extern __shared__ float mem[];
  float *Q = mem, *O = Q + B * L, *K = O + B * L, *V = K + B * L, *S = V + B * L;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 b = blockIdx.y / s.heads, h = blockIdx.y % s.heads, g = h * s.kvHeads / s.heads;
  i64 q0 = (gridDim.x - 1 - blockIdx.x) * (i64)B;
  fetch<D, B>(Q, q, b, q0, s.seqQ, s.heads, h, s.dim);
  fetch<D, B>(O, dout, b, q0, s.seqQ, s.heads, h, s.dim);
  float acc[R][C] = {};
  i64 last = visible(s, q0 + B);
  for (i64 k0 = 0; k0 < last; k0 += B) {
    __syncthreads();
    fetch<D, B>(K, k, b, k0, s.seqK, s.kvHeads, g, s.dim);
    fetch<D, B>(V, v, b, k0, s.seqK, s.kvHeads, g, s.dim);
    __syncthreads();
    gradients<D, B>(Q, K, V, O, nullptr, S, lse, delta, s, blockIdx.y, q0, k0, scale, tx, ty);
    __syncwarp();
#pragma unroll 4
    for (int j = 0; j < B; j++) {
      float p[R];
#pragma unroll
      for (int r = 0; r < R; r++) p[r] = S[(ty + 16 * r) * (B + 1) + j];
#pragma unroll
      for (int c = 0; c < C; c++) {
        float w = K[j * L + tx + 16 * c];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r][c] += p[r] * w;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    i64 i = q0 + ty + 16 * r;
#pragma unroll
    for (int c = 0; c < C; c++)
      if (i < s.seqQ && tx + 16 * c < s.dim) put(dq + ((b * s.seqQ + i) * s.heads + h) * s.dim + tx + 16 * c, acc[r][c] * scale);
  }
}

// dv = p^T do, dk = scale * ds^T q, summed over the query heads of the group in order. A block has B keys of a key-value head. In dv
// there is a gap between rows.
template <class T, int D, int B>
__global__ void __launch_bounds__(256) attention_dkv(const T* q, const T* k, const T* v, const T* dout, const float* lse, const float* delta, T* dk, T* dv, i64 gap,
    const __grid_constant__ shape s, float scale) {
  constexpr int R = B / 16, C = D / 16, L = D + 1;
  extern __shared__ float mem[];
  float *Q = mem, *O = Q + B * L, *K = O + B * L, *V = K + B * L, *P = V + B * L, *S = P + B * (B + 1);
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 b = blockIdx.y / s.kvHeads, g = blockIdx.y % s.kvHeads, group = s.heads / s.kvHeads, k0 = blockIdx.x * (i64)B;
  fetch<D, B>(K, k, b, k0, s.seqK, s.kvHeads, g, s.dim);
  fetch<D, B>(V, v, b, k0, s.seqK, s.kvHeads, g, s.dim);
  float ak[R][C] = {}, av[R][C] = {};
  i64 first = max(0ll, s.kStart + k0 - s.qStart) / B * B;  // the queries before see none of these keys
  for (i64 h = g * group; h < (g + 1) * group; h++)
    for (i64 q0 = first; q0 < s.seqQ; q0 += B) {
      __syncthreads();
      fetch<D, B>(Q, q, b, q0, s.seqQ, s.heads, h, s.dim);
      fetch<D, B>(O, dout, b, q0, s.seqQ, s.heads, h, s.dim);
      __syncthreads();
      gradients<D, B>(Q, K, V, O, P, S, lse, delta, s, b * s.heads + h, q0, k0, scale, tx, ty);
      __syncthreads();
#pragma unroll 2
      for (int i = 0; i < B; i++) {
        float p[R], ds[R];
#pragma unroll
        for (int r = 0; r < R; r++) p[r] = P[i * (B + 1) + ty + 16 * r], ds[r] = S[i * (B + 1) + ty + 16 * r];
#pragma unroll
        for (int c = 0; c < C; c++) {
          float w = O[i * L + tx + 16 * c], u = Q[i * L + tx + 16 * c];
#pragma unroll
          for (int r = 0; r < R; r++) av[r][c] += p[r] * w, ak[r][c] += ds[r] * u;
        }
      }
    }
#pragma unroll
  for (int r = 0; r < R; r++) {
    i64 j = k0 + ty + 16 * r;
#pragma unroll
    for (int c = 0; c < C; c++)
      if (j < s.seqK && tx + 16 * c < s.dim) {
        i64 row = b * s.seqK + j, at = (row * s.kvHeads + g) * s.dim + tx + 16 * c;
        put(dk + at, ak[r][c] * scale), put(dv + at + row * gap, av[r][c]);
      }
  }
}
