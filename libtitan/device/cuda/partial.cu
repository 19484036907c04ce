// Attention that is made of parts, each over other keys: how parts are joined, and their gradients added. T is float or
// bf16, sums are float. Within 1e-6 of the float64 result beside the parts' own rounding.
#include "common.cuh"

// Adds a part to o: each row weighs by its share of the sum of exponents. o is [count, heads, dim], float; lse has a row
// for each head, stride apart; the part's are dense. first: there is nothing yet. A warp has a row; N divides dim.
template <class T, int N>
__global__ void join_attention(float* o, float* lse, i64 stride, const T* part, const float* part_lse, i64 count, i64 heads, i64 dim, int first) {
  i64 row = blockIdx.x * 8ll + threadIdx.x / 32;
  if (row >= count * heads) return;
  i64 i = row / heads, h = row % heads;
  float have = first ? -INFINITY_F : lse[h * stride + i], more = part_lse[h * count + i], top = fmaxf(have, more);
  float sum = top == -INFINITY_F ? top : top + logf(expf(have - top) + expf(more - top));
  float keep = have == -INFINITY_F ? 0 : expf(have - sum), add = more == -INFINITY_F ? 0 : expf(more - sum);
  __syncwarp();  // all have read the statistics
  if (threadIdx.x % 32 == 0) lse[h * stride + i] = sum;
  for (i64 d = threadIdx.x % 32 * N; d < dim; d += 32 * N) {
    float x[N], y[N];
    load(y, part + row * dim + d);
    if (first) {
#pragma unroll
      for (int k = 0; k < N; k++) x[k] = add * y[k];
    } else {
      load(x, o + row * dim + d);
#pragma unroll
      for (int k = 0; k < N; k++) x[k] = keep * x[k] + add * y[k];
    }
    store(o + row * dim + d, x);
  }
}

// sum += x. N divides n.
template <class T, int N> __global__ void add_to(float* sum, const T* x, i64 n) {
  i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * N;
  if (i >= n) return;
  float s[N], f[N];
  load(s, sum + i), load(f, x + i);
#pragma unroll
  for (int k = 0; k < N; k++) s[k] += f[k];
  store(sum + i, s);
}
