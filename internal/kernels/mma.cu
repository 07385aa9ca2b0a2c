// Matrix products by mma.sync, for every GPU from Ampere on and for any number of rows of x. Tiles of w and x pass through shared
// memory by asynchronous copies; rows of 128 bytes whose 16-byte chunks are permuted by the row, so that reads meet no bank twice.
// The sum over K is cut as product.cuh says, so that results are the same to the bit as skinny.cu's.
#include "mma.cuh"
#include "product.cuh"

constexpr int STAGES = 3;

// Copies a block of 64 along K of ROWS rows; row(r) is where row r begins, or null for zeros.
template <int ROWS, int THREADS, typename Row> DEV void load_rows(u32 to, Row row, const u16 *any, int k0, int K) {
#pragma unroll
  for (int i = 0; i < ROWS * 8 / THREADS; i++) {
    const int at = TID + i * THREADS, r = at >> 3, chunk = at & 7;
    const u16 *from = row(r);
    const bool valid = from && k0 + chunk * 8 < K;
    copy_async(to + r * 128 + ((chunk ^ (r & 7)) << 4), valid ? from + k0 + chunk * 8 : any, valid);
  }
}

// A block takes 32·WW rows of w and 32·XW of x, a warp 32 × 32. Grid: tiles of x, tiles of w.
template <int WW, int XW>
DEV void product(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {
  DYNAMIC_SHARED(128);
  constexpr int WT = 32 * WW, XT = 32 * XW, THREADS = 32 * WW * XW;
  constexpr u32 STAGE = (WT + XT) * 128;
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  const int m0 = CTAID * XT, tile0 = CTAID_Y * (WT / 16), blocks = (K + 63) / 64, count = slices(K);
  const u32 base = shared_address(dynamic);
  auto weights = [&](int r) -> const u16 * {
    return weight_row_valid(tile0 + (r >> 4), r & 15, N, mode) ? w + (i64)weight_row(tile0 + (r >> 4), r & 15, N, mode) * K : nullptr;
  };
  auto rows = [&](int r) -> const u16 * { return m0 + r < M ? x + (i64)(m0 + r) * K : nullptr; };
  int loaded = 0;
  auto load_next = [&] {
    if (loaded < blocks) {
      const u32 to = base + loaded % STAGES * STAGE;
      load_rows<WT, THREADS>(to, weights, w, loaded * 64, K);
      load_rows<XT, THREADS>(to + WT * 128, rows, w, loaded * 64, K);
      loaded++;
    }
    copy_async_commit();
  };
  dependents_may_launch();
  wait_for_earlier();
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) load_next();
  const u32 w_at = (warp / XW * 32 + g) * 128 + (t & 1) * 8, x_at = WT * 128 + (warp % XW * 32 + g) * 128 + (t & 1) * 8;
  float total[2][16] = {};
  int done = 0;
  for (int s = 0; s < count; s++) {
    float sum[2][4][4] = {};
    for (const int end = slice_begin(blocks, s + 1, count); done < end; done++) {
      copy_async_wait<STAGES - 2>();
      __syncthreads();
      load_next();
      const u32 from = base + done % STAGES * STAGE;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u32 chunk = ((j * 2 + (t >> 1)) ^ g) << 4;
        u32x2 a[2][2], e[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i >> 1][i & 1] = load_shared8(from + w_at + i * 1024 + chunk);
#pragma unroll
        for (int i = 0; i < 4; i++) e[i] = load_shared8(from + x_at + i * 1024 + chunk);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
          for (int n = 0; n < 4; n++) mma_16x8x16(sum[i][n], a[i][0], a[i][1], e[n]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int n = 0; n < 16; n++) total[i][n] += sum[i][n >> 2][n & 3];
  }
#pragma unroll
  for (int i = 0; i < 2; i++) store_tile<32>(total[i], c, bias, M, N, mode, m0 + warp % XW * 32, tile0 + warp / XW * 2 + i);
}

#define PRODUCT(WW, XW, NAME)                                                                                                    \
  KERNEL __launch_bounds__(32 * WW * XW)                                                                                         \
      NAME(const u16 *x, const u16 *w, void *c, const float *bias, int M, int N, int K, int mode) {                              \
    product<WW, XW>(x, w, c, bias, M, N, K, mode);                                                                               \
  }
PRODUCT(4, 2, mma_128x64)
PRODUCT(2, 1, mma_64x32)
