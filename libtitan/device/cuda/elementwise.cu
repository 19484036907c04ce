// Kernels that treat every element alike. T, A, B are float or bf16; N elements a thread at once. n counts elements;
// the last n % N are done one by one. Each result is rounded once: within half a unit of its type of the float result.
#include "common.cuh"

// each calls f.run<N>(i) for the whole groups of N and f.run<1>(i) for what is left.
template <int N, class F> __device__ inline void each(i64 n, F f) {
  i64 group = blockIdx.x * (i64)blockDim.x + threadIdx.x, whole = n / N;
  if (group < whole) f.template run<N>(group * N);
  else if (group - whole < n - whole * N) f.template run<1>(whole * N + group - whole);
}

template <class A, class B> struct cast_op {
  const A* x; B* y;
  template <int N> __device__ void run(i64 i) { float f[N]; load(f, x + i); store(y + i, f); }
};
// y = x in another type.
template <class A, class B, int N> __global__ void cast(const A* x, B* y, i64 n) { each<N>(n, cast_op<A, B>{x, y}); }

template <class T> struct list { const T* x[16]; };
template <class T> struct add_op {
  const list<T>& in; T* y; i64 count;
  template <int N> __device__ void run(i64 i) {
    float s[N], f[N];
    load(s, in.x[0] + i);
    for (int j = 1; j < count; j++) {
      load(f, in.x[j] + i);
#pragma unroll
      for (int k = 0; k < N; k++) s[k] += f[k];
    }
    store(y + i, s);
  }
};
// y = x[0] + x[1] + ..., in that order; y may be one of them.
template <class T, int N> __global__ void add(const __grid_constant__ list<T> in, T* y, i64 count, i64 n) { each<N>(n, add_op<T>{in, y, count}); }

// The logistic function: the hardware's approximations where the result is rounded to bf16.
__device__ inline float sigmoid(float x, const float*) { return 1 / (1 + expf(-x)); }
__device__ inline float sigmoid(float x, const bf16*) { return __fdividef(1, 1 + __expf(-x)); }

template <class T> struct swiglu_op {
  const T *a, *b; T* y;
  template <int N> __device__ void run(i64 i) {
    float f[N], g[N];
    load(f, a + i), load(g, b + i);
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = f[k] * sigmoid(f[k], a) * g[k];
    store(y + i, f);
  }
};
// y = a * sigmoid(a) * b.
template <class T, int N> __global__ void swiglu(const T* a, const T* b, T* y, i64 n) { each<N>(n, swiglu_op<T>{a, b, y}); }

template <class T> struct swiglu_backward_op {
  const T *dy, *a, *b; T *da, *db;
  template <int N> __device__ void run(i64 i) {
    float d[N], f[N], g[N];
    load(d, dy + i), load(f, a + i), load(g, b + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      float s = sigmoid(f[k], a), db = d[k] * f[k] * s;
      f[k] = d[k] * g[k] * s * (1 + f[k] * (1 - s));
      g[k] = db;
    }
    store(da + i, f), store(db + i, g);
  }
};
// With s = sigmoid(a): da = dy * b * s * (1 + a * (1-s)), db = dy * a * s.
template <class T, int N> __global__ void swiglu_backward(const T* dy, const T* a, const T* b, T* da, T* db, i64 n) {
  each<N>(n, swiglu_backward_op<T>{dy, a, b, da, db});
}

// Turns pairs (x[2i], x[2i+1]) of each head by the angle of their position: x is [batch, seq, heads, dim], cos and sin
// float [seq, dim/2]. sign -1 turns back. In y there is a gap between positions. N divides dim. f is the N elements from i on, before
// they are rounded.
template <class T, int N>
__device__ inline void turn(float (&f)[N], u32 i, const T* x, const float* cos, const float* sin, T* y, i64 gap, u32 seq, u32 heads, u32 dim, float sign) {
  u32 row = i / dim, token = row / heads, position = token % seq;
  i64 t = (i64)position * (dim / 2) + (i - row * dim) / 2;
  float c[N / 2], s[N / 2];
  load(f, x + i), load(c, cos + t), load(s, sin + t);
#pragma unroll
  for (int k = 0; k < N / 2; k++) {
    float re = f[2 * k], im = f[2 * k + 1], sn = sign * s[k];
    f[2 * k] = fmaf(re, c[k], -im * sn);  // said so that all kernels round alike
    f[2 * k + 1] = fmaf(re, sn, im * c[k]);
  }
  store(y + i + token * gap, f);
}

// n fits in 32 bits.
template <class T, int N>
__global__ void rope(const T* x, const float* __restrict__ cos, const float* __restrict__ sin, T* y, i64 gap, i64 n, i64 seq, i64 heads, i64 dim, float sign) {
  u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (i >= n) return;
  float f[N];
  turn(f, i, x, cos, sin, y, gap, seq, heads, dim, sign);
}

// rope, and out = the largest magnitude of y. Blocks go on to other elements, so that few have to be joined. state is largest_of_grid's.
template <class T, int N>
__global__ void __launch_bounds__(256) rope_largest(const T* x, const float* __restrict__ cos, const float* __restrict__ sin, T* y, i64 gap, i64 n, i64 seq, i64 heads, i64 dim, float sign, float* out, u32* state) {
  u32 top = 0;
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * N; i < n; i += gridDim.x * (i64)blockDim.x * N) {
    float f[N];
    turn(f, i, x, cos, sin, y, gap, seq, heads, dim, sign);
    top = largest_of(f, top);
  }
  T rounded;  // as the largest of y is, since no two magnitudes change places
  put(&rounded, __uint_as_float(top));
  largest_of_grid(magnitude(widen(rounded)), out, state);
}
