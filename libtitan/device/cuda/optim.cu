// Updates over all parameters in one launch. A block takes one chunk of one tensor; tables in device memory say which.
// Against torch.optim.AdamW in float64: 1e-6 after 20 steps. Sums of squares are double: 1e-12.
#include "common.cuh"

// copy, and largest magnitude, of p: 0 if there is none. narrow: the gradient is bf16. rows: of each row of p, dim elements, that of g
// which is its gradient, -1 if that is zeros; 0: g is as p is.
struct tensor { float *p; void* g; float *m, *v; bf16* copy; u32* largest; const int* rows; i64 dim, n; bool narrow; };
struct chunk { int tensor, index; };

// What one step is made of, in device memory: it changes from step to step, the launch does not. clip fills in the first two.
struct scalars { int finite; float grad_scale; double max_norm; float decay, one_minus_beta1, beta2, one_minus_beta2, sqrt_c2, eps, minus_step; };

// adamw1 leaves no choice of what is multiplied and added at once, so that all that it is compiled into has the same bits.
__device__ inline void adamw1(float& p, float g, float& m, float& v, const scalars& s) {
  g = __fmul_rn(g, s.grad_scale);
  m = fmaf(g - m, s.one_minus_beta1, m);
  v = fmaf(v, s.beta2, g * g * s.one_minus_beta2);
  p = fmaf(p, s.decay, s.minus_step * m / (sqrtf(v) / s.sqrt_c2 + s.eps));
}

// by_rows is the gradient of a table that has some rows alone; gradient loads N elements of one, from element i of p on.
struct by_rows { const float* g; const int* rows; i64 dim; };
template <int N, class G> __device__ inline void gradient(float (&f)[N], const G* g, i64 i) { load(f, g + i); }
template <int N> __device__ inline void gradient(float (&f)[N], by_rows t, i64 i) {
  i64 row = (u32)(i / 4) / (u32)(t.dim / 4);  // 4 divides dim; of 32 bits, a division is short
  int at = t.rows[row];
  if (at >= 0) return load(f, t.g + (at - row) * t.dim + i);
#pragma unroll
  for (int k = 0; k < N; k++) f[k] = 0;
}

// update does it for a chunk of t, whose gradient is g, and returns the largest magnitude of what p is then, by thread.
template <class G> __device__ inline u32 update(const tensor& t, G g, i64 from, const scalars& s) {
  i64 to = min(from + 2048, t.n);
  u32 top = 0;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    i64 i = from + (u * 256 + threadIdx.x) * 4;
    if (i + 4 <= to) {
      float p[4], d[4], m[4], v[4];
      load(p, t.p + i), load(m, t.m + i), load(v, t.v + i), gradient(d, g, i);  // it may have to look the row up first
#pragma unroll
      for (int k = 0; k < 4; k++) adamw1(p[k], d[k], m[k], v[k], s);
      store(t.p + i, p), store(t.m + i, m), store(t.v + i, v);
      if (t.copy) store(t.copy + i, p);
#pragma unroll
      for (int k = 0; k < 4; k++) top = max(top, magnitude(p[k]));
    } else {
      for (; i < to; i++) {
        float d[1];
        gradient(d, g, i);
        adamw1(t.p[i], d[0], t.m[i], t.v[i], s);
        if (t.copy) put(t.copy + i, t.p[i]);
        top = max(top, magnitude(t.p[i]));
      }
    }
  }
  return top;
}

// p *= 1 - lr*wd; m += (g-m)(1-beta1); v = v*beta2 + g^2(1-beta2); p -= lr/c1 * m / (sqrt(v)/sqrt(c2) + eps), with
// g scaled first; then the copy of p is made, and what clip left zero becomes p's largest magnitude: since what is there is read
// first, few warps have to write. Nothing is done in a step that is not finite. Chunks are 2048 elements, two float4 a thread:
// 16 bytes read, 14 of a narrow gradient, 12 where it is zeros, and 12 written an element, 14 with a copy.
__global__ void __launch_bounds__(256) adamw(const tensor* tensors, const chunk* chunks, const scalars* now) {
  scalars s = *now;
  if (!s.finite) return;
  chunk c = chunks[blockIdx.x];
  tensor t = tensors[c.tensor];
  i64 from = c.index * 2048ll;
  u32 seen = t.largest ? *(volatile u32*)t.largest : 0;
  const float* g = (const float*)t.g;
  u32 top = t.narrow ? update(t, (const bf16*)t.g, from, s) : t.rows ? update(t, by_rows{g, t.rows, t.dim}, from, s) : update(t, g, from, s);
  if (!t.largest) return;
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
  if (threadIdx.x % 32 == 0 && top > seen) atomicMax(t.largest, top);
}

// add_squares adds a thread's squares of x from from up to to.
template <class T> __device__ inline void add_squares(double& s, const T* x, i64 from, i64 to) {
  i64 i = from + threadIdx.x * 4;
#pragma unroll 4
  for (; i + 4 <= to; i += 1024) {
    float f[4];
    load(f, x + i);
#pragma unroll
    for (int k = 0; k < 4; k++) s += (double)f[k] * f[k];
  }
  for (; i < to; i++) s += (double)widen(x[i]) * widen(x[i]);
}

// add_squares_by_rows does so for the gradient of t, which has some rows alone.
__device__ inline void add_squares_by_rows(double& s, const tensor& t, i64 from, i64 to) {
  for (i64 row = from / t.dim; row * t.dim < to; row++) {
    int at = t.rows[row];
    if (at >= 0) add_squares(s, (const float*)t.g + (at - row) * t.dim, max(from, row * t.dim), min(to, (row + 1) * t.dim));
  }
}

// part[first[t] + i] = sum of squares of chunk i of tensor t, of 32768 values of which: p, g, m or v.
__global__ void __launch_bounds__(256) squares(const tensor* tensors, const chunk* chunks, const i64* first, double* part, i64 which) {
  chunk c = chunks[blockIdx.x];
  tensor t = tensors[c.tensor];
  i64 from = c.index * 32768ll, to = min(from + 32768, t.n);
  const void* x = which == 0 ? t.p : which == 1 ? t.g : which == 2 ? t.m : t.v;
  double s = 0;
  if (which == 1 && t.narrow) add_squares(s, (const bf16*)x, from, to);
  else if (which == 1 && t.rows) add_squares_by_rows(s, t, from, to);
  else add_squares(s, (const float*)x, from, to);
  s = block_sum(s);
  if (threadIdx.x == 0) part[first[c.tensor] + c.index] = s;
}

// out[t] = sum of part[first[t]] up to part[first[t+1]]: a block for each tensor.
__global__ void __launch_bounds__(256) sum_parts(const double* part, const i64* first, double* out) {
  double s = 0;
  for (i64 i = first[blockIdx.x] + threadIdx.x; i < first[blockIdx.x + 1]; i += 256) s += part[i];
  s = block_sum(s);
  if (threadIdx.x == 0) out[blockIdx.x] = s;
}

// told[where[t]] = sums[t], for the parameters that the rank counts (where is -1 for others), told[params] = the sum of the
// losses, in order, and zeros elsewhere: what the ranks add up. One block.
__global__ void __launch_bounds__(256) tell(const double* sums, const i64* where, i64 tensors, const float* losses, i64 microbatches, double* told, i64 params) {
  for (i64 i = threadIdx.x; i <= params; i += 256) told[i] = 0;
  __syncthreads();
  for (i64 t = threadIdx.x; t < tensors; t += 256)
    if (where[t] >= 0) told[where[t]] = sums[t];
  if (threadIdx.x == 0) {
    double s = 0;
    for (i64 i = 0; i < microbatches; i++) s += losses[i];
    told[params] = s;
  }
}

// PyTorch's clipping by the global norm, whose squares are summed in the order of the model's parameters, in double: one thread.
// The largest magnitudes become zero, unless adamw will do nothing. One block.
__global__ void __launch_bounds__(256) clip(const double* told, i64 params, scalars* now, const tensor* tensors, i64 count) {
  if (threadIdx.x == 0) {
    double sum = 0;
#pragma unroll 8
    for (i64 i = 0; i < params; i++) sum += told[i];
    double norm = sqrt(sum), loss = told[params], factor = now->max_norm / (norm + 1e-6);
    now->finite = norm - norm == 0 && loss - loss == 0;
    now->grad_scale = factor < 1 ? factor : 1;
  }
  __syncthreads();
  if (!now->finite) return;
  for (i64 t = threadIdx.x; t < count; t += 256)
    if (tensors[t].largest) *tensors[t].largest = 0;
}
