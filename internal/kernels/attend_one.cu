// Attention of the sequences that have one row in a step: decoding.
#include "attention.cuh"
#include "hopper.cuh"
#include "rope.cuh"

constexpr int WARPS = 8, HEADS = 8, BLOCK = 16, SPLIT = 256, SPLITS = 16;

// What a block has found for its part of the tokens: of each head the highest score, the sum of the weights, and the weighted sum
// of the values.
template <int D> struct Found { float sum[HEADS][D], top[HEADS], total[HEADS]; };

// Adds n of up to MOST parts, of which part(i, member) reads a word: top, total or sum, for an element of a head.
template <int MOST, typename Part> DEV float add_parts(int n, Part part) {
  float tops[MOST], totals[MOST], sums[MOST], top = NONE, total = 0, sum = 0;
#pragma unroll
  for (int i = 0; i < MOST; i++) {
    tops[i] = NONE, totals[i] = 0, sums[i] = 0;
    if (i < n) tops[i] = part(i, 0), totals[i] = part(i, 1), sums[i] = part(i, 2);
  }
#pragma unroll
  for (int i = 0; i < MOST; i++) top = __builtin_fmaxf(top, tops[i]);
  const float base = top == NONE ? 0 : top;
#pragma unroll
  for (int i = 0; i < MOST; i++) {
    const float f = ex2(tops[i] - base);
    total = __builtin_fmaf(f, totals[i], total);
    sum = __builtin_fmaf(f, sums[i], sum);
  }
  return sum / total;
}

// Copies keys (half 0) or values (1) of up to 16 tokens of a page to shared memory, and zeros for those that aren't there.
template <int D> DEV void load_block(u32 to, const u16 *key, int half, int valid, int page_shift) {
  constexpr int CHUNKS = D / 8, STEP = 32 / CHUNKS; // rows that a warp copies at a time
  const int lane = TID & 31, row = lane / CHUNKS, chunk = lane % CHUNKS;
  const u16 *from = key + (half ? D << page_shift : 0) + row * D + chunk * 8;
  to += row * D * 2;
#pragma unroll
  for (int r = 0; r < BLOCK; r += STEP) copy_async(to + r * D * 2 + swizzle(row + r, chunk) * 16, from + r * D, row + r < valid);
}

// The rotary embedding that a step's row still needs, and whose key and value its page. cos and sin: float [positions][D/2]. Pairs are
// elements i and i + D/2, or, interleaved, 2·i and 2·i + 1. A row's position is the number of tokens before it.
struct Rope { const float *cos, *sin; int interleaved; };

DEV void rotate(const Rope &rope, i64 at, float &x, float &y) { rotate_pair(rope.cos[at], rope.sin[at], x, y); }

// Rotates a query of which this lane has elements j·32 + (lane%4)·8 … + 7.
template <int D> DEV void rotate_query(const Rope &rope, int position, u32x4 (&q)[D / 32]) {
  const i64 base = (i64)position * (D / 2);
  const int t = TID & 3;
  if (rope.interleaved) {
#pragma unroll
    for (int j = 0; j < D / 32; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float x = bf16_lo(q[j][e]), y = bf16_hi(q[j][e]);
        rotate(rope, base + j * 16 + t * 4 + e, x, y);
        q[j][e] = pack_bf16(x, y);
      }
    return;
  }
#pragma unroll
  for (int j = 0; j < D / 64; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const i64 at = base + j * 32 + t * 8 + e * 2;
      u32 &low = reinterpret_cast<u32 *>(&q[j])[e], &high = reinterpret_cast<u32 *>(&q[j + D / 64])[e];
      float x0 = bf16_lo(low), x1 = bf16_hi(low), y0 = bf16_lo(high), y1 = bf16_hi(high);
      rotate(rope, at, x0, y0);
      rotate(rope, at + 1, x1, y1);
      low = pack_bf16(x0, x1);
      high = pack_bf16(y0, y1);
    }
}

// The row's own key, rotated, and value, to shared memory (key, value) and to their page, by a warp.
template <int D> DEV void store_own(u16 (*own)[D], const Rope &rope, const u16 *k, const u16 *v, int position, u16 *page, int page_shift) {
  for (int pair = TID & 31; pair < D / 2; pair += 32) {
    const int first = rope.interleaved ? pair * 2 : pair, second = rope.interleaved ? pair * 2 + 1 : pair + D / 2;
    float x = bf16_f32(k[first]), y = bf16_f32(k[second]);
    rotate(rope, (i64)position * (D / 2) + pair, x, y);
    own[0][first] = page[first] = f32_bf16(x);
    own[0][second] = page[second] = f32_bf16(y);
    ((u32 *)own[1])[pair] = ((u32 *)(page + (D << page_shift)))[pair] = ((const u32 *)v)[pair];
  }
  __nvvm_bar_warp_sync(0xffffffffu);
}

// Puts it into row r of a block of keys or values that was copied without it.
template <int D> DEV void put_own(u32 to, int r, const u16 *own) {
  const int lane = TID & 31;
  if (lane < D / 8) {
    const u32x4 v = load_shared16(shared_address(own) + lane * 16);
    store_shared16(to + r * D * 2 + swizzle(r, lane) * 16, v);
  }
  __nvvm_bar_warp_sync(0xffffffffu);
}

// A block takes a part of a sequence's tokens for one key head and up to 8 of its query heads, a warp 16 tokens at a time, copied
// STAGES times ahead. Parts are of SPLIT tokens, or of the smallest multiple that makes no more than SPLITS. They are added by the
// cluster of the parts' blocks, or without clusters by the block that finishes last, in the same order.
//
// partial: Found<D> [sequence][group of heads][part]; arrived: u32 [sequence][group of heads], 0 before and after.
// Grid: parts, kv_heads · groups of 8 query heads, sequences.
template <int D, int STAGES, bool CLUSTER, bool ROPE> DEV void attend_one(const Arguments &a, Found<D> *partial, u32 *arrived, const Rope &rope) {
  DYNAMIC_SHARED(128);
  __shared__ Found<D> found;
  __shared__ float tops[WARPS][HEADS], totals[WARPS][HEADS];
  __shared__ __attribute__((aligned(16))) u16 own[2][D];
  __shared__ u32 before;
  constexpr u32 HALF = BLOCK * D * 2;
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  dependents_may_launch();
  wait_for_earlier();
  const Sequence s = sequence(a, CTAID_Z);
  const int context = s.past + 1, step = SPLIT * ((context + SPLIT * SPLITS - 1) / (SPLIT * SPLITS));
  const int parts = (context + step - 1) / step, part = CTAID;
  if (s.rows != 1 || part >= parts) return;
  const int ratio = a.heads / a.kv_heads, groups = (ratio + HEADS - 1) / HEADS;
  const int head = CTAID_Y / groups, first = CTAID_Y % groups * HEADS, mine = ratio - first < HEADS ? ratio - first : HEADS;
  const int end = (part + 1) * step < context ? (part + 1) * step : context;
  const float scale = a.scale * LOG2E;
  const u32 ring = shared_address(dynamic) + warp * STAGES * 2 * HALF;

  auto load = [&](int i, int half) {
    const int k0 = part * step + (i * WARPS + warp) * BLOCK;
    const int there = ROPE && end == context ? end - 1 : end; // the row's own are put there
    if (k0 < end) load_block<D>(ring + (i % STAGES * 2 + half) * HALF, key_of<D>(a, s, head, k0), half, there - k0, a.page_shift);
    copy_async_commit();
  };
#pragma unroll
  for (int i = 0; i < STAGES; i++) load(i, 0), load(i, 1);
  // Row g of the tensor core's tile is query head g; the lower 8 rows are not used.
  const u16 *query = a.qkv + (i64)s.row * (a.heads + 2 * a.kv_heads) * D + (head * ratio + first + g) * D;
  u32x4 q[D / 32];
#pragma unroll
  for (int j = 0; j < D / 32; j++) q[j] = g < mine ? *(const u32x4 *)(query + j * 32 + t * 8) : (u32x4){0, 0, 0, 0};
  const int own_block = (s.past - part * step) / BLOCK; // that of the row itself
  const bool owner = ROPE && end == context && own_block % WARPS == warp;
  if constexpr (ROPE) {
    rotate_query<D>(rope, s.past, q);
    const u16 *k = a.qkv + ((i64)s.row * (a.heads + 2 * a.kv_heads) + a.heads + head) * D;
    if (owner) store_own<D>(own, rope, k, k + a.kv_heads * D, s.past, (u16 *)key_of<D>(a, s, head, s.past), a.page_shift);
  }
  // sum is transposed: a row is an element of the head, columns 2·t and 2·t + 1 are heads.
  float top = NONE, total = 0, sum[D / 16][4] = {};
  for (int i = 0;; i++) {
    const int k0 = part * step + (i * WARPS + warp) * BLOCK;
    if (k0 >= end) break;
    const u32 keys = ring + i % STAGES * 2 * HALF, values = keys + HALF;
    const bool has_own = owner && own_block / WARPS == i;
    copy_async_wait<2 * STAGES - 1>();
    __nvvm_bar_warp_sync(0xffffffffu);
    if constexpr (ROPE)
      if (has_own) put_own<D>(keys, s.past % BLOCK, own[0]);
    float score[2][4] = {};
#pragma unroll
    for (int j = 0; j < D / 32; j++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const u32x4 k = load_shared16(keys + (n * 8 + g) * D * 2 + swizzle(g, j * 4 + t) * 16);
#pragma unroll
        for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j], h), (u32x2){0, 0}, half_of(k, h));
      }
    __nvvm_bar_warp_sync(0xffffffffu);
    load(i + STAGES, 0);
    float high = top;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        score[n][h] = k0 + n * 8 + t * 2 + h < end ? score[n][h] * scale : NONE;
        high = __builtin_fmaxf(high, score[n][h]);
      }
    high = __builtin_fmaxf(high, shfl_xor(high, 1));
    high = __builtin_fmaxf(high, shfl_xor(high, 2));
    const float base = high == NONE ? 0 : high, fade = ex2(top - base);
    top = high;
    float p[4];
#pragma unroll
    for (int h = 0; h < 4; h++) p[h] = ex2(score[h >> 1][h & 1] - base);
    total = __builtin_fmaf(total, fade, (p[0] + p[1]) + (p[2] + p[3]));
    const float fade0 = shfl(fade, t * 8), fade1 = shfl(fade, t * 8 + 4);
    const u32x2 weight = {pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])};
    copy_async_wait<2 * STAGES - 1>();
    __nvvm_bar_warp_sync(0xffffffffu);
    if constexpr (ROPE)
      if (has_own) put_own<D>(values, s.past % BLOCK, own[1]);
    const int row = (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      u32 v[4];
      load_transposed(v, values + row * D * 2 + swizzle(row, j * 2 + (lane >> 3 & 1)) * 16);
#pragma unroll
      for (int h = 0; h < 4; h++) sum[j][h] *= h & 1 ? fade1 : fade0;
      mma_16x8x16(sum[j], (u32x2){v[0], v[2]}, (u32x2){v[1], v[3]}, weight);
    }
    __nvvm_bar_warp_sync(0xffffffffu);
    load(i + STAGES, 1);
  }
  total += shfl_xor(total, 1);
  total += shfl_xor(total, 2);
  if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
  copy_async_wait<0>();
  __syncthreads();
  // The ring is free.
  float *sums = (float *)dynamic;
#pragma unroll
  for (int j = 0; j < D / 16; j++)
#pragma unroll
    for (int h = 0; h < 4; h++) sums[(warp * HEADS + t * 2 + (h & 1)) * D + j * 16 + (h >> 1) * 8 + g] = sum[j][h];
  __syncthreads();

  u16 *out = a.out + (i64)s.row * a.heads * D + (head * ratio + first) * D;
  for (int e = TID; e < HEADS * D; e += 32 * WARPS) {
    const int h = e / D, d = e % D;
    float most = NONE, weight = 0, value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = __builtin_fmaxf(most, tops[w][h]);
    const float base = most == NONE ? 0 : most;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float f = ex2(tops[w][h] - base);
      weight = __builtin_fmaf(f, totals[w][h], weight);
      value = __builtin_fmaf(f, sums[w * HEADS * D + e], value);
    }
    found.sum[h][d] = value;
    if (d == 0) found.top[h] = most, found.total[h] = weight;
    if (parts == 1 && h < mine) out[e] = f32_bf16(value / weight);
  }
  if (parts == 1) return;
  if constexpr (CLUSTER) {
#if __CUDA_ARCH__ >= 900
    cluster_sync();
    const u32 at = shared_address(&found);
    for (int e = TID + part * 32 * WARPS; e < mine * D; e += parts * 32 * WARPS) {
      const u32 top_at = at + (HEADS * D + e / D) * 4;
      out[e] = f32_bf16(add_parts<SPLITS / 2>(parts, [&](int i, int member) {
        return cluster_load(member == 0 ? top_at : member == 1 ? top_at + HEADS * 4 : at + e * 4, i);
      }));
    }
    cluster_sync(); // the others' shared memory is there until all have read
#endif
    return;
  }
  const i64 slot = (i64)CTAID_Z * NCTAID_Y + CTAID_Y;
  float *mine_at = (float *)(partial + slot * SPLITS + part);
  __syncthreads();
  for (int e = TID; e < (int)sizeof(found) / 4; e += 32 * WARPS) mine_at[e] = ((float *)&found)[e];
  // Every thread's part is visible to the GPU before the block counts as arrived.
  fence_gpu();
  __syncthreads();
  if (TID == 0) before = count_up(arrived + slot);
  __syncthreads();
  if ((int)before != parts - 1) return;
  fence_gpu();
  if (TID == 0) arrived[slot] = 0;
  const Found<D> *all = partial + slot * SPLITS;
  for (int e = TID; e < mine * D; e += 32 * WARPS) {
    const int h = e / D;
    out[e] = f32_bf16(add_parts<SPLITS>(parts, [&](int i, int member) { return member == 0 ? all[i].top[h] : member == 1 ? all[i].total[h] : all[i].sum[h][e % D]; }));
  }
}

#define ROPE_ARGUMENTS const float *cos, const float *sin, int interleaved
#define ATTEND(D)                                                                                                                \
  KERNEL __launch_bounds__(32 * WARPS, D == 64 ? 3 : 2) attend_one_##D(ARGUMENTS, Found<D> *partial, u32 *arrived) {                              \
    attend_one<D, 128 / D, false, false>(THEM, partial, arrived, {});                                                            \
  }                                                                                                                              \
  KERNEL __launch_bounds__(32 * WARPS, D == 64 ? 3 : 2) attend_rope_##D(ARGUMENTS, Found<D> *partial, u32 *arrived, ROPE_ARGUMENTS) {             \
    attend_one<D, 128 / D, false, true>(THEM, partial, arrived, {cos, sin, interleaved});                                        \
  }
ATTEND(64)
ATTEND(128)
#if __CUDA_ARCH__ >= 900
// partial and arrived are not used.
#define ATTEND_CLUSTER(D)                                                                                                        \
  KERNEL __launch_bounds__(32 * WARPS, D == 64 ? 3 : 2) attend_cluster_##D(ARGUMENTS, Found<D> *partial, u32 *arrived) {                 \
    attend_one<D, 128 / D, true, false>(THEM, partial, arrived, {});                                                             \
  }                                                                                                                              \
  KERNEL __launch_bounds__(32 * WARPS, D == 64 ? 3 : 2) attend_rope_cluster_##D(ARGUMENTS, Found<D> *partial, u32 *arrived, ROPE_ARGUMENTS) {     \
    attend_one<D, 128 / D, true, true>(THEM, partial, arrived, {cos, sin, interleaved});                                         \
  }
ATTEND_CLUSTER(64)
ATTEND_CLUSTER(128)
#endif
