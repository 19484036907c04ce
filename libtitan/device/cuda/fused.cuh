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

