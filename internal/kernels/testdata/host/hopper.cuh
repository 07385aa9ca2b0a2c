// What hopper.cuh gives the kernels, for a CPU: barriers, copies by tensor maps and products of a warp group are those of
// ptx_matrix.h. Copies are there at once, and so are products.
#ifndef HOPPER_CUH
#define HOPPER_CUH
#include "nv.cuh"
#include "ptx_matrix.h"

static void expect(int failed, const char *what) {
  if (failed) fault(what);
}
DEV void barrier_init(u32 bar, u32 count) { expect(ptx_barrier_init(shared_at(bar), count), "mbarrier.init"); }
DEV void barrier_init_visible() {}
DEV void barrier_expect(u32 bar, u32 bytes) { expect(ptx_barrier_arrive(shared_at(bar), bytes), "mbarrier.arrive.expect_tx"); }
DEV void barrier_arrive(u32 bar) { expect(ptx_barrier_arrive(shared_at(bar), 0), "mbarrier.arrive"); }
DEV void barrier_wait(u32 bar, u32 parity) { while (!ptx_barrier_ended(shared_at(bar), parity)) give_way(); }

DEV void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar) {
  if (dst % 16 || (u64)src % 16 || bytes % 16 || !bytes) fault("cp.async.bulk of what isn't aligned");
  memcpy(shared_at(dst), src, bytes);
  expect(ptx_barrier_complete(shared_at(bar), bytes), "mbarrier.complete_tx");
}
static int any_memory(uint64_t, uint64_t) { return 1; }
static void load_box(u32 dst, const void *map, int rank, const int32_t *at, u32 bar) {
  const int n = ptx_tensor_load(dynamic, sizeof dynamic, dst - shared_address(dynamic), (const tensor_map *)map, rank, at, any_memory);
  expect(n < 0, "cp.async.bulk.tensor");
  expect(ptx_barrier_complete(shared_at(bar), n), "mbarrier.complete_tx");
}
DEV void tma_load_2d(u32 dst, const void *map, int c0, int c1, u32 bar) { load_box(dst, map, 2, (const int32_t[]){c0, c1}, bar); }
DEV void tma_load_4d(u32 dst, const void *map, int c0, int c1, int c2, int c3, u32 bar) { load_box(dst, map, 4, (const int32_t[]){c0, c1, c2, c3}, bar); }
DEV void tma_load_2d(u32 dst, const void *map, int c0, int c1, u32 bar, u64) { tma_load_2d(dst, map, c0, c1, bar); }
DEV void tma_load_4d(u32 dst, const void *map, int c0, int c1, int c2, int c3, u32 bar, u64) { tma_load_4d(dst, map, c0, c1, c2, c3, bar); }
DEV void tma_prefetch_map(const void *) {}

DEV void fence_async() {}
static Meeting named[16];
DEV void group_sync(u32 n) { meet(named[n], 128, [] {}); }

DEV u32 cluster_rank() { return block - blocks; }
DEV u32 cluster_size() { return cluster_blocks; }
DEV void cluster_sync() { cluster_meet(); }
DEV float cluster_load(u32 address, u32 rank) {
  return *(const float *)(rank == cluster_rank() ? shared_at(address) : blocks[rank].shared.data() + (shared_at(address) - __start_shared));
}
template <int N> DEV void registers_up() {}
template <int N> DEV void registers_down() {}

DEV void wgmma_fence() {}
DEV void wgmma_commit() {}
template <int N> DEV void wgmma_wait() {}
template <int N> DEV void wgmma_hold(float (&)[N]) {}
DEV u64 wgmma_operand(u32 address, u32 stride = 1024) { return (u64)((address & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62; }
static struct { Meeting meeting; float *d[128]; } groups[8]; // blocks of a cluster never meet in one at a time
static void wgmma_group(float *d, int n, u64 a, u64 b, int keep) {
  auto &g = groups[TID >> 7];
  g.d[TID & 127] = d;
  meet(g.meeting, 128, [&] {
    static float all[128 * 128];
    for (int t = 0; t < 128; t++) memcpy(all + t * n / 2, g.d[t], n * 2);
    for (int k = 0; k < 4; k++) expect(ptx_wgmma_m64k16_bf16(all, n, a + 2 * k, b + 2 * k, k || keep, 1, 1, dynamic, sizeof dynamic), "wgmma.mma_async");
    for (int t = 0; t < 128; t++) memcpy(g.d[t], all + t * n / 2, n * 2);
  });
}
#define WGMMA(N) DEV void wgmma_64x##N##x64(float (&d)[N / 2], u64 a, u64 b, int keep) { wgmma_group(d, N, a, b, keep); }
WGMMA(8)
WGMMA(16)
WGMMA(32)
WGMMA(64)
WGMMA(128)
WGMMA(144)
WGMMA(176)
WGMMA(200)
WGMMA(256)

template <int N> DEV u64 wgmma_columns(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (u64)64 << 16 | (u64)(N / 64 * 64) << 32 | (u64)1 << 62; }
static const u32 *weights[8][128];
static void wgmma_weights(float *d, int n, const u32 *a, u64 b, int keep) {
  auto &g = groups[TID >> 7];
  g.d[TID & 127] = d;
  auto &w = weights[TID >> 7];
  w[TID & 127] = a;
  meet(g.meeting, 128, [&] {
    static float all[128 * 128];
    for (int t = 0; t < 128; t++) memcpy(all + t * n / 2, g.d[t], n * 2);
    for (int k = 0; k < 4; k++) {
      uint32_t of[128][4];
      for (int t = 0; t < 128; t++) memcpy(of[t], w[t] + 4 * k, 16);
      expect(ptx_wgmma_registers_m64k16_bf16(all, n, of, b + 2 * n * k, k || keep, dynamic, sizeof dynamic), "wgmma.mma_async");
    }
    for (int t = 0; t < 128; t++) memcpy(g.d[t], all + t * n / 2, n * 2);
  });
}
#define WEIGHTS(N) DEV void wgmma_weights_64x##N##x64(float (&d)[N / 2], const u32 *a, u64 b, int keep) { wgmma_weights(d, N, a, b, keep); }
WEIGHTS(64)
WEIGHTS(128)
#endif
