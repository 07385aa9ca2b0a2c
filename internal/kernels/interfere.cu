// What `cotenant interfere` runs: victims and aggressors of known bytes and operations. Each leaves something that a plain reference can
// compute (interfere.go). They use nothing newer than sm_80.
#include "nv.cuh"

DEV void atomic_add(u32 *p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

// arithmetic: each thread turns four points in the plane for rounds steps, of two dependent multiply-adds each (Minsky's circle, which
// neither grows nor settles): 8 multiply-adds a round. out[blocks] += the bits of every thread's last values, as integers.
KERNEL __launch_bounds__(1024) arithmetic(u32 *out, u32 rounds) {
  float x[4], y[4];
  const float s = 0.015625f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[i] = 1.0f + (float)(TID & 31) * 0.03125f + (float)i;
    y[i] = (float)(CTAID & 63) * 0.015625f - (float)i;
  }
  for (u32 r = 0; r < rounds; r++) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = __builtin_fmaf(y[i], s, x[i]);
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = __builtin_fmaf(x[i], -s, y[i]);
  }
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) sum += __builtin_bit_cast(u32, x[i]) ^ __builtin_bit_cast(u32, y[i]);
  sum = warp_sum(sum);
  if ((TID & 31) == 0) atomic_add(out + CTAID, sum);
}

// stream: to[n] = from[n] + 1 in every word, by any grid; n counts 16 bytes. Nothing is meant to stay in a cache.
KERNEL __launch_bounds__(1024) stream(const u32x4 *from, u32x4 *to, u64 n) {
  const u64 step = (u64)NCTAID * NTID;
  u64 i = (u64)CTAID * NTID + TID;
  for (; i + 3 * step < n; i += 4 * step) {
    u32x4 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = load_once(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 4; k++) __builtin_nontemporal_store(v[k] + 1, to + i + k * step);
  }
  for (; i < n; i += step) __builtin_nontemporal_store(load_once(from + i) + 1, to + i);
}

DEV u32x4 load_l2(const void *p) {
  u32x4 v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// reread: all blocks together read n times 16 bytes passes times, past the L1; *out += the sum of all words, passes times.
KERNEL __launch_bounds__(1024) reread(const u32x4 *from, u64 n, u32 passes, u32 *out) {
  const u64 step = (u64)NCTAID * NTID;
  u32x4 sum = {0, 0, 0, 0};
  for (u32 p = 0; p < passes; p++) {
    u64 i = (u64)CTAID * NTID + TID;
    for (; i + 3 * step < n; i += 4 * step) {
      u32x4 v[4];
#pragma unroll
      for (int k = 0; k < 4; k++) v[k] = load_l2(from + i + k * step);
#pragma unroll
      for (int k = 0; k < 4; k++) sum += v[k];
    }
    for (; i < n; i += step) sum += load_l2(from + i);
  }
  const u32 all = warp_sum(sum.x + sum.y + sum.z + sum.w);
  if ((TID & 31) == 0) atomic_add(out, all);
}

// tiny: *out += 1.
KERNEL tiny(u32 *out) {
  if (TID == 0) atomic_add(out, 1);
}

// tickets: blocks take tickets from state[0] until there are none, hold their SM for ns of each, and count them in out[0]. The last block
// to end puts state back to zero, for the next launch.
KERNEL __launch_bounds__(1024) tickets(u32 *state, u32 *out, u32 count, u32 ns) {
  __shared__ u32 mine;
  u32 taken = 0;
  for (;;) {
    if (TID == 0) mine = __atomic_fetch_add(state, 1u, __ATOMIC_RELAXED);
    __syncthreads();
    const u32 t = mine;
    __syncthreads();
    if (t >= count) break;
    const u64 begin = global_timer();
    while (global_timer() - begin < ns) {
    }
    taken++;
  }
  if (TID != 0) return;
  atomic_add(out, taken);
  if (__atomic_fetch_add(state + 1, 1u, __ATOMIC_ACQ_REL) == NCTAID - 1) {
    __atomic_store_n(state, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(state + 1, 0u, __ATOMIC_RELAXED);
  }
}

// scatter: p[n] of bf16 gets small numbers that depend on the place alone: (hash(i) % 17 - 8) / 64.
KERNEL __launch_bounds__(1024) scatter(u16 *p, u64 n) {
  for (u64 i = (u64)CTAID * NTID + TID; i < n; i += (u64)NCTAID * NTID) {
    u32 h = (u32)i * 2654435761u;
    h ^= h >> 15;
    p[i] = f32_bf16((float)((int)(h % 17u) - 8) * 0.015625f);
  }
}
