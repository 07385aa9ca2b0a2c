// The kernels of a format F of quantised weights; QUANTIZED(name, F) makes them. F besides says
//   static u32 code(const u8 *row, i32 k): the code of a row's element as the file has it, of Q8_0 with its sign bit flipped
//   static u32x2 scales(const u8 *row, i32 block, bool second): those of a block of 64, whose second group of 32 may be missing
//   static u32 block(const u8 *row, i32 block): of its 256
#ifndef QUANT_KERNELS_CUH
#define QUANT_KERNELS_CUH
#include "mma.cuh"
#include "product.cuh"
#include "quant.cuh"

constexpr int QUANT_WARPS = 8;

// repack: rows first to first + rows - 1 of a segment of N rows, from blocks as the file has them. first and rows are multiples of 8. Any
// grid; a thread a unit.
template <class F> DEV void repack(u8 *w, const u8 *file, i32 first, i32 rows, i32 N, i32 K) {
  dependents_may_launch();
  wait_for_earlier();
  const Planes<F> p(w, N, K);
  const i64 units = (i64)(rows / 8) * p.wide * 32, row_bytes = (i64)(K / F::ELEMENTS) * F::BYTES;
  for (i64 i = (i64)CTAID * NTID + TID; i < units; i += (i64)NCTAID * NTID) {
    const i32 lane = i & 31, g = lane >> 2, t = lane & 3, block = (i32)(i / 32 % p.wide), half = (i32)(i / 32 / p.wide);
    const u8 *row = file + (half * 8 + g) * row_bytes;
    u32 word[4] = {}, high = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const i32 k = block * 64 + 16 * j + 4 * t + e;
        const u32 q = k < K ? F::code(row, k) : 0;
        if (F::CODES == 16) word[j] |= q << 8 * e;
        else word[j / 2] |= (q & 15) << (8 * e + 4 * (j & 1));
        if (F::HIGH == 2) high |= (q >> 4) << (8 * (e / 2) + 4 * (e & 1) + j);
        if (F::HIGH == 4) high |= (q >> 4) << (8 * e + 2 * j);
      }
    const i32 to = first / 8 + half;
    const i64 at = p.unit(to, block) + lane, r = p.row(to, block) + g, b = p.wide_row(to, block) + g;
    if (F::CODES == 16) *(u32x4 *)(p.codes + at * 16) = (u32x4){word[0], word[1], word[2], word[3]};
    else *(u32x2 *)(p.codes + at * 8) = (u32x2){word[0], word[1]};
    if (F::HIGH == 2) *(u16 *)(p.high + at * 2) = (u16)high;
    if (F::HIGH == 4) *(u32 *)(p.high + at * 4) = high;
    if (t) continue;
    const u32x2 s = F::scales(row, block, block * 64 + 32 < K);
    if (F::SCALES == 4) *(u32 *)(p.scales + r * 4) = s.x;
    if (F::SCALES == 8) *(u32x2 *)(p.scales + r * 8) = s;
    if (F::BLOCKS == 2 && block % 4 == 0) *(u16 *)(p.blocks + b * 2) = (u16)F::block(row, block / 4);
    if (F::BLOCKS == 4 && block % 4 == 0) *(u32 *)(p.blocks + b * 4) = F::block(row, block / 4);
  }
}

// expand: to [N, K] bf16. Any grid; a thread a unit, a warp eight rows of 128 bytes.
template <class F> DEV void expand(u16 *to, const u8 *w, i32 N, i32 K) {
  dependents_may_launch();
  wait_for_earlier();
  const Planes<F> p(w, N, K);
  const i64 units = (i64)(N / 8) * p.wide * 32;
  for (i64 i = (i64)CTAID * NTID + TID; i < units; i += (i64)NCTAID * NTID) {
    const i32 lane = i & 31, block = (i32)(i / 32 % p.wide), half = (i32)(i / 32 / p.wide), k = block * 64 + (lane & 3) * 4;
    u32x2 a[4];
    expand_unit<F>(load_unit(p, half, block, lane), a);
    u16 *out = to + (i64)(half * 8 + (lane >> 2)) * K + k;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (k + 16 * j < K) *(u32x2 *)(out + 16 * j) = a[j];
  }
}

// embed of a table of N rows: as engine.cu's. Grid (rows).
template <class F> DEV void embed(float *dst, const u8 *w, const i32 *tokens, const i32 *sampled, i32 N, i32 K) {
  dependents_may_launch();
  wait_for_earlier();
  const Planes<F> p(w, N, K);
  i32 token = tokens[CTAID];
  if (token < 0) token = sampled[~token];
  if (token < 0) token = 0;
  for (i32 i = TID; i < p.wide * 4; i += NTID) {
    const i32 k = (i >> 2) * 64 + (i & 3) * 4;
    u32x2 a[4];
    expand_unit<F>(load_unit(p, token / 8, i >> 2, token % 8 * 4 + (i & 3)), a);
    float *out = dst + (i64)CTAID * K + k;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (k + 16 * j < K) *(f32x4 *)(out + 16 * j) = (f32x4){bf16_lo(a[j].x), bf16_hi(a[j].x), bf16_lo(a[j].y), bf16_hi(a[j].y)};
  }
}

// As store_pair, to a c of stride columns.
DEV void store_columns(void *c, const float *bias, i32 N, i32 stride, i32 mode, i32 m, i32 tile, i32 r, float low, float high) {
  const bool has_low = weight_row_valid(tile, r, N, mode), has_high = weight_row_valid(tile, r + 8, N, mode);
  const i32 n_low = weight_row(tile, r, N, mode), n_high = weight_row(tile, r + 8, N, mode);
  if (bias && has_low) low += bias[n_low];
  if (bias && has_high) high += bias[n_high];
  if (mode == SWIGLU) {
    if (has_low) ((u16 *)c)[(i64)m * stride + n_low] = swiglu(low, high);
    return;
  }
  if (has_low) store_sum(c, stride, mode, m, n_low, low);
  if (has_high) store_sum(c, stride, mode, m, n_high, high);
}

// direct: c = x·wᵀ + bias for 8·NT rows of x, in the order of skinny.cu, so that sums are those of the expanded weights to the bit. c has
// stride columns, of which these are the first N (for SWIGLU N/2). A warp takes TW tiles of 16 rows of w and a slice, U blocks of 64 at a
// time, loaded before the wait for the kernel that makes x. Grid: WARPS / slices · TW tiles of w, tiles of x.
template <class F, int NT, int TW, int U> DEV void direct(const u16 *x, const u8 *w, void *c, const float *bias, i32 M, i32 N, i32 K, i32 mode, i32 stride) {
  __shared__ float part[QUANT_WARPS][NT][4][32];
  const i32 SL = slices(K), warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3, slice = warp & (SL - 1), tiles = QUANT_WARPS / SL;
  const i32 first = CTAID * tiles * TW, mine = first + (warp / SL) * TW, m0 = CTAID_Y * 8 * NT;
  dependents_may_launch();
  const Planes<F> p(w, N, K);
  const i32 begin = slice_begin(p.wide, slice, SL), end = slice_begin(p.wide, slice + 1, SL);
  i32 half[TW][2]; // N is a multiple of 8, of 16 for SWIGLU: half a tile is there or isn't (-1)
#pragma unroll
  for (int i = 0; i < TW; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const bool there = weight_row_valid(mine + i, h * 8, N, mode);
      half[i][h] = there ? weight_row(mine + i, h * 8, N, mode) / 8 : -1;
    }
  const u16 *xr[NT];
  bool row[NT];
#pragma unroll
  for (int i = 0; i < NT; i++) {
    row[i] = m0 + 8 * i + g < M;
    xr[i] = x + (i64)(row[i] ? m0 + 8 * i + g : 0) * K + 4 * t;
  }
  float sum[TW][NT][4] = {};
  const u32x2 zero = {0, 0};
  const i32 left = K - 4 * t;
  bool waited = false;
  for (i32 block = begin; block < end || !waited; block += U) {
    Unit unit[U][TW][2];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int i = 0; i < TW; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const i32 at = block + u;
          if (at < end && half[i][h] >= 0) unit[u][i][h] = load_unit(p, half[i][h], at, lane);
          else unit[u][i][h] = Unit{};
        }
    if (!waited) wait_for_earlier();
    waited = true;
#pragma unroll
    for (int u = 0; u < U; u++) {
      u32x2 a[TW][2][4];
#pragma unroll
      for (int i = 0; i < TW; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) expand_unit<F>(unit[u][i][h], a[i][h]);
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
          const i32 k = (block + u) * 64 + j * 16;
          const u32x2 b = row[n] && k < left ? *(const u32x2 *)(xr[n] + k) : zero;
#pragma unroll
          for (int i = 0; i < TW; i++) mma_16x8x16(sum[i][n], a[i][0][j], a[i][1][j], b);
        }
    }
  }
#pragma unroll
  for (int i = 0; i < TW; i++) {
    if (i) __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int r = 0; r < 4; r++) part[warp][n][r][lane] = sum[i][n][r];
    __syncthreads();
    // A thread takes one column of 8 of x, one pair of rows r and r + 8 of a tile.
    for (i32 e = TID; e < tiles * NT * 64; e += 32 * QUANT_WARPS) {
      const i32 r = e & 7, n8 = e >> 3 & 7, rest = e >> 6, n = rest % NT, tile = rest / NT, from = r * 4 + (n8 >> 1), reg = n8 & 1;
      const i32 m = m0 + n * 8 + n8;
      float low = 0, high = 0;
      for (i32 s = 0; s < SL; s++) {
        low += part[tile * SL + s][n][reg][from];
        high += part[tile * SL + s][n][reg + 2][from];
      }
      if (m < M) store_columns(c, bias, N, stride, mode, m, first + tile * TW + i, r, low, high);
    }
  }
}

#define QUANTIZED(NAME, F)                                                                                                             \
  KERNEL __launch_bounds__(256) repack_##NAME(u8 *w, const u8 *file, i32 first, i32 rows, i32 N, i32 K) { repack<F>(w, file, first, rows, N, K); } \
  KERNEL __launch_bounds__(256) expand_##NAME(u16 *to, const u8 *w, i32 N, i32 K) { expand<F>(to, w, N, K); }                          \
  KERNEL __launch_bounds__(256) embed_##NAME(float *dst, const u8 *w, const i32 *tokens, const i32 *sampled, i32 N, i32 K) {           \
    embed<F>(dst, w, tokens, sampled, N, K);                                                                                           \
  }                                                                                                                                    \
  DIRECT(NAME, F, 8, 1, 4) DIRECT(NAME, F, 16, 1, 3) DIRECT(NAME, F, 32, 2, 1) DIRECT(NAME, F, 64, 2, 1)
#define DIRECT(NAME, F, ROWS, TW, U)                                                                                                   \
  KERNEL __launch_bounds__(32 * QUANT_WARPS, 2) direct_##NAME##_##ROWS(const u16 *x, const u8 *w, void *c, const float *bias, i32 M,   \
                                                                       i32 N, i32 K, i32 mode, i32 stride) {                           \
    direct<F, ROWS / 8, TW, U>(x, w, c, bias, M, N, K, mode, stride);                                                                  \
  }
#endif
