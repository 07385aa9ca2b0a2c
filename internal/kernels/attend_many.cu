// Attention of the sequences that have several rows in a step: prompts.
#include "attention.cuh"

constexpr int ROWS = 64, KEYS = 64;

// The query heads of a key head are rows beside each other: row r of head h of a group of n is packed row r·n + h, so that few rows
// still fill a tile. A block takes 64 packed rows, a warp 16, and passes keys and values in tiles of 64. With WAYS = 2 it has twice
// the warps: the first four take the even tiles, and add what the others found in the odd ones at the end. Where a prompt is cut
// does not matter to that. Grid: tiles of packed rows (the last first, which have most to do), key heads, sequences.
template <int D, int WAYS> DEV void attend_many(const Arguments &a) {
  DYNAMIC_SHARED(128);
  constexpr int THREADS = 128 * WAYS;
  constexpr u32 TILE = KEYS * D * 2, HALF = WAYS * TILE; // keys, or values, of a tile, and of those that are copied together
  const int warp = TID >> 5, way = warp / 4, lane = TID & 31, g = lane >> 2, t = lane & 3;
  wait_for_earlier();
  const Sequence s = sequence(a, CTAID_Z);
  const int first = ((int)NCTAID - 1 - (int)CTAID) * ROWS;
  const int kv_head = CTAID_Y, group = a.heads / a.kv_heads, packed = s.rows * group;
  if (s.rows < 2 || first >= packed) return;
  const int last = first + ROWS < packed ? first + ROWS : packed, mine = first + warp % 4 * 16;
  const int context = s.past + (last - 1) / group + 1, turns = (context + WAYS * KEYS - 1) / (WAYS * KEYS);
  const int lowest = s.past + mine / group, highest = s.past + (mine + 15) / group; // positions of this warp's rows
  const u32 base = shared_address(dynamic);
  const float scale = a.scale * LOG2E;

  auto load = [&](int i) {
    if (i < turns) {
      const u32 to = base + (i & 1) * 2 * HALF;
#pragma unroll
      for (int n = 0; n < KEYS * (D / 8) / 128; n++) {
        const int at = TID + n * THREADS, r = at / (D / 8), c = at % (D / 8), token = i * WAYS * KEYS + r;
        const bool valid = token < context;
        const u16 *key = key_of<D>(a, s, kv_head, valid ? token : 0) + c * 8;
        const u32 place = to + r * D * 2 + swizzle(r, c) * 16;
        copy_async(place, key, valid);
        copy_async(place + HALF, key + (D << a.page_shift), valid);
      }
    }
    copy_async_commit();
  };
  load(0);
  u32x4 q[D / 32][2];
  int position[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int at = mine + g + h * 8, r = at < last ? at : first;
    position[h] = s.past + r / group;
    const u16 *query = a.qkv + ((i64)(s.row + r / group) * (a.heads + 2 * a.kv_heads) + kv_head * group + r % group) * D;
#pragma unroll
    for (int j = 0; j < D / 32; j++) q[j][h] = *(const u32x4 *)(query + j * 32 + t * 8);
  }
  // Of row g of a tile of 16 in the first half and row g + 8 in the second.
  float top[2] = {NONE, NONE}, total[2] = {}, sum[D / 8][4] = {};
  for (int i = 0; i < turns; i++) {
    load(i + 1);
    copy_async_wait<1>();
    __syncthreads();
    const u32 keys = base + (i & 1) * 2 * HALF + way * TILE, values = keys + HALF;
    const int k0 = (i * WAYS + way) * KEYS;
    if (k0 <= highest) { // else no row of this warp sees the tile
      float score[KEYS / 8][4] = {};
#pragma unroll
      for (int j = 0; j < D / 32; j++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
          const u32x4 k = load_shared16(keys + (n * 8 + g) * D * 2 + swizzle(g, j * 4 + t) * 16);
#pragma unroll
          for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j][0], h), half_of(q[j][1], h), half_of(k, h));
        }
      const bool partly = k0 + KEYS - 1 > lowest;
      float high[2] = {top[0], top[1]};
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          score[n][e] *= scale;
          if (partly && k0 + n * 8 + t * 2 + (e & 1) > position[e >> 1]) score[n][e] = NONE;
          high[e >> 1] = __builtin_fmaxf(high[e >> 1], score[n][e]);
        }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        high[h] = __builtin_fmaxf(high[h], shfl_xor(high[h], 1));
        high[h] = __builtin_fmaxf(high[h], shfl_xor(high[h], 2));
        const float bottom = high[h] == NONE ? 0 : high[h], fade = ex2(top[h] - bottom);
        top[h] = high[h];
        high[h] = bottom;
        total[h] *= fade;
#pragma unroll
        for (int n = 0; n < D / 8; n++) sum[n][h * 2] *= fade, sum[n][h * 2 + 1] *= fade;
      }
#pragma unroll
      for (int n = 0; n < KEYS / 8; n += 2) {
        u32 p[4]; // tokens n·8 + 2t, + 1 of row g, of row g + 8; then the same 8 tokens on
#pragma unroll
        for (int h = 0; h < 4; h++) {
          const float *v = &score[n + (h >> 1)][(h & 1) * 2], x = ex2(v[0] - high[h & 1]), y = ex2(v[1] - high[h & 1]);
          total[h & 1] += x + y;
          p[h] = pack_bf16(x, y);
        }
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
          u32 v[4];
          const int r = n * 8 + (lane & 15);
          load_transposed(v, values + r * D * 2 + swizzle(r, c + (lane >> 4)) * 16);
          mma_16x8x16(sum[c], (u32x2){p[0], p[2]}, (u32x2){p[1], p[3]}, (u32x2){v[0], v[1]});
          mma_16x8x16(sum[c + 1], (u32x2){p[0], p[2]}, (u32x2){p[1], p[3]}, (u32x2){v[2], v[3]});
        }
      }
    }
    __syncthreads();
  }
  // Not before: blocks of the next kernel would take room from this one's.
  dependents_may_launch();
  copy_async_wait<0>();
  float other_top[2] = {NONE, NONE}, other_total[2] = {}; // of the odd tiles
  float *exchange = (float *)dynamic + warp % 4 * (D / 2 + 4) * 32 + lane; // a word a lane at a time
#pragma unroll
  for (int h = 0; h < 2; h++) {
    total[h] += shfl_xor(total[h], 1);
    total[h] += shfl_xor(total[h], 2);
  }
  if constexpr (WAYS == 2) {
    if (way == 1) {
#pragma unroll
      for (int h = 0; h < 2; h++) exchange[h * 32] = top[h], exchange[(2 + h) * 32] = total[h];
#pragma unroll
      for (int n = 0; n < D / 2; n++) exchange[(4 + n) * 32] = sum[n >> 2][n & 3];
    }
    __syncthreads();
    if (way == 1) return;
#pragma unroll
    for (int h = 0; h < 2; h++) other_top[h] = exchange[h * 32], other_total[h] = exchange[(2 + h) * 32];
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = mine + g + h * 8;
    if (r >= last) continue;
    const float high = __builtin_fmaxf(top[h], other_top[h]), bottom = high == NONE ? 0 : high;
    const float f = ex2(top[h] - bottom), of = ex2(other_top[h] - bottom), all = total[h] * f + other_total[h] * of;
    u32 *out = (u32 *)(a.out + ((i64)(s.row + r / group) * a.heads + kv_head * group + r % group) * D) + t;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
      float x = sum[n][h * 2], y = sum[n][h * 2 + 1];
      if constexpr (WAYS == 2) x = x * f + exchange[(4 + n * 4 + h * 2) * 32] * of, y = y * f + exchange[(5 + n * 4 + h * 2) * 32] * of;
      out[n * 4] = pack_bf16(x / all, y / all);
    }
  }
}

// Heads of 128 need so many registers that twice the warps would not fit in beside each other.
#define ATTEND(D, WAYS) \
  KERNEL __launch_bounds__(128 * WAYS, 2) attend_many_##D(ARGUMENTS) { attend_many<D, WAYS>(THEM); }
ATTEND(64, 2)
ATTEND(128, 1)
