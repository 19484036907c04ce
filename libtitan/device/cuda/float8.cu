// Casts to float8 and back to rows: a scale makes the largest magnitude of a tensor, row or column the type's largest number.
// x is [rows, width], row-major, float or bf16; q = x * scale rounded to nearest even, what is beyond the type's largest becomes it;
// inverse = 1/scale. The same bits as the host's. A block has a tile of 128 rows, which it reads once and writes as it lies, turned (what
// were columns are rows), or both.
#include "common.cuh"

struct e4m3 {
  static constexpr float largest = 448;
  static __device__ u32 narrow2(float lo, float hi) {
    u16 d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
  }
};
struct e5m2 {
  static constexpr float largest = 57344;
  static __device__ u32 narrow2(float lo, float hi) {
    u16 d;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
  }
};

enum { per_tensor, per_row, per_column };

// The scale for a largest magnitude: largest/max(amax, 1e-12), 0 for infinity, NaN for NaN; power2: the power of 2 below.
template <class Q> __device__ inline float scale_for(float amax, int power2) {
  const float least = (float)(Q::largest / 1e-12);
  float s = amax <= 1e-12f ? least : __fdiv_rn(Q::largest, amax);
  return power2 && s > 0 ? __uint_as_float(__float_as_uint(s) & 0xff800000u) : s;
}

// out = the largest magnitude of n elements, N at once, from the last to the first: what was written last is still in the cache, and
// what is read last will be for the cast. state is largest_of_grid's.
template <class T, int N> __global__ void __launch_bounds__(256) amax_tensor(const T* __restrict__ x, float* out, i64 n, u32* state) {
  i64 groups = n / N, step = (i64)gridDim.x * blockDim.x, i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  u32 top = 0;
  float f[4][N];
  for (; i + 3 * step < groups; i += 4 * step) {
#pragma unroll
    for (int j = 0; j < 4; j++) load(f[j], x + (groups - 1 - i - j * step) * N);
#pragma unroll
    for (int j = 0; j < 4; j++) top = largest_of(f[j], top);
  }
  for (; i < groups; i += step) load(f[0], x + (groups - 1 - i) * N), top = largest_of(f[0], top);
  if (blockIdx.x == 0 && threadIdx.x < n - groups * N) {
    float one[1];
    load(one, x + groups * N + threadIdx.x);
    top = largest_of(one, top);
  }
  largest_of_grid(top, out, state);
}

// out[r] = the largest magnitude of a row; a warp has one.
template <class T, int N> __global__ void __launch_bounds__(256) amax_rows(const T* __restrict__ x, float* out, i64 rows, i64 width) {
  i64 r = blockIdx.x * 8 + threadIdx.x / 32;
  if (r >= rows) return;
  u32 top = 0;
  float f[N];
#pragma unroll 4
  for (i64 j = threadIdx.x % 32 * N; j < width; j += 32 * N) load(f, x + r * width + j), top = largest_of(f, top);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(~0u, top, o));
  if (threadIdx.x % 32 == 0) out[r] = __uint_as_float(top);
}

// out[c] = the largest magnitude of a column, out being zeros. A block of 32 x 8 threads has 32*N columns of up to 128 rows.
template <class T, int N> __global__ void __launch_bounds__(256) amax_columns(const T* __restrict__ x, u32* out, i64 rows, i64 width) {
  __shared__ u32 tops[8][32 * N];
  i64 column = (blockIdx.x * 32 + threadIdx.x) * (i64)N, r = blockIdx.y * 128 + threadIdx.y, end = min(rows, blockIdx.y * 128 + (i64)128);
  u32 top[N] = {};
  if (column < width)
#pragma unroll 4
    for (; r < end; r += 8) {
      float f[N];
      load(f, x + r * width + column);
#pragma unroll
      for (int k = 0; k < N; k++) top[k] = max(top[k], magnitude(f[k]));
    }
#pragma unroll
  for (int k = 0; k < N; k++) tops[threadIdx.y][threadIdx.x * N + k] = top[k];
  __syncthreads();
  for (int c = threadIdx.y * 32 + threadIdx.x; c < 32 * N; c += 256) {
    u32 t = 0;
    for (int i = 0; i < 8; i++) t = max(t, tops[i][c]);
    if (blockIdx.x * 32 * (i64)N + c < width) atomicMax(out + blockIdx.x * 32 * (i64)N + c, t);
  }
}

// A tile of bytes, 128 rows of WIDE, that is turned on its way through shared memory: by column, words of 4 rows. A thread of 256 has
// N columns of 4 rows; the places of words are chosen so that neither the writing nor the reading threads of a warp meet in a bank.
constexpr int high = 128;

template <int N, int WIDE> struct tile {
  u32 (&at)[WIDE][high / 4];

  __device__ static int place(int column, int quad) { return quad ^ (column / N * (32 * N / WIDE) & 31); }

  // in[r] are N bytes of row 4*quad + r, from column on.
  __device__ void put(const u32 (&in)[4][N / 4], int column, int quad) {
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
      u32 ab = __byte_perm(in[0][j], in[1][j], 0x5140), cd = __byte_perm(in[2][j], in[3][j], 0x5140);  // columns 0 and 1 of rows 0, 1 and 2, 3
      u32 ef = __byte_perm(in[0][j], in[1][j], 0x7362), gh = __byte_perm(in[2][j], in[3][j], 0x7362);  // columns 2 and 3
      int c = column + 4 * j, p = place(c, quad);
      at[c][p] = __byte_perm(ab, cd, 0x5410), at[c + 1][p] = __byte_perm(ab, cd, 0x7632);
      at[c + 2][p] = __byte_perm(ef, gh, 0x5410), at[c + 3][p] = __byte_perm(ef, gh, 0x7632);
    }
  }

  // Writes the tile that begins at row r0 and column c0 of [rows, width] to y [width, rows]; 4 divides rows.
  __device__ void get(u32* y, i64 r0, i64 c0, i64 rows, i64 width) {
    int quad = threadIdx.x % 32;
    if (r0 + 4 * quad >= rows) return;
#pragma unroll 4
    for (int c = threadIdx.x / 32; c < WIDE; c += 8)
      if (c0 + c < width) y[((c0 + c) * rows + r0) / 4 + quad] = at[c][place(c, quad)];
  }
};

// q and turned may each be null. N is 16 bytes of T and divides width; 4 divides rows where there is turned.
template <class T, class Q, int PER, int WIDE>
__global__ void __launch_bounds__(256) float8_cast(const T* __restrict__ x, const float* __restrict__ amax, u32* q, u32* turned, float* inverse, i64 rows, i64 width, int power2) {
  constexpr int N = 16 / sizeof(T), across = WIDE / N, down = 256 / across;  // threads
  __shared__ u32 room[WIDE][high / 4];
  tile<N, WIDE> t{room};
  i64 r0 = blockIdx.y * (i64)high, c0 = blockIdx.x * (i64)WIDE;
  int mine = threadIdx.x % across * N, first = threadIdx.x / across;
  bool inside = c0 + mine < width;
  float scales[N];
  if (PER == per_tensor) scales[0] = scale_for<Q>(amax[0], power2);
  if (PER == per_column && inside)
#pragma unroll
    for (int k = 0; k < N; k++) scales[k] = scale_for<Q>(amax[c0 + mine + k], power2);
  if (PER == per_tensor && blockIdx.x + blockIdx.y == 0 && threadIdx.x == 0) inverse[0] = __fdiv_rn(1, scales[0]);
  if (PER == per_column && blockIdx.y == 0 && first == 0 && inside)
#pragma unroll
    for (int k = 0; k < N; k++) inverse[c0 + mine + k] = __fdiv_rn(1, scales[k]);
#pragma unroll
  for (int pass = 0; pass < high / 4 / down; pass++) {
    int quad = first + pass * down;
    float f[4][N] = {};
    u32 bytes[4][N / 4];
#pragma unroll
    for (int r = 0; r < 4; r++)
      if (inside && r0 + 4 * quad + r < rows) load(f[r], x + (r0 + 4 * quad + r) * width + c0 + mine);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      i64 row = r0 + 4 * quad + r;
      bool here = inside && row < rows;
      float s = scales[0];
      if (PER == per_row && here) {
        s = scale_for<Q>(amax[row], power2);
        if (c0 + mine == 0) inverse[row] = __fdiv_rn(1, s);
      }
#pragma unroll
      for (int k = 0; k < N; k++) f[r][k] = __fmul_rn(f[r][k], PER == per_column ? scales[k] : s);
#pragma unroll
      for (int j = 0; j < N / 4; j++) bytes[r][j] = Q::narrow2(f[r][4 * j], f[r][4 * j + 1]) | Q::narrow2(f[r][4 * j + 2], f[r][4 * j + 3]) << 16;
      if (q && here) {
        words<N / 4> out;
#pragma unroll
        for (int j = 0; j < N / 4; j++) out.w[j] = bytes[r][j];
        *reinterpret_cast<words<N / 4>*>(q + (row * width + c0 + mine) / 4) = out;
      }
    }
    if (turned) t.put(bytes, mine, quad);
  }
  if (!turned) return;
  __syncthreads();
  t.get(turned, r0, c0, rows, width);
}

// y [width, rows] = x [rows, width] turned; 16 divides width and 4 rows.
__global__ void __launch_bounds__(256) float8_turn(const u32* __restrict__ x, u32* y, i64 rows, i64 width) {
  __shared__ u32 room[high][high / 4];
  tile<16, high> t{room};
  i64 r0 = blockIdx.y * (i64)high, c0 = blockIdx.x * (i64)high;
  int column = threadIdx.x % 8 * 16, quad = threadIdx.x / 8;
  u32 in[4][4] = {};
#pragma unroll
  for (int r = 0; r < 4; r++)
    if (c0 + column < width && r0 + 4 * quad + r < rows) {
      words<4> v = *reinterpret_cast<const words<4>*>(x + ((r0 + 4 * quad + r) * width + c0 + column) / 4);
#pragma unroll
      for (int j = 0; j < 4; j++) in[r][j] = v.w[j];
    }
  t.put(in, column, quad);
  __syncthreads();
  t.get(y, r0, c0, rows, width);
}

// y[i] = *x: one scale where a product wants one for each row.
__global__ void spread(const float* x, float* y, i64 n) {
  i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i < n) y[i] = *x;
}
