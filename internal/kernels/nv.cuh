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
// Declares dynamic, the shared memory that a launch asks for.
#define DYNAMIC_SHARED(ALIGN) extern __shared__ __attribute__((aligned(ALIGN))) u8 dynamic[]
#define DEV static __attribute__((device)) __inline__ __attribute__((always_inline))

#define MEMBER __attribute__((device)) __inline__ __attribute__((always_inline))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// clang loads and stores these in one instruction.
typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));

#define TID ((u32)__nvvm_read_ptx_sreg_tid_x())
#define NTID ((u32)__nvvm_read_ptx_sreg_ntid_x())
#define CTAID ((u32)__nvvm_read_ptx_sreg_ctaid_x())
#define CTAID_Y ((u32)__nvvm_read_ptx_sreg_ctaid_y())
#define CTAID_Z ((u32)__nvvm_read_ptx_sreg_ctaid_z())
#define NCTAID ((u32)__nvvm_read_ptx_sreg_nctaid_x())
#define NCTAID_Y ((u32)__nvvm_read_ptx_sreg_nctaid_y())

// volatile: the value may differ between two reads.
DEV u32 sm_id() { u32 r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
DEV u64 global_timer() { u64 r; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(r)::"memory"); return r; }

// A bit for each lane's v.
DEV u32 ballot(bool v) { return (u32)__nvvm_vote_ballot_sync(0xffffffffu, v); }

// All 32 lanes get the sum of all lanes' v.
DEV u32 warp_sum(u32 v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += (u32)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)v, m, 31);
  return v;
}

DEV float shfl_xor(float v, int mask) { return __nvvm_shfl_sync_bfly_f32(0xffffffffu, v, mask, 31); }
DEV float shfl(float v, int lane) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, v, lane, 31); }
DEV int shfl(int v, int lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, v, lane, 31); }
// All 32 lanes get the sum of all lanes' v, or the maximum; a NaN is no maximum.
DEV float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
  return v;
}
DEV float warp_max(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = __builtin_fmaxf(v, shfl_xor(v, m));
  return v;
}

// The hardware's approximations (PTX ISA: relative error about 2^-22); there is no libdevice.
DEV float ex2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
DEV float lg2(float x) { return __nvvm_lg2_approx_ftz_f(x); }
DEV float rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
DEV float rcp(float x) { return __nvvm_rcp_approx_ftz_f(x); }
DEV float silu(float x) { return x * rcp(1.0f + ex2(-1.4426950408889634f * x)); }

// bf16 as a 16-bit word, or two in 32 bits, the first one low.
DEV float bf16_f32(u16 b) { return __builtin_bit_cast(float, (u32)b << 16); }
DEV float bf16_lo(u32 p) { return __builtin_bit_cast(float, p << 16); }
DEV float bf16_hi(u32 p) { return __builtin_bit_cast(float, p & 0xffff0000u); }
#if __CUDA_ARCH__ >= 800
DEV u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEV u16 f32_bf16(float f) { return (u16)pack_bf16(f, 0.0f); }
#endif

// A binary16 number.
DEV float f16_f32(u16 h) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h)); return v; }

// Bytes of b (numbers 4 to 7) and a (0 to 3): a digit of SELECT each, the lowest byte's last.
template <u32 SELECT> DEV u32 permute(u32 a, u32 b) { u32 r; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "n"(SELECT)); return r; }

// Loads of what is read once and never written while the kernel runs.
DEV u32x4 load_once(const void *p) {
  u32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEV u32x2 load_once8(const void *p) {
  u32x2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// A policy of the L2: what is loaded goes before anything else does. For weights that pass once a step, and are more than L2 holds, so that
// what comes again at once, or is waited for, stays: activations, tensor maps, the kernels themselves.
DEV u64 passing() { u64 p; asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p)); return p; }
DEV u32x4 load_once(const void *p, u64 policy) {
  u32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
  return v;
}

// The same, of what neighbours read again.
DEV u32 load_word(const void *p) { u32 v; asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
DEV u32 load_half(const void *p) { u16 v; asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p)); return v; }
DEV u32x2 load_pair(const void *p) {
  u32x2 v;
  asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// A word that another kernel may have written since this SM last read it: past the first-level cache.
DEV u32 load_fresh(const void *p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// What the thread wrote before is visible to the GPU to whoever sees what it writes after.
DEV void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Adds 1 and returns what was there; orders as fence_gpu.
DEV u32 count_up(u32 *p) {
  u32 n;
  asm volatile("atom.global.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(p) : "memory");
  return n;
}

// Programmatic dependent launch: dependents_may_launch lets the next kernel of the stream begin, which has to call
// wait_for_earlier before it touches anything that an earlier kernel writes or reads. Without the launch attribute, and before
// sm_90, both do nothing.
DEV void dependents_may_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A generic pointer to shared memory as a 32-bit address of that space.
DEV u32 shared_address(const void *p) { return (u32)(u64)(const __attribute__((address_space(3))) void *)p; }
DEV void store_shared(u32 address, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory"); }
#endif
