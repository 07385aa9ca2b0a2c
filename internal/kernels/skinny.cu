// Matrix products for few rows of x, where reading w is what takes time: w goes from memory straight into the registers of
// tensor-core operands, U blocks of 64 along K ahead of the product, and the first of them before the wait for the kernel that makes x.
// A block takes tile after tile of w, and the stream of loads doesn't end between them.
#include "mma.cuh"
#include "norm.cuh"
#include "product.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;

// The rows of x where the norm in front of the product is done too: float32, at most 8, and so many that their quads are at most 8 a
// thread. Shared memory: the norm's weights, float32, and the normed rows, bf16, PITCH bytes apart, so that rows don't meet in banks.
DEV int norm_pitch(int K) { return ((K * 2 + 127) & ~127) + 32; }
DEV void norm_rows(u8 *shared, const float *x, const float *norm, int M, int K, float eps) {
  __shared__ float sums[8][WARPS];
  const int quads = K / 4, shift = K <= 1024 ? 0 : K <= 2048 ? 1 : K <= 4096 ? 2 : 3, last = (1 << shift) - 1;
  for (int i = TID; i < quads; i += THREADS) copy_async(shared_address(shared) + i * 16, norm + i * 4, true);
  copy_async_commit();
  wait_for_earlier();
  f32x4 v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = i >> shift, quad = (int)TID + (i & last) * THREADS;
    v[i] = row < M && quad < quads ? ((const f32x4 *)(x + (i64)row * K))[quad] : (f32x4){0, 0, 0, 0};
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    sum = add_squares((i & last) == 0 ? 0.0f : sum, v[i]);
    if ((i & last) != last) continue;
    const float all = warp_sum(sum);
    if ((TID & 31) == 0) sums[i >> shift][TID >> 5] = all;
  }
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = i >> shift, quad = (int)TID + (i & last) * THREADS;
    if (row < M && quad < quads)
      *(u32x2 *)(shared + K * 4 + row * norm_pitch(K) + quad * 8) = normed(v[i], norm_scale(sums[row], K, eps), ((const f32x4 *)shared)[quad]);
  }
  __syncthreads();
}

// A lane's 8 bytes of two tiles of 16 along K, from 16 bytes of a row: of the 32 elements that a quad of lanes has loaded, lane t has
// those from 16·(t%2) + 8·(t/2) on, and needs 4·t … + 3 of either half, which it trades for with its neighbour.
DEV void share(u32x4 v, u32x2 &low, u32x2 &high) {
  const bool odd = TID & 1;
  const u32x2 other = {swap_word(odd ? v.x : v.z, 1), swap_word(odd ? v.y : v.w, 1)};
  low = odd ? other : (u32x2){v.x, v.y};
  high = odd ? (u32x2){v.z, v.w} : other;
}

// A block takes WARPS / SL tiles of 16 rows of w at a time and 8·NT rows of x, a warp one tile and slice. M ≤ 8·NT. Grid: any number.
template <int NT, int SL, int U, bool NORM>
DEV void skinny(const void *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode, const float *norm, float eps) {
  DYNAMIC_SHARED(16);
  __shared__ float part[2][WARPS][NT][4][32];
  constexpr int TILES = WARPS / SL;
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  const int slice = warp % SL, blocks = (K + 63) / 64, begin = slice_begin(blocks, slice, SL), end = slice_begin(blocks, slice + 1, SL);
  const int units = (N + 16 * TILES - 1) / (16 * TILES);
  dependents_may_launch();

  // What is loaded next, U blocks from this one on; a row that isn't there is null.
  int unit_ahead = CTAID, ahead = begin;
  const u16 *from[2];
  auto point = [&] {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int tile = unit_ahead * TILES + warp / SL, r = g + h * 8;
      from[h] = weight_row_valid(tile, r, N, mode) ? w + (i64)weight_row(tile, r, N, mode) * K : nullptr;
    }
  };
  u32x4 a[U][2][2];
  const u64 policy = passing();
  auto load = [&](int u) {
#pragma unroll
    for (int q = 0; q < 2; q++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int k = (ahead + u) * 64 + q * 32 + (t & 1) * 16 + (t >> 1) * 8;
        a[u][q][h] = from[h] && ahead + u < end && k < K ? load_once(from[h] + k, policy) : (u32x4){0, 0, 0, 0};
      }
  };
  auto advance = [&] {
    ahead += U;
    if (ahead < end) return;
    ahead = begin;
    unit_ahead += NCTAID;
    point();
  };
  point();
#pragma unroll
  for (int u = 0; u < U; u++) load(u);
  advance();
  if constexpr (NORM) norm_rows(dynamic, (const float *)x, norm, M, K, eps);
  else wait_for_earlier();

  const u16 *xr[NT];
  int left[NT]; // of the row from this lane's first element on; 0 where there is no row
  const u32 normed_row = shared_address(dynamic) + K * 4 + g * norm_pitch(K) + 8 * t;
#pragma unroll
  for (int i = 0; i < NT; i++) {
    left[i] = 8 * i + g < M ? K - 4 * t : 0;
    xr[i] = (const u16 *)x + (i64)(left[i] ? 8 * i + g : 0) * K + 4 * t;
  }
  int turn = 0;
  for (int unit = CTAID; unit < units; unit += NCTAID, turn ^= 1) {
    float sum[NT][4] = {};
    for (int block = begin; block < end; block += U) {
#pragma unroll
      for (int u = 0; u < U; u++) {
        u32x2 b[4][NT];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int i = 0; i < NT; i++) {
            const int k = (block + u) * 64 + j * 16;
            b[j][i] = (u32x2){0, 0};
            if (k < left[i]) b[j][i] = NORM ? load_shared8(normed_row + k * 2) : *(const u32x2 *)(xr[i] + k);
          }
#pragma unroll
        for (int q = 0; q < 2; q++) {
          u32x2 tile[2][2] = {};
#pragma unroll
          for (int h = 0; h < 2; h++) share(a[u][q][h], tile[0][h], tile[1][h]);
#pragma unroll
          for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < NT; i++) mma_16x8x16(sum[i], tile[j][0], tile[j][1], b[q * 2 + j][i]);
        }
        load(u);
      }
      advance();
    }
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
      for (int r = 0; r < 4; r++) part[turn][warp][i][r][lane] = sum[i][r];
    __syncthreads(); // the only one: the next unit's sums go to the other half
    // A thread takes one column of 8 of x, one pair of rows r and r + 8 of a tile.
    for (int e = TID; e < TILES * NT * 64; e += THREADS) {
      const int r = e & 7, m8 = e >> 3 & 7, rest = e >> 6, i = rest % NT, tl = rest / NT, at = r * 4 + (m8 >> 1), reg = m8 & 1;
      const int m = i * 8 + m8, wt = unit * TILES + tl;
      float lo = 0, hi = 0;
#pragma unroll
      for (int s = 0; s < SL; s++) {
        lo += part[turn][tl * SL + s][i][reg][at];
        hi += part[turn][tl * SL + s][i][reg + 2][at];
      }
      if (m < M) store_pair(c, bias, N, mode, m, wt, r, lo, hi);
    }
  }
}

#define SKINNY(NAME, NT, SL, U)                                                                                                  \
  KERNEL __launch_bounds__(THREADS, 2)                                                                                           \
      NAME(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {                              \
    skinny<NT, SL, U, false>(x, w, c, bias, M, N, K, mode, nullptr, 0);                                                          \
  }
SKINNY(skinny1_4, 1, 4, 4)
SKINNY(skinny1_8, 1, 8, 4)
SKINNY(skinny2_4, 2, 4, 3)
SKINNY(skinny2_8, 2, 8, 3)

// Dynamic shared memory: K·4 + M·norm_pitch(K).
#define SKINNY_NORM(NAME, SL)                                                                                                    \
  KERNEL __launch_bounds__(THREADS, 2)                                                                                           \
      NAME(const float *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode, const float *norm, float eps) { \
    skinny<1, SL, 4, true>(x, w, c, bias, M, N, K, mode, norm, eps);                                                         \
  }
SKINNY_NORM(skinny_norm_4, 4)
SKINNY_NORM(skinny_norm_8, 8)
