// What all kernels share. No CUDA header is needed: the library that compiles this has none.
#pragma once
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// bf16 is a float's upper half; kernels compute on floats and round to nearest even on the way out.
struct bf16 { u16 bits; };

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ inline u32 narrow2(float lo, float hi) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
__device__ inline void put(float* p, float x) { *p = x; }
__device__ inline void put(bf16* p, float x) { p->bits = (u16)narrow2(x, 0); }

// load and store move N elements at once; p is aligned to them.
template <int N> struct alignas(4 * N) words { u32 w[N]; };

template <int N> __device__ inline void load(float (&f)[N], const float* p) {
  words<N> x = *reinterpret_cast<const words<N>*>(p);
#pragma unroll
  for (int i = 0; i < N; i++) f[i] = __uint_as_float(x.w[i]);
}
template <int N> __device__ inline void load(float (&f)[N], const bf16* p) {
  if constexpr (N == 1) {
    f[0] = widen(*p);
  } else {
    words<N / 2> x = *reinterpret_cast<const words<N / 2>*>(p);
#pragma unroll
    for (int i = 0; i < N / 2; i++) f[2 * i] = __uint_as_float(x.w[i] << 16), f[2 * i + 1] = __uint_as_float(x.w[i] & 0xffff0000u);
  }
}
template <int N> __device__ inline void store(float* p, const float (&f)[N]) {
  words<N> x;
#pragma unroll
  for (int i = 0; i < N; i++) x.w[i] = __float_as_uint(f[i]);
  *reinterpret_cast<words<N>*>(p) = x;
}
template <int N> __device__ inline void store(bf16* p, const float (&f)[N]) {
  if constexpr (N == 1) {
    put(p, f[0]);
  } else {
    words<N / 2> x;
#pragma unroll
    for (int i = 0; i < N / 2; i++) x.w[i] = narrow2(f[2 * i], f[2 * i + 1]);
    *reinterpret_cast<words<N / 2>*>(p) = x;
  }
}

// Reductions over a block, in a fixed order: the lanes of each warp, then the warps. Every thread gets the result.
#define INFINITY_F __int_as_float(0x7f800000)

struct plus { template <class S> __device__ S operator()(S a, S b) const { return a + b; } };
struct larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };

template <class S, class F> __device__ inline S block_reduce(S s, F f) {
  __shared__ S part[32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) s = f(s, __shfl_xor_sync(~0u, s, o));
  int warps = blockDim.x / 32;
  if (warps == 1) return s;
  __syncthreads();  // the parts of the reduction before may still be read
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = part[0];
  for (int i = 1; i < warps; i++) s = f(s, part[i]);
  return s;
}

// Magnitudes are compared by their bits: a NaN has more than infinity.
__device__ inline u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
template <int N> __device__ inline u32 largest_of(const float (&f)[N], u32 top) {
#pragma unroll
  for (int k = 0; k < N; k++) top = max(top, magnitude(f[k]));
  return top;
}

// *out = the largest of what the threads of all blocks have. state is two words of zeros, which it leaves so: the largest of the
// blocks that are done, and how many those are.
__device__ inline void largest_of_grid(u32 top, float* out, u32* state) {
  __shared__ u32 part[32];
  int thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / 32;
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
  __syncthreads();  // the parts of the one before may still be read
  if (thread % 32 == 0) part[thread / 32] = top;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < warps; i++) top = max(top, part[i]);
  atomicMax(state, top);
  __threadfence();
  if (atomicAdd(state + 1, 1u) + 1 < gridDim.x) return;
  __threadfence();
  *out = __uint_as_float(atomicExch(state, 0u));
  state[1] = 0;
}

template <class S> __device__ inline S block_sum(S s) { return block_reduce(s, plus()); }
__device__ inline float block_max(float s) { return block_reduce(s, larger()); }
