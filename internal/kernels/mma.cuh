// Tensor cores and asynchronous copies of sm_80.
#ifndef MMA_CUH
#define MMA_CUH
#include "nv.cuh"

// d += a·b for a 16 × 16 tile of bf16 (rows lane/4 and lane/4 + 8) and a 16 × 8 tile (column lane/4). A lane of a quad holds two
// pairs of the 16 elements along k of each row or column; which ones is the caller's choice, as long as a and b agree, since
// the sum runs over all: here lane%4 holds elements 4·(lane%4) … +3, which are 8 bytes in a row.
DEV void mma_16x8x16(float (&d)[4], u32x2 a_low, u32x2 a_high, u32x2 b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a_low.x), "r"(a_high.x), "r"(a_low.y), "r"(a_high.y), "r"(b.x), "r"(b.y));
}

// 16 bytes from global to shared memory, zeros where they are not valid.
DEV void copy_async(u32 dst, const void *src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0) : "memory");
}
DEV void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups of copies of this thread are under way.
template <int N> DEV void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

DEV u32x2 load_shared8(u32 address) {
  u32x2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
// Four tiles of 8 × 8 of 16 bits, of which lane i has the address of row i % 8 of tile i / 8, transposed.
DEV void load_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEV u32x4 load_shared16(u32 address) {
  u32x4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
DEV void store_shared16(u32 address, u32x4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
#endif
