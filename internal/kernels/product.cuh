// What the kernels of the matrix product have in common: c = x·wᵀ + bias, with x [M, K] and w [N, K] bf16, row-major, K a multiple
// of 8, N a multiple of 8, float32 sums.
#ifndef PRODUCT_CUH
#define PRODUCT_CUH
#include "nv.cuh"

// What becomes of the sums; the numbers are kernels.Mode's.
enum { STORE_BF16 = 0, STORE_F32 = 1, ADD_F32 = 2, SWIGLU = 3 };

// A tile of 16 rows of w. For SWIGLU w is [gate (N/2 rows) | up (N/2 rows)], and a tile takes 8 rows of each, so that the thread
// that has the sum of row r < 8, a gate, has that of row r + 8, its up.
DEV int weight_row(int tile, int r, int N, int mode) {
  return mode == SWIGLU ? tile * 8 + (r & 7) + (r >> 3) * (N / 2) : tile * 16 + r;
}
// Whether the row is one of w.
DEV bool weight_row_valid(int tile, int r, int N, int mode) { return mode == SWIGLU ? tile * 16 + (r & 7) * 2 < N : tile * 16 + r < N; }

// As if gate and up had been stored as bf16 and read again.
DEV float gated(float gate, float up) { return silu(bf16_f32(f32_bf16(gate))) * bf16_f32(f32_bf16(up)); }
DEV u16 swiglu(float gate, float up) { return f32_bf16(gated(gate, up)); }

// The sum over K is cut into slices of as many blocks of 64 elements as can be, in order; what the slices sum to is added in their
// order. It is a matter of K alone, so that a row's result depends on no other row.
DEV int slices(int K) { return K < 2048 ? 4 : 8; }
// The first block of slice s of count; that of slice count is the end.
DEV int slice_begin(int blocks, int s, int count) { return blocks * s / count; }

// Stores one sum for row m and column n; the bias is in it.
DEV void store_sum(void *c, int N, int mode, int m, int n, float v) {
  const i64 at = (i64)m * N + n;
  if (mode == STORE_BF16) ((u16 *)c)[at] = f32_bf16(v);
  else if (mode == STORE_F32) ((float *)c)[at] = v;
  else ((float *)c)[at] += v;
}
// Stores what becomes of the sums of rows r and r + 8 of tile of w for row m.
DEV void store_pair(void *c, const float *bias, int N, int mode, int m, int tile, int r, float low, float high) {
  const bool has_low = weight_row_valid(tile, r, N, mode), has_high = weight_row_valid(tile, r + 8, N, mode);
  const int n_low = weight_row(tile, r, N, mode), n_high = weight_row(tile, r + 8, N, mode);
  if (bias && has_low) low += bias[n_low];
  if (bias && has_high) high += bias[n_high];
  if (mode == SWIGLU) {
    if (has_low) ((u16 *)c)[(i64)m * (N / 2) + n_low] = swiglu(low, high);
    return;
  }
  if (has_low) store_sum(c, N, mode, m, n_low, low);
  if (has_high) store_sum(c, N, mode, m, n_high, high);
}
DEV float swap_neighbours(float v) { return shfl_xor(v, 4); }
DEV u32 swap_word(u32 v, int mask) { return (u32)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)v, mask, 31); }

// Stores bf16 for two rows of x: what lane 4·g + t has for rows g and g + 8 of a tile of w, a word a row of x. Lanes trade words until
// what each stores lies in a row, four elements at p, and four rows of x fill a sector each.
DEV void store_words(u16 *p, u32 row0, u32 row1, int odd, int upper, bool valid) {
  const u32 mine = odd ? row1 : row0, other = swap_word(odd ? row0 : row1, 4);
  const u32 first = odd ? other : mine, second = odd ? mine : other;
  const u32 low = permute<0x5410>(first, second), high = permute<0x7632>(first, second), trade = swap_word(upper ? low : high, 8);
  if (valid) *(u32x2 *)p = upper ? (u32x2){trade, high} : (u32x2){low, trade};
}
// A thread's sums of rows g and g + 8 of tile wt of w for rows 8·j + 2·t and + 1 from m0 of x.
template <int XT> DEV void store_bf16(const float (&d)[XT / 2], u16 *c, int M, int N, int m0, int wt, int g, int t, float b_low, float b_high) {
  const int odd = g & 1, upper = g >> 1 & 1, n = wt * 16 + upper * 8 + (g & 4), left = n < N ? M - m0 - t * 2 - odd : 0;
  u16 *p = c + (i64)(m0 + t * 2 + odd) * N + n;
#pragma unroll
  for (int j = 0; j < XT / 8; j++, p += 8 * N)
    store_words(p, pack_bf16(d[j * 4] + b_low, d[j * 4 + 2] + b_high), pack_bf16(d[j * 4 + 1] + b_low, d[j * 4 + 3] + b_high), odd, upper, j * 8 < left);
}

template <int XT> DEV void store_swiglu(const float (&d)[XT / 2], u16 *c, int M, int N, int m0, int wt, int g, int t, float b_low, float b_high) {
  const int odd = g & 1, i = wt * 8 + (g & 6), left = i < N / 2 ? M - m0 - t * 2 - odd : 0;
  u16 *p = c + (i64)(m0 + t * 2 + odd) * (N / 2) + i;
#pragma unroll
  for (int j = 0; j < XT / 8; j++, p += 4 * N) {
    const u32 y0 = swiglu(d[j * 4] + b_low, d[j * 4 + 2] + b_high), y1 = swiglu(d[j * 4 + 1] + b_low, d[j * 4 + 3] + b_high);
    const u32 other = swap_word(odd ? y0 : y1, 4);
    if (j * 8 < left) *(u32 *)p = odd ? other | y1 << 16 : y0 | other << 16;
  }
}

// float32 likewise: a lane has four columns of w in a row of x, of which there are sums of JN columns of 8 from J0. load_f32 reads what c
// holds there.
template <int J0, int JN> DEV void load_f32(f32x4 (&old)[JN], const float *c, int M, int N, int m0, int wt, int g, int t) {
  const int odd = g & 1, n = wt * 16 + (g & 2) * 4 + (g & 4), left = n < N ? M - m0 - t * 2 - odd : 0;
  const float *p = c + (i64)(m0 + J0 * 8 + t * 2 + odd) * N + n;
#pragma unroll
  for (int j = 0; j < JN; j++, p += 8 * N)
    if ((J0 + j) * 8 < left) old[j] = *(const f32x4 *)p;
}
template <int J0, int JN> DEV void store_f32(const float *d, const f32x4 (&old)[JN], float *c, int M, int N, int add, int m0, int wt, int g, int t, float b_low, float b_high) {
  const int odd = g & 1, upper = g >> 1 & 1, n = wt * 16 + upper * 8 + (g & 4), left = n < N ? M - m0 - t * 2 - odd : 0;
  float *p = c + (i64)(m0 + J0 * 8 + t * 2 + odd) * N + n;
#pragma unroll
  for (int j = 0; j < JN; j++, p += 8 * N) {
    const float *v = d + (J0 + j) * 4;
    const float l0 = v[0] + b_low, l1 = v[1] + b_low, h0 = v[2] + b_high, h1 = v[3] + b_high;
    const float l = swap_neighbours(odd ? l0 : l1), h = swap_neighbours(odd ? h0 : h1);
    const f32x2 low = odd ? (f32x2){l, l1} : (f32x2){l0, l}, high = odd ? (f32x2){h, h1} : (f32x2){h0, h}; // columns g & 6 and the next
    const f32x2 give = upper ? low : high, other = {shfl_xor(give.x, 8), shfl_xor(give.y, 8)};
    f32x4 all = upper ? (f32x4){other.x, other.y, high.x, high.y} : (f32x4){low.x, low.y, other.x, other.y};
    if (add) all = old[j] + all;
    if ((J0 + j) * 8 < left) *(f32x4 *)p = all;
  }
}
template <int XT, int TOGETHER, int J0 = 0> DEV void add_f32(const float (&d)[XT / 2], float *c, int M, int N, int add, int m0, int wt, int g, int t, float b_low, float b_high) {
  constexpr int JN = XT / 8 - J0 < TOGETHER ? XT / 8 - J0 : TOGETHER;
  f32x4 old[JN] = {};
  if (add) load_f32<J0, JN>(old, c, M, N, m0, wt, g, t);
  store_f32<J0, JN>(d, old, c, M, N, add, m0, wt, g, t, b_low, b_high);
  if constexpr (J0 + JN < XT / 8) add_f32<XT, TOGETHER, J0 + JN>(d, c, M, N, add, m0, wt, g, t, b_low, b_high);
}

// TOGETHER: how many columns of 8 of c are read at a time where sums are added; early: what c held, where it was read before.
template <int XT, int TOGETHER = 4> DEV void store_tile(const float (&d)[XT / 2], void *c, const float *bias, int M, int N, int mode, int m0, int wt, const f32x4 (*early)[XT / 8] = nullptr) {
  const int lane = TID & 31, g = lane >> 2, t = lane & 3;
  float b_low = 0, b_high = 0;
  if (bias && weight_row_valid(wt, g, N, mode)) b_low = bias[weight_row(wt, g, N, mode)];
  if (bias && weight_row_valid(wt, g + 8, N, mode)) b_high = bias[weight_row(wt, g + 8, N, mode)];
  if (mode == SWIGLU) store_swiglu<XT>(d, (u16 *)c, M, N, m0, wt, g, t, b_low, b_high);
  else if (mode == STORE_BF16) store_bf16<XT>(d, (u16 *)c, M, N, m0, wt, g, t, b_low, b_high);
  else if (early) store_f32<0, XT / 8>(d, *early, (float *)c, M, N, mode == ADD_F32, m0, wt, g, t, b_low, b_high);
  else add_f32<XT, TOGETHER>(d, (float *)c, M, N, mode == ADD_F32, m0, wt, g, t, b_low, b_high);
}
// What store_tile does for SWIGLU, for a group that has 16 gates and their ups for each of its tiles wt of what is stored.
template <int XT> DEV void store_gated(const float (&gate)[XT / 2], const float (&up)[XT / 2], u16 *c, const float *bias, int M, int N, int m0, int wt) {
  const int lane = TID & 31, g = lane >> 2, t = lane & 3, width = N / 2, odd = g & 1, upper = g >> 1 & 1;
  const int n = wt * 16 + upper * 8 + (g & 4), left = n < width ? M - m0 - t * 2 - odd : 0;
  float b[4] = {}; // of gate and up, low and high
  if (bias)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = wt * 16 + g + (i & 1) * 8;
      if (at < width) b[i] = bias[(i >> 1) * width + at];
    }
  u16 *p = c + (i64)(m0 + t * 2 + odd) * width + n;
#pragma unroll
  for (int j = 0; j < XT / 8; j++, p += 8 * width) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = gated(gate[j * 4 + i] + b[i >> 1], up[j * 4 + i] + b[2 + (i >> 1)]);
    store_words(p, pack_bf16(y[0], y[2]), pack_bf16(y[1], y[3]), odd, upper, j * 8 < left);
  }
}
#endif
