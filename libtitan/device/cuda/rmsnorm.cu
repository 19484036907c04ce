// RMSNorm over rows of dim elements: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps). T is float or bf16; sums are
// float. A block has a row, or each of its warps (blockDim.y) has one where a row is short; a thread has V vectors of N
// elements of it, held in registers.
// Against the host's float64: bf16 within its rounding (4e-3), float 1e-6; dw, a sum over rows, 1e-5.
#include "common.cuh"

template <class T, int N, int V>
__global__ void __launch_bounds__(256) rmsnorm(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y, float* __restrict__ rstd, i64 rows, i64 dim, float eps) {
  i64 at = blockIdx.x * (i64)blockDim.y + threadIdx.y, row = at * dim;
  if (at >= rows) return;
  float v[V][N] = {}, s = 0;
#pragma unroll
  for (int i = 0; i < V; i++) {
    int j = (threadIdx.x + i * blockDim.x) * N;
    if (j < dim) load(v[i], x + row + j);
  }
#pragma unroll
  for (int i = 0; i < V; i++)
#pragma unroll
    for (int k = 0; k < N; k++) s += v[i][k] * v[i][k];
  float r = 1 / sqrtf(block_sum(s) / dim + eps);
  if (threadIdx.x == 0) rstd[at] = r;
#pragma unroll
  for (int i = 0; i < V; i++) {
    int j = (threadIdx.x + i * blockDim.x) * N;
    if (j >= dim) continue;
    float g[N];
    load(g, w + j);
#pragma unroll
    for (int k = 0; k < N; k++) g[k] *= v[i][k] * r;
    store(y + row + j, g);
  }
}

// Asks for a vector's line to be brought to the L2 cache; one thread of each line does.
template <int N, class T> __device__ inline void ahead(const T* p) {
  if ((u64)p % 128 < N * sizeof(T)) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// With g = w*dy: dx = rstd*g - x * rstd^3 * sum(g*x)/dim. Rows are dealt out in turn; each block leaves its sum of
// dw = dy*x*rstd in part [gridDim.x, dim].
template <class T, int N, int V>
__global__ void __launch_bounds__(256, V <= 2 ? 3 : 1) rmsnorm_backward(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ w,
    const float* __restrict__ rstd, T* __restrict__ dx, float* __restrict__ part, i64 rows, i64 dim) {
  float acc[V][N] = {}, g[V][N] = {};
#pragma unroll
  for (int i = 0; i < V; i++) {
    int j = (threadIdx.x + i * blockDim.x) * N;
    if (j < dim) load(g[i], w + j);
  }
  i64 step = gridDim.x * (i64)blockDim.y;
  for (i64 row = blockIdx.x * (i64)blockDim.y + threadIdx.y; row < rows; row += step) {
    float a[V][N] = {}, d[V][N] = {}, s = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
      int j = (threadIdx.x + i * blockDim.x) * N;
      if (j >= dim) continue;
      load(a[i], x + row * dim + j), load(d[i], dy + row * dim + j);
      if (row + step < rows) ahead<N>(x + (row + step) * dim + j), ahead<N>(dy + (row + step) * dim + j);
    }
    float r = rstd[row];
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
      for (int k = 0; k < N; k++) s += g[i][k] * d[i][k] * a[i][k];
    float c = block_sum(s) * r * r * r / (float)dim;
#pragma unroll
    for (int i = 0; i < V; i++) {
      int j = (threadIdx.x + i * blockDim.x) * N;
      if (j >= dim) continue;
#pragma unroll
      for (int k = 0; k < N; k++) acc[i][k] += d[i][k] * a[i][k] * r, d[i][k] = r * g[i][k] * d[i][k] - a[i][k] * c;
      store(dx + row * dim + j, d[i]);
    }
  }
  part += blockIdx.x * dim;
  if constexpr (V == 1) {
    if (blockDim.y > 1) {  // the warps' sums, in their order
      __shared__ alignas(16) float sums[8][32 * N];
      store(&sums[threadIdx.y][threadIdx.x * N], acc[0]);
      __syncthreads();
      for (int j = threadIdx.y * 32 + threadIdx.x; j < dim; j += 32 * blockDim.y) {
        float s = 0;
        for (int y = 0; y < blockDim.y; y++) s += sums[y][j];
        part[j] = s;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; i++) {
    int j = (threadIdx.x + i * blockDim.x) * N;
    if (j < dim) store(part + j, acc[i]);
  }
}

// out[j] (+)= sum of part[r][j] over rows, in a fixed order. A block of 32 x 8 threads has 32 columns.
__global__ void column_sums(const float* __restrict__ part, float* __restrict__ out, i64 rows, i64 dim, int add) {
  __shared__ float sums[8][32];
  i64 j = blockIdx.x * 32 + threadIdx.x;
  float s = 0;
  if (j < dim)
#pragma unroll 8
    for (i64 r = threadIdx.y; r < rows; r += 8) s += part[r * dim + j];
  sums[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y != 0 || j >= dim) return;
  for (int i = 1; i < 8; i++) s += sums[i][threadIdx.x];
  out[j] = add ? out[j] + s : s;
}
