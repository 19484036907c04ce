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

// A thread's own N elements of the row that it does next are asked for while it does the one before, and lie in shared memory,
// where no other thread reads them, until it takes them. What shared memory has no room for, or is too short, is not ON: it is
// brought to the L2 cache alone.
template <class X, int N> struct alignas(N * sizeof(X) < 16 ? N * sizeof(X) : 16) coming { X x[N]; };

__device__ constexpr bool comes(int bytes, int shortest) { return bytes <= 46 << 10 && shortest >= 4; }

template <bool ON, class X, int N> __device__ inline void ask(coming<X, N>* at, const X* p) {
  if constexpr (ON) {
    constexpr int bytes = N * sizeof(X);
    u64 shared;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(shared) : "l"(at));
    u32 to = (u32)shared;
    if constexpr (bytes < 16) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(p), "n"(bytes) : "memory");
    } else {
#pragma unroll
      for (int b = 0; b < bytes; b += 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + b), "l"((const char*)p + b) : "memory");
    }
  } else {
    ahead<N>(p);
  }
}
template <bool ON, class X, int N> __device__ inline void take(float (&f)[N], const coming<X, N>* at, const X* p) {
  if constexpr (ON) load(f, at->x);
  else load(f, p);
}
// The place, among all threads' of a block of T, of the i-th vector of a thread's own.
template <bool ON, int T> __device__ inline int own(int i) { return ON ? i * T + threadIdx.y * blockDim.x + threadIdx.x : 0; }

// What was asked for up to sent comes together; arrived waits for all but the LATER newest of those.
__device__ inline void sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ inline void arrived() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

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

