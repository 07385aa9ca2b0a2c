// What sm_90a has: barriers that count bytes, the tensor memory accelerator (TMA), and matrix products of a warp group.
#ifndef HOPPER_CUH
#define HOPPER_CUH
#include "nv.cuh"

DEV void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
// After barrier_init, before other threads and the TMA see the barriers.
DEV void barrier_init_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives, and makes the barrier wait for so many bytes of copies besides.
DEV void barrier_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEV void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
// Waits until the phase of this parity has ended.
DEV void barrier_wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::"r"(bar), "r"(parity) : "memory");
}

// Copies bytes, a multiple of 16, that lie beside each other in global memory; both addresses are multiples of 16.
DEV void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
// Copies the box at column c0 and row c1 of a tensor map in global memory.
DEV void tma_load_2d(u32 dst, const void *map, int c0, int c1, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map), "r"(c0), "r"(c1), "r"(bar) : "memory");
}
DEV void tma_load_4d(u32 dst, const void *map, int c0, int c1, int c2, int c3, u32 bar) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(dst), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar) : "memory");
}
// The same by a policy of the L2.
DEV void tma_load_2d(u32 dst, const void *map, int c0, int c1, u32 bar, u64 policy) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst), "l"(map), "r"(c0), "r"(c1), "r"(bar), "l"(policy) : "memory");
}
DEV void tma_load_4d(u32 dst, const void *map, int c0, int c1, int c2, int c3, u32 bar, u64 policy) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(dst), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "l"(policy) : "memory");
}
DEV void tma_prefetch_map(const void *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// What this thread wrote to shared memory is there for wgmma and the TMA after the next barrier.
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A barrier of a warp group's threads, of a number from 1 on: 0 is __syncthreads'.
DEV void group_sync(u32 n) { asm volatile("bar.sync %0, 128;" ::"r"(n) : "memory"); }

// Clusters: the blocks of one can read each other's shared memory.
DEV u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV u32 cluster_size() { u32 r; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); return r; }
DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEV float cluster_load(u32 address, u32 rank) {
  float v;
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}\n" : "=f"(v) : "r"(address), "r"(rank) : "memory");
  return v;
}

template <int N> DEV void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Keeps the compiler from reading sums before the wait in front of this.
template <int N> DEV void wgmma_hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Describes an operand of 64 bf16 along K a row, as the TMA writes it with the 128-byte swizzle: groups of 8 rows are 1,024 bytes, one
// stride after the other (PTX ISA, "Matrix Descriptor Format"). The next 16 along K are 32 bytes on, which is 2 in the descriptor.
DEV u64 wgmma_operand(u32 address, u32 stride = 1024) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}

// wgmma_64xNx64(d, a, b, keep): d = a·bᵀ, or d += a·bᵀ where keep isn't 0, for a of 64 rows and b of N rows of 64 along K, as four
// products in one statement, so that the sums stay in their registers. The operands of asm have to be written out one by one: P10(3)
// names operands 30 to 39.
#define P10(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define P0_9 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define D2(i) "+f"(d[i]), "+f"(d[i + 1])
#define D4(i) D2(i), D2(i + 2)
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define WGMMA_ONE(N, LIST, a, b, p) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, " a ", " b ", " p ", 1, 1, 0, 0;\n"
#define WGMMA(N, LIST, ...)                                                                                                      \
  DEV void wgmma_64x##N##x64(float (&d)[N / 2], u64 a, u64 b, int keep) {                                                        \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a1,a2,a3,b1,b2,b3;\nsetp.ne.b32 p, %[keep], 0;\n"                                  \
                 "add.s64 a1, %[a], 2;\nadd.s64 a2, %[a], 4;\nadd.s64 a3, %[a], 6;\n"                                            \
                 "add.s64 b1, %[b], 2;\nadd.s64 b2, %[b], 4;\nadd.s64 b3, %[b], 6;\n"                                            \
                 WGMMA_ONE(N, LIST, "%[a]", "%[b]", "p") WGMMA_ONE(N, LIST, "a1", "b1", "1") WGMMA_ONE(N, LIST, "a2", "b2", "1") \
                 WGMMA_ONE(N, LIST, "a3", "b3", "1") "}\n"                                                                       \
                 : __VA_ARGS__                                                                                                   \
                 : [a] "l"(a), [b] "l"(b), [keep] "r"(keep));                                                                    \
  }
WGMMA(8, "%0,%1,%2,%3", D4(0))
WGMMA(16, "%0,%1,%2,%3,%4,%5,%6,%7", D8(0))
WGMMA(32, P0_9 "%10,%11,%12,%13,%14,%15", D16(0))
WGMMA(64, P0_9 P10(1) P10(2) "%30,%31", D32(0))
WGMMA(128, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) "%60,%61,%62,%63", D64(0))
WGMMA(144, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) "%70,%71", D64(0), D8(64))
WGMMA(176, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) "%80,%81,%82,%83,%84,%85,%86,%87", D64(0), D16(64), D8(80))
WGMMA(200, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99", D64(0), D32(64), D4(96))
WGMMA(256, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) P10(6) P10(7) P10(8) P10(9) P10(10) P10(11) "%120,%121,%122,%123,%124,%125,%126,%127", D64(0), D64(64))

// Describes the other operand of N columns where K's rows lie beside each other in memory, 64 elements in 128 bytes: 8 rows along K are
// 1,024 bytes, which the next 64 columns follow, and after all N the next 8 along K.
template <int N> DEV u64 wgmma_columns(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | (u64)64 << 16 | (u64)(N / 64 * 64) << 32 | (u64)1 << 62;
}

// wgmma_weights_64xNx64(d, a, b, keep): the same as wgmma_64xNx64 with a in registers and b of wgmma_columns<N>. A thread holds of each
// 16 along K of a what it would of sums: pairs of row g, of row g + 8, then 8 columns on.
#define WEIGHTS_ONE(N, LIST, i, b, p)                                                                                            \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LIST "}, {%[a" #i "0],%[a" #i "1],%[a" #i "2],%[a" #i "3]}, " b ", " p ", 1, 1, 1;\n"
#define A4(i) [a##i##0] "r"(a[i * 4]), [a##i##1] "r"(a[i * 4 + 1]), [a##i##2] "r"(a[i * 4 + 2]), [a##i##3] "r"(a[i * 4 + 3])
#define WEIGHTS(N, LIST, ...)                                                                                                    \
  DEV void wgmma_weights_64x##N##x64(float (&d)[N / 2], const u32 *a, u64 b, int keep) {                                         \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b1,b2,b3;\nsetp.ne.b32 p, %[keep], 0;\n"                                          \
                 "add.s64 b1, %[b], %[next];\nadd.s64 b2, b1, %[next];\nadd.s64 b3, b2, %[next];\n"                               \
                 WEIGHTS_ONE(N, LIST, 0, "%[b]", "p") WEIGHTS_ONE(N, LIST, 1, "b1", "1") WEIGHTS_ONE(N, LIST, 2, "b2", "1")      \
                 WEIGHTS_ONE(N, LIST, 3, "b3", "1") "}\n"                                                                        \
                 : __VA_ARGS__                                                                                                   \
                 : A4(0), A4(1), A4(2), A4(3), [b] "l"(b), [keep] "r"(keep), [next] "n"(N * 2));                                 \
  }
WEIGHTS(64, P0_9 P10(1) P10(2) "%30,%31", D32(0))
WEIGHTS(128, P0_9 P10(1) P10(2) P10(3) P10(4) P10(5) "%60,%61,%62,%63", D64(0))
#endif
