// What CUDA C needs when clang compiles it with -nocudainc -nocudalib. Own declarations; nothing is from the CUDA toolkit.
#ifndef NV_CUH
#define NV_CUH
#ifndef __CUDA_ARCH__
#error "device code only: compile with --cuda-device-only"
#endif

#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define KERNEL extern "C" __global__ void
#define DEV static __attribute__((device)) __inline__ __attribute__((always_inline))

typedef unsigned int u32;
typedef unsigned long long u64;

#define TID ((u32)__nvvm_read_ptx_sreg_tid_x())
#define NTID ((u32)__nvvm_read_ptx_sreg_ntid_x())
#define CTAID ((u32)__nvvm_read_ptx_sreg_ctaid_x())
#define NCTAID ((u32)__nvvm_read_ptx_sreg_nctaid_x())

// volatile: the value may differ between two reads.
DEV u32 sm_id() { u32 r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
DEV u64 global_timer() { u64 r; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(r)::"memory"); return r; }

// All 32 lanes get the sum of all lanes' v.
DEV u32 warp_sum(u32 v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += (u32)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)v, m, 31);
  return v;
}
#endif
