// What mma.cuh gives the kernels, for a CPU. Asynchronous copies are there at once.
#ifndef MMA_CUH
#define MMA_CUH
#include "nv.cuh"
#include "ptx_matrix.h"

DEV void mma_16x8x16(float (&d)[4], u32x2 a_low, u32x2 a_high, u32x2 b) {
  const u32 in[10] = {a_low.x, a_high.x, a_low.y, a_high.y, b.x, b.y, as_word(d[0]), as_word(d[1]), as_word(d[2]), as_word(d[3])};
  const u32 *out = of_warp(in, 10, [](Warp &w) {
    uint32_t a[32][4], b[32][2];
    float c[32][4], d[32][4];
    for (int i = 0; i < 32; i++) memcpy(a[i], w.in[i], 16), memcpy(b[i], w.in[i] + 4, 8), memcpy(c[i], w.in[i] + 6, 16);
    ptx_mma_m16n8k16_bf16(d, a, b, c);
    for (int i = 0; i < 32; i++) memcpy(w.out[i], d[i], 16);
  });
  memcpy(d, out, 16);
}
DEV void copy_async(u32 dst, const void *src, bool valid) {
  if (dst % 16) fault("a copy to where isn't aligned");
  const u32x4 v = aligned<u32x4>(src);
  *(u32x4 *)shared_at(dst) = valid ? v : (u32x4){0, 0, 0, 0};
}
DEV void copy_async_commit() {}
template <int N> DEV void copy_async_wait() {}
DEV u32x2 load_shared8(u32 address) { return aligned<u32x2>(shared_at(address)); }
DEV u32x4 load_shared16(u32 address) { return aligned<u32x4>(shared_at(address)); }
DEV void store_shared16(u32 address, u32x4 v) { *(u32x4 *)shared_at(address) = v; }
DEV void load_transposed(u32 (&r)[4], u32 address) {
  memcpy(r, of_warp(&address, 1, [](Warp &w) {
    const u8 *row[32];
    uint32_t d[32][4];
    for (int i = 0; i < 32; i++) row[i] = shared_at(w.in[i][0]);
    ptx_ldmatrix(d[0], row, 4, 1);
    for (int i = 0; i < 32; i++) memcpy(w.out[i], d[i], 16);
  }), 16);
}
#endif
