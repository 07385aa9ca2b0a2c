// Matrix products for few rows of x, where reading w is what takes time: w goes from memory straight into the registers of
// tensor-core operands, loaded before the wait for the kernel that makes x.
#include "mma.cuh"
#include "product.cuh"

constexpr int WARPS = 8;

// A block takes WARPS / SL tiles of ROWS rows of w and 8·NT rows of x, one warp a tile and slice, U blocks of 64 at a time. ROWS is 16,
// or 8, which leaves half of the tensor core's tile empty and gives twice the blocks: for a w of few rows, and not for SWIGLU.
// Grid: tiles of w, tiles of x.
template <int NT, int SL, int U, int ROWS>
DEV void skinny(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {
  __shared__ float part[WARPS][NT][4][32];
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  const int slice = warp % SL, tile = CTAID * (WARPS / SL) + warp / SL, m0 = CTAID_Y * 8 * NT;
  dependents_may_launch();
  constexpr int HALVES = ROWS / 8;
  bool valid[HALVES];
  const u16 *from[HALVES];
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    // A tile of 8 rows is half of one of 16.
    const int t16 = HALVES == 2 ? tile : tile / 2, r = HALVES == 2 ? g + h * 8 : tile % 2 * 8 + g;
    valid[h] = weight_row_valid(t16, r, N, mode);
    from[h] = w + (i64)(valid[h] ? weight_row(t16, r, N, mode) : 0) * K + 4 * t;
  }
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
    u32x2 a[U][4][HALVES];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int k = k0 + u * SL * 64 + j * 16;
#pragma unroll
        for (int h = 0; h < HALVES; h++) a[u][j][h] = valid[h] && k < left ? load_once8(from[h] + k) : zero;
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
        for (int i = 0; i < NT; i++) mma_16x8x16(sum[i], a[u][j][0], HALVES == 2 ? a[u][j][HALVES - 1] : zero, b[j][i]);
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
    if (m >= M) continue;
    if constexpr (HALVES == 2) store_pair(c, bias, N, mode, m, wt, r, lo, hi);
    else if (wt * 8 + r < N) store_sum(c, N, mode, m, wt * 8 + r, bias ? lo + bias[wt * 8 + r] : lo);
  }
}

#define SKINNY(NAME, NT, SL, U, ROWS)                                                                                            \
  KERNEL __launch_bounds__(32 * WARPS, 2)                                                                                        \
      NAME(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {                              \
    skinny<NT, SL, U, ROWS>(x, w, c, bias, M, N, K, mode);                                                                       \
  }
SKINNY(skinny1_4, 1, 4, 4, 16)
SKINNY(skinny1_8, 1, 8, 4, 16)
SKINNY(skinny2_4, 2, 4, 3, 16)
SKINNY(skinny2_8, 2, 8, 3, 16)
SKINNY(skinny_half_4, 1, 4, 4, 8)
SKINNY(skinny_half_8, 1, 8, 10, 8)
