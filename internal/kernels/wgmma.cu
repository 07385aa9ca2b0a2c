// Matrix products on Hopper: the rows of w are the rows of the tensor core's tile and the rows of x its columns, whose number can be
// any multiple of 8. So one kernel serves from 8 rows of x, where w streams through shared memory, to thousands.
//
// One warp group loads tiles of w and x by TMA into a ring of stages; others multiply, 64 rows of w at a time.
#include "hopper.cuh"
#include "product.cuh"

// How the sum over K runs: in one go, by the kernels for many rows; in slices, one after the other; in slices that the blocks of a
// cluster share out.
enum { MANY, SLICED, CLUSTER };

template <int XT> DEV void wgmma_tile(float (&d)[XT / 2], u64 a, u64 b, int keep) {
  if constexpr (XT == 8) wgmma_64x8x64(d, a, b, keep);
  else if constexpr (XT == 16) wgmma_64x16x64(d, a, b, keep);
  else if constexpr (XT == 32) wgmma_64x32x64(d, a, b, keep);
  else if constexpr (XT == 64) wgmma_64x64x64(d, a, b, keep);
  else if constexpr (XT == 128) wgmma_64x128x64(d, a, b, keep);
  else if constexpr (XT == 144) wgmma_64x144x64(d, a, b, keep);
  else if constexpr (XT == 176) wgmma_64x176x64(d, a, b, keep);
  else if constexpr (XT == 200) wgmma_64x200x64(d, a, b, keep);
  else wgmma_64x256x64(d, a, b, keep);
}

// The tile of this number: 8 tiles of x share a tile of w before the next one is read, which L2 then has.
struct Tile { int x, w; };
DEV Tile tile_of(int i, int x_tiles, int w_tiles) {
  const int group = 8 * w_tiles, first = i / group * 8, in = i % group, rows = x_tiles - first < 8 ? x_tiles - first : 8;
  return {first + in % rows, in / rows};
}

// Adds the slices of a tile of 64 × XT: every block of the cluster does so for some of the rows of x, by reading from all. Slice s is
// in the shared memory of block s modulo the cluster's size, as its s over that size; sums lie row of x by row of x, PITCH floats
// apart.
constexpr int PITCH = 68, MOST_SLICES = 8;
template <int XT> DEV void add_slices(u32 part, int count, void *c, const float *bias, int M, int N, int mode, int m0, int w0) {
  const int size = (int)cluster_size(), rank = (int)cluster_rank(), first = rank * XT / size, rows = (rank + 1) * XT / size - first;
  for (int e = TID; e < rows * 32; e += NTID) {
    const int r = e & 7, tile = e >> 3 & 3, m = first + (e >> 5);
    const u32 at = part + (m * PITCH + tile * 16 + r) * 4;
    float low[MOST_SLICES] = {}, high[MOST_SLICES] = {};
#pragma unroll
    for (int s = 0; s < MOST_SLICES; s++)
      if (s < count) {
        const u32 from = at + s / size * (XT * PITCH * 4);
        low[s] = cluster_load(from, s % size);
        high[s] = cluster_load(from + 32, s % size);
      }
    float l = 0, h = 0;
#pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) l += low[s], h += high[s];
    if (m0 + m < M) store_pair(c, bias, N, mode, m0 + m, w0 * 4 + tile, r, l, h);
  }
}

// The order of work of a block, which the loading thread and the multiplying groups walk alike: tiles, slices of them, blocks along K.
struct Walk { int x_tiles, tiles, blocks, count, tile, step, slice, slice_step; };
template <int FORM> DEV Walk walk_of(int M, int N, int K, int xt, int wt) {
  const int x_tiles = (M + xt - 1) / xt, count = slices(K), size = FORM == CLUSTER ? (int)cluster_size() : 1;
  return {x_tiles, x_tiles * ((N + wt - 1) / wt), (K + 63) / 64, count, (int)CTAID / size, (int)NCTAID / size,
          FORM == CLUSTER ? (int)cluster_rank() : 0, size};
}

// x and w are tensor maps in global memory, boxes of 64 × XT and 64 × 64; for SWIGLU w has rank 4 (product.go).
template <int CW, int XT, int ST, int FORM>
DEV void product(const void *x, const void *w, void *c, const float *bias, int M, int N, int K, int mode) {
  DYNAMIC_SHARED(1024);
  __shared__ __attribute__((aligned(8))) u64 bars[2 * ST];
  constexpr u32 WB = CW * 8192, XB = XT * 128;
  const u32 full = shared_address(bars), empty = full + 8 * ST;
  const u32 ws = (shared_address(dynamic) + 1023) & ~1023u, xs = ws + ST * WB;
  const u32 part = xs + ST * XB; // CLUSTER: the slices' sums
  const int group = TID >> 7;
  const Walk walk = walk_of<FORM>(M, N, K, XT, 64 * CW);
  auto begin = [&](int s) { return slice_begin(walk.blocks, s, walk.count); };
  dependents_may_launch();
  if (TID == 0) {
    tma_prefetch_map(w);
    tma_prefetch_map(x);
    for (int i = 0; i < ST; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, CW);
    }
    barrier_init_visible();
  }
  __syncthreads();
  if (group == 0) {
    if constexpr (CW > 1) registers_down<24>();
    if (TID == 0) {
      const u64 policy = passing();
      auto load_w = [&](int s, int tile, int block) {
        barrier_expect(full + 8 * s, WB + XB);
#pragma unroll
        for (int i = 0; i < CW; i++) {
          const int at = tile * CW + i;
          const u32 to = ws + s * WB + i * 8192, bar = full + 8 * s;
          if constexpr (XT <= 64)
            if (walk.x_tiles == 1) { // else w is read again
              if (mode == SWIGLU) tma_load_4d(to, w, block * 64, 0, 0, at * 4, bar, policy);
              else tma_load_2d(to, w, block * 64, at * 64, bar, policy);
              continue;
            }
          if (mode == SWIGLU) tma_load_4d(to, w, block * 64, 0, 0, at * 4, bar);
          else tma_load_2d(to, w, block * 64, at * 64, bar);
        }
      };
      int ahead = 0; // stages whose weights were loaded before the wait for the kernel that makes x
      if (walk.tile < walk.tiles)
        for (int s = walk.slice; s < walk.count; s += walk.slice_step)
          for (int b = begin(s); b < begin(s + 1) && ahead < ST; b++) load_w(ahead++, tile_of(walk.tile, walk.x_tiles, walk.tiles / walk.x_tiles).w, b);
      wait_for_earlier();
      int stage = 0;
      u32 phase = 1; // what a barrier waits for passes at once in the first round
      for (int i = walk.tile; i < walk.tiles; i += walk.step) {
        const Tile tl = tile_of(i, walk.x_tiles, walk.tiles / walk.x_tiles);
        for (int s = walk.slice; s < walk.count; s += walk.slice_step)
          for (int b = begin(s); b < begin(s + 1); b++) {
            if (ahead == 0) {
              barrier_wait(empty + 8 * stage, phase);
              load_w(stage, tl.w, b);
            } else ahead--;
            tma_load_2d(xs + stage * XB, x, b * 64, tl.x * XT, full + 8 * stage);
            if (++stage == ST) stage = 0, phase ^= 1;
          }
      }
    }
    if constexpr (FORM != CLUSTER) return;
  } else {
    if constexpr (CW == 2) registers_up<240>();
    const int me = group - 1, warp = TID >> 5 & 3;
    const bool leader = (TID & 127) == 0;
    wait_for_earlier();
    int stage = 0;
    u32 phase = 0;
    float sum[XT / 2];
    for (int i = walk.tile; i < walk.tiles; i += walk.step) {
      const Tile tl = tile_of(i, walk.x_tiles, walk.tiles / walk.x_tiles);
      float total[FORM == SLICED ? XT / 2 : 1] = {};
      for (int s = walk.slice; s < walk.count; s += walk.slice_step) {
        int last = -1;
        for (int b = begin(s); b < begin(s + 1); b++) {
          barrier_wait(full + 8 * stage, phase);
          wgmma_fence();
          wgmma_tile<XT>(sum, wgmma_operand(ws + stage * WB + me * 8192), wgmma_operand(xs + stage * XB), last >= 0);
          wgmma_commit();
          wgmma_wait<1>();
          if (last >= 0 && leader) barrier_arrive(empty + 8 * last);
          last = stage;
          if (++stage == ST) stage = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        if (last >= 0 && leader) barrier_arrive(empty + 8 * last);
        if constexpr (FORM == SLICED)
          if (last >= 0)
#pragma unroll
            for (int j = 0; j < XT / 2; j++) total[j] += sum[j];
        if constexpr (FORM == CLUSTER) {
          const u32 at = part + s / walk.slice_step * (XT * PITCH * 4) + ((TID & 3) * 2 * PITCH + warp * 16 + (TID >> 2 & 7)) * 4;
#pragma unroll
          for (int j = 0; j < XT / 8; j++)
#pragma unroll
            for (int h = 0; h < 4; h++)
              store_shared(at + ((j * 8 + (h & 1)) * PITCH + (h >> 1) * 8) * 4, last < 0 ? 0.0f : sum[j * 4 + h]);
        }
      }
      if constexpr (FORM == SLICED) store_tile<XT>(total, c, bias, M, N, mode, tl.x * XT, (tl.w * CW + me) * 4 + warp);
    }
  }
  if constexpr (FORM == CLUSTER) {
    static_assert(CW == 1, "one warp group has the whole tile");
    __nvvm_bar_warp_sync(0xffffffffu);
    cluster_sync();
    const Tile tl = tile_of(walk.tile, walk.x_tiles, walk.tiles / walk.x_tiles);
    add_slices<XT>(part, walk.count, c, bias, M, N, mode, tl.x * XT, tl.w);
    cluster_sync();
  }
}

// 128·CW + 128 threads, ST stages of (64·CW + XT)·128 bytes of dynamic shared memory, 1,024 to align them, and for a cluster
// XT·PITCH·4 for each of its blocks' slices. A cluster takes one tile.
#define PRODUCT(NAME, CW, XT, ST, FORM)                                                                                          \
  KERNEL __launch_bounds__(128 * (CW + 1), 1)                                                                                    \
      NAME(const void *x, const void *w, void *c, const float *bias, int M, int N, int K, int mode) {                            \
    product<CW, XT, ST, FORM>(x, w, c, bias, M, N, K, mode);                                                                     \
  }
PRODUCT(sliced_64x16, 1, 16, 8, SLICED)
PRODUCT(sliced_64x32, 1, 32, 8, SLICED)
PRODUCT(sliced_128x64, 2, 64, 8, SLICED)
PRODUCT(sliced_128x128, 2, 128, 6, SLICED)
PRODUCT(sliced_64x128, 1, 128, 8, SLICED)
PRODUCT(sliced_128x144, 2, 144, 6, SLICED)
PRODUCT(sliced_128x176, 2, 176, 5, SLICED)
PRODUCT(cluster_64x16, 1, 16, 8, CLUSTER)
PRODUCT(cluster_64x32, 1, 32, 6, CLUSTER)
PRODUCT(cluster_64x64, 1, 64, 6, CLUSTER)
PRODUCT(cluster_64x128, 1, 128, 4, CLUSTER)

// For many rows, K in one go. Two groups multiply: each 64 rows of the same tile of w, or, in TURNS, each a tile of its own while the
// other stores what it has; or one does, where a tile has 64 rows. GATED is for SWIGLU alone: a group that has 128 rows of w takes the 64
// gates for one product and their ups for the other, so that each thread has both for 16 neighbours.
template <int CW, int XT, int ST, bool TURNS, bool GATED>
DEV void ordered(const void *x, const void *w, void *c, const float *bias, int M, int N, int K, int mode) {
  DYNAMIC_SHARED(1024);
  __shared__ __attribute__((aligned(8))) u64 bars[2 * ST + 2];
  constexpr u32 WB = CW * 8192, XB = XT * 128;
  constexpr int MINE = TURNS ? CW : 1, GROUPS = TURNS ? 2 : CW; // how often a group has 64 rows of w; groups
  // What c holds where sums are added is read while they are made, as far as there are registers, or much of it at a time.
  constexpr bool EARLY = !TURNS && XT <= 200;
  constexpr int ROOM = (200 - MINE * XT / 2) / 4, TOGETHER = ROOM < 8 ? 4 : ROOM < 16 ? 8 : 16;
  const u32 full = shared_address(bars), empty = full + 8 * ST, turn = empty + 8 * ST;
  const u32 ws = (shared_address(dynamic) + 1023) & ~1023u, xs = ws + ST * WB;
  const int group = TID >> 7, x_tiles = (M + XT - 1) / XT, w_tiles = (N + 64 * CW - 1) / (64 * CW), tiles = x_tiles * w_tiles, blocks = (K + 63) / 64;
  if (TID == 0) {
    tma_prefetch_map(w);
    tma_prefetch_map(x);
    for (int i = 0; i < ST; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, TURNS ? 1 : CW);
    }
    for (int i = 0; i < 2; i++) barrier_init(turn + 8 * i, 1);
    barrier_init_visible();
  }
  __syncthreads();
  if (group == 0) {
    if constexpr (GROUPS > 1) registers_down<24>();
    if (TID) return;
    auto load_w = [&](int s, int tile, int block) {
      barrier_expect(full + 8 * s, WB + XB);
#pragma unroll
      for (int i = 0; i < CW; i++) {
        const int at = tile * CW + i;
        if (GATED || mode == SWIGLU) tma_load_4d(ws + s * WB + i * 8192, w, block * 64, 0, 0, at * 4, full + 8 * s);
        else tma_load_2d(ws + s * WB + i * 8192, w, block * 64, at * 64, full + 8 * s);
      }
    };
    int ahead = 0; // stages whose weights were loaded before the wait for the kernel that makes x
    if ((int)CTAID < tiles)
      for (; ahead < blocks && ahead < ST; ahead++) load_w(ahead, tile_of(CTAID, x_tiles, w_tiles).w, ahead);
    wait_for_earlier();
    int stage = 0;
    u32 phase = 1; // what a barrier waits for passes at once in the first round
    for (int i = CTAID; i < tiles; i += NCTAID) {
      const Tile tl = tile_of(i, x_tiles, w_tiles);
      for (int b = 0; b < blocks; b++) {
        if (ahead == 0) {
          barrier_wait(empty + 8 * stage, phase);
          load_w(stage, tl.w, b);
        } else ahead--;
        tma_load_2d(xs + stage * XB, x, b * 64, tl.x * XT, full + 8 * stage);
        if (++stage == ST) stage = 0, phase ^= 1;
      }
    }
    // Not before: blocks of the next kernel would take room, and w is not what takes time.
    dependents_may_launch();
    return;
  }
  if constexpr (GROUPS > 1) registers_up<240>();
  const int me = group - 1, warp = TID >> 5 & 3, lane = TID & 31;
  const bool leader = (TID & 127) == 0;
  wait_for_earlier();
  int stage = 0;
  u32 phase = 0, parity = me == 0; // the first group's first turn needs no other's end
  static_assert(!GATED || MINE == 2);
  constexpr u32 rows = GATED ? 2048 : 1024, apart = GATED ? 1024 : 8192; // from 8 rows of w to the next, and to the second product's
  float sum[MINE][XT / 2];
  for (int i = CTAID, n = 0; i < tiles; i += NCTAID, n++) {
    if constexpr (TURNS) {
      if ((n & 1) != me) {
        stage += blocks;
        phase ^= stage / ST & 1;
        stage %= ST;
        continue;
      }
      barrier_wait(turn + 8 * me, parity);
      parity ^= 1;
    }
    const Tile tl = tile_of(i, x_tiles, w_tiles);
    const int first = TURNS ? 0 : me, wt = (tl.w * CW + first) * 4 + warp;
    f32x4 old[XT / 8] = {};
    if constexpr (EARLY)
      if (mode == ADD_F32) load_f32<0, XT / 8>(old, (const float *)c, M, N, tl.x * XT, wt, lane >> 2, lane & 3);
    int last = -1;
    for (int b = 0; b < blocks; b++) {
      barrier_wait(full + 8 * stage, phase);
      wgmma_fence();
#pragma unroll
      for (int q = 0; q < MINE; q++) wgmma_tile<XT>(sum[q], wgmma_operand(ws + stage * WB + first * 8192 + q * apart, rows), wgmma_operand(xs + stage * XB), b > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0 && leader) barrier_arrive(empty + 8 * last);
      last = stage;
      if (++stage == ST) stage = 0, phase ^= 1;
    }
    if (TURNS && leader) barrier_arrive(turn + 8 * (me ^ 1));
    wgmma_wait<0>();
    if (leader) barrier_arrive(empty + 8 * last);
    if constexpr (GATED) store_gated<XT>(sum[0], sum[1], (u16 *)c, bias, M, N, tl.x * XT, tl.w * 4 + warp);
    else
#pragma unroll
      for (int q = 0; q < MINE; q++) store_tile<XT, TOGETHER>(sum[q], c, bias, M, N, mode, tl.x * XT, wt + 4 * q, EARLY ? &old : nullptr);
  }
}
// 384 threads, or 256 where one group multiplies; ST stages of (64·CW + XT)·128 bytes of dynamic shared memory, and 1,024 to align them.
#define ORDERED(NAME, CW, XT, ST, TURNS, GATED)                                                                                  \
  KERNEL __launch_bounds__(TURNS || CW == 2 ? 384 : 256, 1)                                                                      \
      NAME(const void *x, const void *w, void *c, const float *bias, int M, int N, int K, int mode) {                            \
    ordered<CW, XT, ST, TURNS, GATED>(x, w, c, bias, M, N, K, mode);                                                             \
  }
ORDERED(ordered_128x176_gated, 2, 176, 5, true, true)
ORDERED(ordered_128x176_turns, 2, 176, 5, true, false)
ORDERED(ordered_128x128_turns, 2, 128, 6, true, false)
ORDERED(ordered_128x256, 2, 256, 4, false, false)
ORDERED(ordered_128x200, 2, 200, 5, false, false)
ORDERED(ordered_128x176, 2, 176, 5, false, false)
ORDERED(ordered_128x144, 2, 144, 6, false, false)
ORDERED(ordered_64x128, 1, 128, 8, false, false)
ORDERED(ordered_64x64, 1, 64, 8, false, false)
