// Matrix products for few rows of x, where reading w is what takes time: w goes from memory straight into the registers of
// tensor-core operands, loaded before the wait for the kernel that makes x.
#include "mma.cuh"
#include "product.cuh"

constexpr int WARPS = 8;

// A block takes WARPS / SL tiles of 16 rows of w and 8·NT rows of x, one warp a tile and slice. Grid: tiles of w, tiles of x.
template <int NT, int SL, int U>
DEV void skinny(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {
  __shared__ float part[WARPS][NT][4][32];
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  const int slice = warp % SL, tile = CTAID * (WARPS / SL) + warp / SL, m0 = CTAID_Y * 8 * NT;
  dependents_may_launch();
  const bool low = weight_row_valid(tile, g, N, mode), high = weight_row_valid(tile, g + 8, N, mode);
  const u16 *w_low = w + (i64)(low ? weight_row(tile, g, N, mode) : 0) * K + 4 * t;
  const u16 *w_high = w + (i64)(high ? weight_row(tile, g + 8, N, mode) : 0) * K + 4 * t;
  const u16 *xr[NT];
  bool row[NT];
#pragma unroll
  for (int i = 0; i < NT; i++) {
    row[i] = m0 + 8 * i + g < M;
    xr[i] = x + (i64)(row[i] ? m0 + 8 * i + g : 0) * K + 4 * t;
  }
  float sum[NT][4] = {};
  const u32x2 zero = {0, 0};
  const int left = K - 4 * t;
  bool first = true;
  for (int k0 = slice * 64; k0 < K || first; k0 += SL * 64 * U) {
    u32x2 a[U][4][2];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int k = k0 + u * SL * 64 + j * 16;
        a[u][j][0] = low && k < left ? load_once8(w_low + k) : zero;
        a[u][j][1] = high && k < left ? load_once8(w_high + k) : zero;
      }
    if (first) wait_for_earlier();
    first = false;
#pragma unroll
    for (int u = 0; u < U; u++) {
      u32x2 b[4][NT];
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < NT; i++) {
          const int k = k0 + u * SL * 64 + j * 16;
          b[j][i] = row[i] && k < left ? *(const u32x2 *)(xr[i] + k) : zero;
        }
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < NT; i++) mma_16x8x16(sum[i], a[u][j][0], a[u][j][1], b[j][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < NT; i++)
#pragma unroll
    for (int r = 0; r < 4; r++) part[warp][i][r][lane] = sum[i][r];
  __syncthreads();
  // A thread takes one column of 8 of x, one pair of rows r and r + 8 of a tile.
  for (int e = TID; e < WARPS / SL * NT * 64; e += 32 * WARPS) {
    const int r = e & 7, n8 = e >> 3 & 7, rest = e >> 6, i = rest % NT, tl = rest / NT, from = r * 4 + (n8 >> 1), reg = n8 & 1;
    const int m = m0 + i * 8 + n8, wt = CTAID * (WARPS / SL) + tl;
    float lo = 0, hi = 0;
#pragma unroll
    for (int s = 0; s < SL; s++) {
      lo += part[tl * SL + s][i][reg][from];
      hi += part[tl * SL + s][i][reg + 2][from];
    }
    if (m < M) store_pair(c, bias, N, mode, m, wt, r, lo, hi);
  }
}

#define SKINNY(NT, SL, U)                                                                                                        \
  KERNEL __launch_bounds__(32 * WARPS, 2)                                                                                        \
      skinny##NT##_##SL(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {                 \
    skinny<NT, SL, U>(x, w, c, bias, M, N, K, mode);                                                                             \
  }
SKINNY(1, 4, 4)
SKINNY(1, 8, 4)
SKINNY(2, 4, 3)
SKINNY(2, 8, 3)
