// Softmax cross-entropy over rows of vocab logits, T float or bf16, widened as they are read: no float logits are
// stored. A block has a row, or a cluster of blocks a wide one; N logits a thread at once. A row whose label is -100 does not count,
// whatever its logits are; a label's column here is label - first, outside [0, vocab) it is another rank's. Sums over a row are
// float, over rows double in a fixed order.
// Against the host: lse and loss 1e-6, gradients within T's rounding.
#include "common.cuh"

#define IGNORED -100
#define LOG2E 1.4426950408889634f

// top is the largest of what a thread saw, sum the sum of 2^((x - top) * log2 e).
struct alignas(8) softmax { float top, sum; };

// exp(x - y) by the hardware's power of two, which is off by 2 units in the last place. The difference comes first:
// x and y are close where it matters.
__device__ inline float exp_less(float x, float y) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"((x - y) * LOG2E));
  return e;
}

__device__ inline softmax join(softmax a, softmax b) {
  float top = fmaxf(a.top, b.top);
  if (top == -INFINITY_F) return {top, a.sum + b.sum};
  return {top, a.sum * exp_less(a.top, top) + b.sum * exp_less(b.top, top)};
}

template <int N> __device__ inline void take(softmax& s, const float (&f)[N]) {
  float top = s.top;
#pragma unroll
  for (int k = 0; k < N; k++) top = fmaxf(top, f[k]);
  if (top > s.top) s.sum *= exp_less(s.top, top), s.top = top;
#pragma unroll
  for (int k = 0; k < N; k++) s.sum += exp_less(f[k], top);
}

template <int N, class T> __device__ inline softmax row_softmax(const T* row, i64 vocab) {
  softmax s = {-INFINITY_F, 0};
  for (i64 j = threadIdx.x * N; j < vocab; j += blockDim.x * N) {
    float f[N];
    load(f, row + j);
    take(s, f);
  }
  __shared__ softmax part[32];
  for (int o = 16; o > 0; o /= 2) s = join(s, {__shfl_xor_sync(~0u, s.top, o), __shfl_xor_sync(~0u, s.sum, o)});
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = part[0];
  for (int i = 1; i < blockDim.x / 32; i++) s = join(s, part[i]);
  return s;
}

// out = scale * (exp(x - lse) - [column is label]); out may be x. It begins at the end, which was read last where the row was
// read before: that is in the cache.
template <int N, class T> __device__ inline void row_gradient(const T* row, T* out, i64 vocab, i64 label, float lse, float scale) {
  i64 step = blockDim.x * N, from = threadIdx.x * N;
  for (i64 j = from + (vocab - 1 - from) / step * step; from < vocab && j >= from; j -= step) {
    float f[N];
    load(f, row + j);
#pragma unroll
    for (int k = 0; k < N; k++) f[k] = scale * (exp_less(f[k], lse) - (j + k == label));
    store(out + j, f);
  }
}

template <int N, class T> __device__ inline void row_zero(T* out, i64 vocab) {
  float f[N] = {};
  for (i64 j = threadIdx.x * N; j < vocab; j += blockDim.x * N) store(out + j, f);
}

// lse[row] = log of the sum of exponents, losses[row] = lse - logit of the label, 0 where ignored.
template <class T, int N>
__global__ void __launch_bounds__(512) cross_entropy(const T* logits, const int* labels, float* lse, float* losses, i64 vocab) {
  const T* row = logits + blockIdx.x * vocab;
  softmax s = row_softmax<N>(row, vocab);
  if (threadIdx.x != 0) return;
  int label = labels[blockIdx.x];
  float l = s.top + logf(s.sum);
  lse[blockIdx.x] = l;
  losses[blockIdx.x] = label == IGNORED ? 0 : l - widen(row[label]);
}

template <class T, int N>
__global__ void __launch_bounds__(512) cross_entropy_backward(const T* logits, const int* labels, const float* lse, const float* scale, T* out, i64 vocab, i64 first) {
  i64 at = blockIdx.x * vocab;
  int label = labels[blockIdx.x];
  if (label == IGNORED) row_zero<N>(out + at, vocab);
  else row_gradient<N>(logits + at, out + at, vocab, label - first, lse[blockIdx.x], *scale);
}

// Both in one launch: a row is read again while some of it is still in the cache. out may be logits.
template <class T, int N>
__global__ void __launch_bounds__(512) cross_entropy_both(const T* logits, const int* labels, float* lse, float* losses, const float* scale, T* out, i64 vocab) {
  i64 at = blockIdx.x * vocab;
  int label = labels[blockIdx.x];
  softmax s = row_softmax<N>(logits + at, vocab);
  float l = s.top + logf(s.sum);
  if (threadIdx.x == 0) {
    lse[blockIdx.x] = l;
    losses[blockIdx.x] = label == IGNORED ? 0 : l - widen(logits[at + label]);
  }
  __syncthreads();  // out may be logits
  if (label == IGNORED) row_zero<N>(out + at, vocab);
  else row_gradient<N>(logits + at, out + at, vocab, label, l, *scale);
}

#if __CUDA_ARCH__ >= 900
// Wide rows, vectors of 16 bytes: with one a block, those under way are more than the cache holds. The blocks of a cluster run at
// once and write to each other's shared memory.
#define BLOCKS 4
#define AHEAD 4  // loads that are under way before the first is used: guarded ones would wait for each other

__device__ inline u32 cluster_rank() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Writes s where own lies in the block of a rank.
__device__ inline void give(softmax* own, u32 rank, softmax s) {
  u32 here, there;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(here) : "l"(own));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(s.top), "f"(s.sum) : "memory");
}

__device__ inline softmax warp_softmax(softmax s) {
  float top = s.top;
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  float sum = s.top == top ? s.sum : s.sum * exp_less(s.top, top);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return {top, sum};
}

// Joins what the threads of a cluster have, each of which did cluster_arrive when it began.
__device__ inline softmax cluster_softmax(softmax s) {
  __shared__ softmax part[32], all[BLOCKS];
  s = warp_softmax(s);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  cluster_wait();  // the others have begun
  if (threadIdx.x < 32) {
    s = {-INFINITY_F, 0};
    if (threadIdx.x < blockDim.x / 32) s = part[threadIdx.x];
    s = warp_softmax(s);
    if (threadIdx.x < BLOCKS) give(&all[cluster_rank()], threadIdx.x, s);
  }
  cluster_arrive(), cluster_wait();
  s = all[0];
#pragma unroll
  for (int i = 1; i < BLOCKS; i++) s = join(s, all[i]);
  return s;
}

// out = scale * (exp(f - lse) - [column is label]) of the N logits from column j on, marked to leave the caches first: what is read
// again stays.
template <int N, class T> __device__ inline void put_gradient(T* out, float (&f)[N], int j, int label, float lse, float scale) {
#pragma unroll
  for (int k = 0; k < N; k++) f[k] = exp_less(f[k], lse);
  if ((u32)(label - j) < N)
#pragma unroll
    for (int k = 0; k < N; k++)
      if (j + k == label) f[k] -= 1;
#pragma unroll
  for (int k = 0; k < N; k++) f[k] *= scale;
  words<4> x;
  store(reinterpret_cast<T*>(&x), f);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(out + j), "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]) : "memory");
}

// cross_entropy_both, a cluster a row.
template <class T, int N>
__global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(512, 3) cross_entropy_both_wide(const T* logits, const int* labels, float* lse, float* losses, const float* scale, T* out, i64 width) {
  cluster_arrive();
  int vocab = width, row = blockIdx.x / BLOCKS, label = labels[row];
  i64 at = row * width;
  const T* x = logits + at;
  int from = (cluster_rank() * blockDim.x + threadIdx.x) * N, step = BLOCKS * blockDim.x * N, j = from;
  bool leader = from == 0;
  float picked = leader && label != IGNORED ? widen(x[label]) : 0;  // before it is written, if out is logits
  softmax s = {-INFINITY_F, 0};
  for (; j + (AHEAD - 1) * step < vocab; j += AHEAD * step) {
    float f[AHEAD][N];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(f[i], x + j + i * step);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) take(s, f[i]);
  }
  for (; j < vocab; j += step) {
    float f[N];
    load(f, x + j);
    take(s, f);
  }
  s = cluster_softmax(s);
  float l = s.top + logf(s.sum);
  if (leader) lse[row] = l, losses[row] = label == IGNORED ? 0 : l - picked;
  if (label == IGNORED) {
    float zeros[N] = {};
    for (j = from; j < vocab; j += step) store(out + at + j, zeros);
    return;
  }
  float by = *scale;
  for (j = from; j + (AHEAD - 1) * step < vocab; j += AHEAD * step) {
    float f[AHEAD][N];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(f[i], x + j + i * step);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) put_gradient(out + at, f[i], j + i * step, label, l, by);
  }
  for (; j < vocab; j += step) {
    float f[N];
    load(f, x + j);
    put_gradient(out + at, f, j, label, l, by);
  }
}
#endif

// top[row] = the largest logit.
template <class T, int N>
__global__ void __launch_bounds__(512) row_max(const T* logits, float* top, i64 vocab) {
  float m = -INFINITY_F;
  for (i64 j = threadIdx.x * N; j < vocab; j += blockDim.x * N) {
    float f[N];
    load(f, logits + blockIdx.x * vocab + j);
#pragma unroll
    for (int k = 0; k < N; k++) m = fmaxf(m, f[k]);
  }
  m = block_max(m);
  if (threadIdx.x == 0) top[blockIdx.x] = m;
}

// sums[row] = sum of exp(logit - top), picked[row] = the label's logit, 0 where there is none here.
template <class T, int N>
__global__ void __launch_bounds__(512) row_sums(const T* logits, const int* labels, const float* top, float* sums, float* picked, i64 vocab, i64 first) {
  const T* row = logits + blockIdx.x * vocab;
  float t = top[blockIdx.x], s = 0;
  for (i64 j = threadIdx.x * N; j < vocab; j += blockDim.x * N) {
    float f[N];
    load(f, row + j);
#pragma unroll
    for (int k = 0; k < N; k++) s += exp_less(f[k], t);
  }
  s = block_sum(s);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = s;
  int label = labels[blockIdx.x];
  i64 at = label - first;
  picked[blockIdx.x] = label != IGNORED && at >= 0 && at < vocab ? widen(row[at]) : 0;
}

// loss = sum of losses over rows. One block.
__global__ void __launch_bounds__(1024) sum_losses(const float* losses, float* loss, i64 rows) {
  double s = 0;
  for (i64 r = threadIdx.x; r < rows; r += blockDim.x) s += losses[r];
  s = block_sum(s);
  if (threadIdx.x == 0) *loss = s;
}

// lse = top + log(sums), loss = sum of lse - picked over the rows that have a label. One block.
__global__ void __launch_bounds__(1024) row_loss(const float* top, const float* sums, const float* picked, const int* labels, float* loss, float* lse, i64 rows) {
  double s = 0;
  for (i64 r = threadIdx.x; r < rows; r += blockDim.x) {
    float l = top[r] + logf(sums[r]);
    lse[r] = l;
    if (labels[r] != IGNORED) s += l - picked[r];
  }
  s = block_sum(s);
  if (threadIdx.x == 0) *loss = s;
}
