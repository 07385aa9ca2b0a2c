// Kernels that prove where and whether work runs. They use nothing newer than sm_70.
#include "nv.cuh"

// witness: every block says on which SM it runs, when it began and ended, and a number that depends on nothing but seed,
// block and rounds. Blocks stay for at least spin_ns, so that the blocks of a launch spread over every SM that they may use.
//   smid[blocks], value[blocks], times[2 * blocks] (begin and end in ns of %globaltimer); block size: a multiple of 32, at
//   most 1024. kernels.WitnessValue computes value.
KERNEL __launch_bounds__(1024) witness(u32 *smid, u32 *value, u64 *times, u32 seed, u32 rounds, u64 spin_ns) {
  __shared__ u32 part[32];
  const u64 begin = global_timer();
  u32 x = seed ^ ((CTAID * NTID + TID) * 2654435761u);
  for (u32 i = 0; i < rounds; i++) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    x += 0x9e3779b9u;
  }
  x = warp_sum(x);
  if ((TID & 31) == 0) part[TID >> 5] = x;
  __syncthreads();
  if (TID < 32) {
    u32 sum = warp_sum(TID < NTID / 32 ? part[TID] : 0u);
    if (TID == 0) {
      value[CTAID] = sum;
      smid[CTAID] = sm_id();
    }
  }
  while (global_timer() - begin < spin_ns) {
  }
  __syncthreads();
  if (TID == 0) {
    times[2 * CTAID] = begin;
    times[2 * CTAID + 1] = global_timer();
  }
}

// fill: p[0..n) = value, by any grid.
KERNEL __launch_bounds__(1024) fill(u32 *p, u64 n, u32 value) {
  for (u64 i = (u64)CTAID * NTID + TID; i < n; i += (u64)NCTAID * NTID) p[i] = value;
}
