// What generated kernels share, beside common.cuh.
#include "common.cuh"

// x as bf16 holds it.
__device__ inline float rounded(float x) { return __uint_as_float(narrow2(0, x)); }

// The logistic function; fast has an error of 2^-21 or so, which rounding to bf16 hides.
__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ inline float sigmoid_fast(float x) { return __fdividef(1, 1 + __expf(-x)); }

// Asks for a vector's line to be brought to the L2 cache; one thread of each line does.
template <int N, class T> __device__ inline void ahead(const T* p) {
  if ((u64)p % 128 < N * sizeof(T)) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Adds up each of N numbers over a row's threads, in a fixed order: the lanes of each warp, then the warps. Every thread gets
// the sums.
template <int N> __device__ inline void row_sums(float (&s)[N]) {
  __shared__ float part[N][32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
#pragma unroll
    for (int n = 0; n < N; n++) s[n] += __shfl_xor_sync(~0u, s[n], o);
  int warps = blockDim.x / 32;
  if (warps == 1) return;
  __syncthreads();  // the parts of the sums before may still be read
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int n = 0; n < N; n++) part[n][threadIdx.x / 32] = s[n];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; n++) {
    s[n] = part[n][0];
    for (int i = 1; i < warps; i++) s[n] += part[n][i];
  }
}

