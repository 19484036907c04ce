// Rows of a table by ids. The table is rows [first, first + vocab) of the whole one: ids outside are another rank's.
// S and T are float or bf16, N elements a thread at once; a row is copied or rounded, sums are float in the order of tokens.
#include "common.cuh"

// y[i] = table[ids[i] - first], zeros elsewhere. A block has one token and blockDim.x * N columns.
template <class S, class T, int N>
__global__ void embedding(const int* __restrict__ ids, const S* __restrict__ table, T* __restrict__ y, i64 first, i64 vocab, i64 dim) {
  i64 j = (blockIdx.y * (i64)blockDim.x + threadIdx.x) * N, id = ids[blockIdx.x] - first;
  if (j >= dim) return;
  float f[N] = {};
  if (id >= 0 && id < vocab) load(f, table + id * dim + j);
  store(y + blockIdx.x * dim + j, f);
}

// dw[id - first] += sum of dy[i] over the tokens i with that id, in their order. The block of the first token that has
// an id does all of it, so that no two write one row; the others see that they are not the first and end. Blocks look
// at 1024 tokens at a time; blockDim.x divides that. With rows, row i of dw becomes the sum instead, i being the first
// token, and rows[id - first] = i; the rest of both is left.
template <class T, int N>
__global__ void embedding_backward(const T* __restrict__ dy, const int* __restrict__ ids, float* __restrict__ dw, int* __restrict__ rows, i64 tokens, i64 first, i64 vocab, i64 dim) {
  __shared__ int found[32], mine[1024];
  int id = ids[blockIdx.x], me = threadIdx.x;
  if (id < first || id >= first + vocab) return;
  int earlier = 0;
  for (i64 t = me; t < blockIdx.x && !earlier; t += blockDim.x) earlier = ids[t] == id;
  if (__syncthreads_or(earlier)) return;
  i64 j = (blockIdx.y * (i64)blockDim.x + me) * N;
  float s[N] = {};
  float* row = dw + (rows ? blockIdx.x : id - first) * dim + j;
  if (!rows && j < dim) load(s, row);
  if (rows && j == 0) rows[id - first] = blockIdx.x;
  int each = 1024 / blockDim.x;
  for (i64 t0 = blockIdx.x; t0 < tokens; t0 += 1024) {
    u32 hits = 0;
    for (int p = 0; p < each; p++) {
      i64 t = t0 + me * each + p;
      if (t < tokens && ids[t] == id) hits |= 1u << p;
    }
    if (!__syncthreads_or(hits)) continue;
    // the places of this thread's hits among all: how many come before
    int end = __popc(hits);
    for (int o = 1; o < 32; o *= 2) {
      int left = __shfl_up_sync(~0u, end, o);
      if (me % 32 >= o) end += left;
    }
    if (me % 32 == 31) found[me / 32] = end;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < blockDim.x / 32; w++) {
      if (w == me / 32) end += all;
      all += found[w];
    }
    int at = end - __popc(hits);
    for (int p = 0; p < each; p++)
      if (hits >> p & 1) mine[at++] = t0 + me * each + p;
    __syncthreads();
    if (j < dim) {
      int k = 0;
      for (; k + 4 <= all; k += 4) {
        float f[4][N];
#pragma unroll
        for (int u = 0; u < 4; u++) load(f[u], dy + mine[k + u] * dim + j);
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
          for (int i = 0; i < N; i++) s[i] += f[u][i];
      }
      for (; k < all; k++) {
        float f[N];
        load(f, dy + mine[k] * dim + j);
#pragma unroll
        for (int i = 0; i < N; i++) s[i] += f[i];
      }
    }
    __syncthreads();
  }
  if (j < dim) store(row, s);
}
