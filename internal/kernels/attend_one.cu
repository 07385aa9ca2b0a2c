// Attention of the sequences that have one row in a step: decoding.
#include "attention.cuh"
#include "hopper.cuh"
#include "rope.cuh"

#ifndef BULK
#define BULK (__CUDA_ARCH__ >= 900) // whether copies of whole pages to shared memory and barriers that count bytes are there
#endif

constexpr int HEADS = 8, BLOCK = 16, UNIT = 2 * BLOCK, TEAM = 4, ROUND = TEAM * UNIT, SPLIT = 2 * ROUND, SPLITS = 16, MOST_HALVES = 6;
// The tiles of a warp's ring where copies aren't of whole pages.
template <int D> constexpr int RING80 = D == 64 ? 4 : 2;

// What has been found for a part of the tokens: of each head the weighted sum of the values, the highest score, and the sum of the weights.
template <int D> struct Found { float sum[HEADS][D], top[HEADS], total[HEADS]; };

// The same of N elements of a head. Parts are added in their order, one after the other, wherever they were computed.
template <int N> struct Sum {
  float top = NONE, total = 0, value[N] = {};
  MEMBER void add(float other_top, float other_total, const float *other) {
    const float high = __builtin_fmaxf(top, other_top), base = high == NONE ? 0 : high, f = ex2(top - base), of = ex2(other_top - base);
    top = high;
    total = __builtin_fmaf(of, other_total, f * total);
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = __builtin_fmaf(of, other[i], f * value[i]);
  }
  MEMBER void store(u16 *out) const {
#pragma unroll
    for (int i = 0; i < N; i += 2) ((u32 *)out)[i / 2] = pack_bf16(value[i] / total, value[i + 1] / total);
  }
};

// Adds n parts, of which part(i, member) reads a word: top, total, or the sum of the element member - 2.
template <typename Part> DEV Sum<2> add_parts(int n, Part part) {
  constexpr int TOGETHER = 8;
  Sum<2> all;
  for (int first = 0; first < n; first += TOGETHER) {
    float words[TOGETHER][4];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
#pragma unroll
      for (int k = 0; k < 4; k++) words[i][k] = first + i < n ? part(first + i, k) : 0;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
      if (first + i < n) all.add(words[i][0], words[i][1], &words[i][2]);
  }
  return all;
}

// The rotary embedding that a step's row still needs, and whose key and value its page. cos and sin: float [positions][D/2]. Pairs are
// elements i and i + D/2, or, interleaved, 2·i and 2·i + 1. A row's position is the number of tokens before it.
struct Rope { const float *cos, *sin; int interleaved; };

// The angles by which a lane rotates what it has of the queries, elements j·32 + (lane%4)·8 … + 7, and of the row's own key, pairs lane + 32·i.
template <int D> struct Angles { f32x4 cos[D / 32], sin[D / 32]; float own_cos[D / 64], own_sin[D / 64]; };

template <int D> DEV Angles<D> angles_of(const Rope &rope, int position) {
  const float *cos = rope.cos + (i64)position * (D / 2), *sin = rope.sin + (i64)position * (D / 2);
  const int lane = TID & 31, t = lane & 3;
  Angles<D> all;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const int at = rope.interleaved ? i * 16 + t * 4 : (i >> 1) * 32 + t * 8 + (i & 1) * 4;
    all.cos[i] = __builtin_bit_cast(f32x4, load_once(cos + at));
    all.sin[i] = __builtin_bit_cast(f32x4, load_once(sin + at));
  }
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    all.own_cos[i] = __builtin_bit_cast(float, load_word(cos + lane + i * 32));
    all.own_sin[i] = __builtin_bit_cast(float, load_word(sin + lane + i * 32));
  }
  return all;
}

template <int D> DEV void rotate_query(const Angles<D> &angles, int interleaved, u32x4 (&q)[D / 32]) {
  if (interleaved) {
#pragma unroll
    for (int j = 0; j < D / 32; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float x = bf16_lo(q[j][e]), y = bf16_hi(q[j][e]);
        rotate_pair(angles.cos[j][e], angles.sin[j][e], x, y);
        q[j][e] = pack_bf16(x, y);
      }
    return;
  }
#pragma unroll
  for (int j = 0; j < D / 64; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const f32x4 cos = angles.cos[j * 2 + e / 2], sin = angles.sin[j * 2 + e / 2];
      u32x4 &low = q[j], &high = q[j + D / 64];
      float x0 = bf16_lo(low[e]), x1 = bf16_hi(low[e]), y0 = bf16_lo(high[e]), y1 = bf16_hi(high[e]);
      rotate_pair(cos[e % 2 * 2], sin[e % 2 * 2], x0, y0);
      rotate_pair(cos[e % 2 * 2 + 1], sin[e % 2 * 2 + 1], x1, y1);
      low[e] = pack_bf16(x0, x1);
      high[e] = pack_bf16(y0, y1);
    }
}

// What a lane has of the row's own key, rotated, and value: pairs lane + 32·i.
template <int D> struct Own { u16 key[D / 64][2]; u32 value[D / 64]; };

// Rotates the row's key and stores it and the value to their page, by a warp.
template <int D> DEV Own<D> store_own(const Angles<D> &angles, int interleaved, const u16 *k, const u16 *v, u16 *page, int page_shift) {
  Own<D> own;
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    const int pair = (TID & 31) + i * 32, first = interleaved ? pair * 2 : pair, second = interleaved ? pair * 2 + 1 : pair + D / 2;
    float x = bf16_f32(k[first]), y = bf16_f32(k[second]);
    rotate_pair(angles.own_cos[i], angles.own_sin[i], x, y);
    own.key[i][0] = page[first] = f32_bf16(x);
    own.key[i][1] = page[second] = f32_bf16(y);
    own.value[i] = ((u32 *)(page + (D << page_shift)))[pair] = ((const u32 *)v)[pair];
  }
  return own;
}

// Chunks of 16 bytes of 8 tokens, transposed: chunk c of tokens 2·(lane%4) and the one behind it, of each element lane/4.
struct Chunks { u32 chunk[8]; };

// Of two values: what reads both keeps arrays in registers.
DEV u32 choose(bool first, u32 a, u32 b) { return first ? a : b; }

// Loads 128 bytes of 8 tokens whose rows lie D elements apart. Tile c of 8 × 8 elements is loaded with chunk c ^ r of token r, so that its
// reads meet every bank once, and then chunks are put in order.
template <int D> DEV Chunks load_chunks(u32 at) {
  const int lane = TID & 31, r = lane & 7;
  u32 low[4], high[4];
  load_transposed(low, at + r * D * 2 + ((lane >> 3) ^ r) * 16);
  load_transposed(high, at + r * D * 2 + ((lane >> 3 | 4) ^ r) * 16);
  const bool one = lane & 1, two = lane & 2;
  u32 a[8], b[8];
#pragma unroll
  for (int c = 0; c < 4; c++) a[c] = permute<0x7610>(low[c], low[c ^ 1]), a[c + 4] = permute<0x7610>(high[c], high[c ^ 1]);
#pragma unroll
  for (int c = 0; c < 8; c++) b[c] = choose(one, a[c ^ 2], a[c]);
  Chunks all;
#pragma unroll
  for (int c = 0; c < 8; c++) all.chunk[c] = choose(two, b[c ^ 4], b[c]);
  return all;
}

// Adds what the queries, rows of q, are with a tile of keys: score[n] is of 8 of its tokens, a row a query.
template <int D> DEV void add_scores(float (&score)[4][4], const u32x4 (&q)[D / 32], u32 keys) {
  const int lane = TID & 31, g = lane >> 2, t = lane & 3, odd = g & 1;
#pragma unroll
  for (int j = 0; j < D / 32; j += 2)
#pragma unroll
    for (int n = 0; n < 4; n++) {
      // Rows of odd numbers begin with the other half of 128 bytes, so that eight lanes meet every bank once.
      const u32 at = keys + (n * 8 + g) * D * 2 + j * 64 + t * 16;
      const u32x4 x = load_shared16(at + odd * 64), y = load_shared16(at + 64 - odd * 64), low = odd ? y : x, high = odd ? x : y;
#pragma unroll
      for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j], h), (u32x2){0, 0}, half_of(low, h));
#pragma unroll
      for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j + 1], h), (u32x2){0, 0}, half_of(high, h));
    }
}

// Adds a tile of values by its weights, of which weight[n] has a query's of tokens n·8 + 2·(lane%4) and the one behind it. sum is transposed: a row
// is an element of the head, columns 2·(lane%4) and the one behind it are queries.
template <int D> DEV void add_values(float (&sum)[D / 16][4], const u32 (&weight)[4], u32 values) {
#pragma unroll
  for (int b = 0; b < 2; b++)
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
      const u32 at = values + b * BLOCK * D * 2 + c * 128;
      const Chunks v = load_chunks<D>(at), w = load_chunks<D>(at + 8 * D * 2);
#pragma unroll
      for (int j = 0; j < 4; j++)
        mma_16x8x16(sum[c * 4 + j], (u32x2){v.chunk[j * 2], w.chunk[j * 2]}, (u32x2){v.chunk[j * 2 + 1], w.chunk[j * 2 + 1]}, (u32x2){weight[b * 2], weight[b * 2 + 1]});
    }
}

// Puts the row's own key into row r of a tile.
template <int D> DEV void put_key(u16 *tile, int r, const Own<D> &own, int interleaved) {
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    const int pair = (TID & 31) + i * 32;
    tile[r * D + (interleaved ? pair * 2 : pair)] = own.key[i][0];
    tile[r * D + (interleaved ? pair * 2 + 1 : pair + D / 2)] = own.key[i][1];
  }
  __nvvm_bar_warp_sync(0xffffffffu);
}

// Makes rows of values from r on: the row's own, if it is there, and zeros, so that weights of 0 meet nothing that isn't finite.
template <int D> DEV void put_value(u16 *tile, int r, bool has_own, const Own<D> &own) {
  const int lane = TID & 31;
  u32 *to = (u32 *)(tile + r * D);
  if (has_own)
#pragma unroll
    for (int i = 0; i < D / 64; i++) to[lane + i * 32] = own.value[i];
  for (int i = (has_own ? D / 2 : 0) + lane; i < (UNIT - r) * (D / 2); i += 32) to[i] = 0;
  __nvvm_bar_warp_sync(0xffffffffu);
}

// What a team's warps have found for a part, of four elements of a head: their highest scores, totals and sums lie so many words apart.
DEV void add_warps(const float *tops, const float *totals, const float *sums, int apart, float &top, float &total, float (&value)[4]) {
  top = NONE, total = 0;
#pragma unroll
  for (int w = 0; w < TEAM; w++) top = __builtin_fmaxf(top, tops[w * HEADS]);
  const float base = top == NONE ? 0 : top;
#pragma unroll
  for (int w = 0; w < TEAM; w++) {
    const float f = ex2(tops[w * HEADS] - base);
    const f32x4 v = *(const f32x4 *)(sums + w * apart);
    total = __builtin_fmaf(f, totals[w * HEADS], total);
#pragma unroll
    for (int k = 0; k < 4; k++) value[k] = w == 0 ? f * v[k] : __builtin_fmaf(f, v[k], value[k]);
  }
}

// A block takes `per` parts of a sequence's tokens for one key head and up to 8 of its query heads. Parts are of SPLIT tokens, or of the
// smallest multiple that makes no more than SPLITS. A team of 4 warps takes a part, a warp 32 tokens of each 128, and the block's TEAMS take
// one part after the other. A warp's tiles, of keys and of values in turns, are copied `halves` ahead, as they lie in their pages. Where a block hasn't all parts, they are added by the cluster of the sequence's blocks, which have one each, or
// without clusters by the block that finishes last, in the same order as by one block.
//
// What is read before the wait was complete before the first kernel of the step began, which begins when all before it has ended, and before
// which no other of the step does: the sequences, the tables, cosines and sines, and keys and values of tokens in front of the row. What steps
// change is read past the first-level cache, in which an earlier step may have left something.
//
// partial: Found<D> [sequence][group of heads][part]; arrived: u32 [sequence][group of heads], 0 before and after.
// Grid: parts / per, kv_heads · groups of 8 query heads, sequences. Shared: for each warp `halves` tiles and the sums of up to 8 heads.
template <int D, int TEAMS, bool CLUSTER, bool ROPE>
DEV void attend_one(const Arguments &a, Found<D> *partial, u32 *arrived, const Rope &rope, int per, int halves) {
  DYNAMIC_SHARED(128);
  constexpr int WARPS = TEAMS * TEAM, THREADS = 32 * WARPS, STRIDE = D + 4, ITEMS = (HEADS * D / 4 + THREADS - 1) / THREADS;
  constexpr u32 TILE = UNIT * D * 2;
  __shared__ float tops[WARPS][HEADS], totals[WARPS][HEADS];
  __shared__ __attribute__((aligned(8))) u64 barriers[WARPS][MOST_HALVES];
  __shared__ u32 before;
  const int warp = TID >> 5, team = TEAMS == 1 ? 0 : warp / TEAM, lane = TID & 31, g = lane >> 2, t = lane & 3;
  const u32 tiles = shared_address(dynamic) + warp * halves * TILE, bars = shared_address(barriers[warp]);
  dependents_may_launch();
  if constexpr (!BULK) wait_for_earlier();
  const int *pages = a.tables + (i64)CTAID_Z * a.max_pages;
  const int rows = load_fresh(a.rows + CTAID_Z), past = load_fresh(a.past + CTAID_Z), row = load_fresh(a.row + CTAID_Z);
  const int first = CTAID * per;
  int step = SPLIT; // tokens of a part, so far as if they were that many
  // The first token of the warp's n-th tile.
  auto token_of = [&](int n) {
    const int lanes = warp % TEAM * UNIT;
    if constexpr (TEAMS == 1) return first * step + n * ROUND + lanes;
    const int turn = step == SPLIT ? n / (SPLIT / ROUND) : n / (step / ROUND);
    return (first + turn * TEAMS + team) * step + n * ROUND - turn * step + lanes;
  };
  // Lane i has the page of the warp's i-th block of 16 tokens from tile `known` on.
  auto page_of = [&](int n) {
    const int at = (token_of(n + (lane >> 1)) + (lane & 1) * BLOCK) >> a.page_shift;
    return (int)load_fresh(pages + (at < a.max_pages ? at : 0));
  };
  int known = 0, page = page_of(0);
  if constexpr (BULK) {
    if (lane == 0) {
      for (int i = 0; i < halves; i++) barrier_init(bars + i * 8, 2);
      barrier_init_visible();
    }
    __nvvm_bar_warp_sync(0xffffffffu);
  }
  const int ratio = a.heads / a.kv_heads, groups = (ratio + HEADS - 1) / HEADS;
  const int head = CTAID_Y / groups, first_head = CTAID_Y % groups * HEADS, mine = ratio - first_head < HEADS ? ratio - first_head : HEADS;
  const int context = past + 1;
  if (context > SPLIT * SPLITS) step = SPLIT * ((context + SPLIT * SPLITS - 1) / (SPLIT * SPLITS));
  const int parts = step == SPLIT ? (context + SPLIT - 1) / SPLIT : (context + step - 1) / step;
  const int last = first + per < parts ? first + per : parts;
  if (rows != 1 || first >= parts) {
    if constexpr (BULK) wait_for_earlier(); // a grid that has ended says that those before it have
    return;
  }
  if (step != SPLIT) page = page_of(0);
  const int end = last * step < context ? last * step : context;
  const int there = ROPE && end == context ? past : end; // the row's own are put there
  const i64 page_elements = (i64)a.kv_heads * 2 * D << a.page_shift;
  const u16 *cache = a.cache + ((i64)head * 2 * D << a.page_shift);

  auto load = [&](int h, int slot) {
    const int n = h >> 1, half = h & 1, k0 = token_of(n);
    if (k0 < end) {
      if (n == known + 16) known = n, page = page_of(n);
      if constexpr (BULK) {
        const int token = k0 + (lane & 1) * BLOCK, left = there - token, count = left < 0 ? 0 : left < BLOCK ? left : BLOCK;
        const i64 at = shfl(page, (n - known) * 2 + (lane & 1));
        const u16 *from = cache + at * page_elements + ((half << a.page_shift) + (token & ((1 << a.page_shift) - 1))) * D;
        if (lane < 2) {
          barrier_expect(bars + slot * 8, count * D * 2);
          if (count > 0) bulk_load(tiles + slot * TILE + lane * BLOCK * D * 2, from, count * D * 2, bars + slot * 8);
        }
      } else {
        constexpr int CHUNKS = D / 8, STEP = 32 / CHUNKS; // rows that a warp copies at a time
#pragma unroll
        for (int b = 0; b < 2; b++) {
          const int token = k0 + b * BLOCK;
          const i64 at = shfl(page, (n - known) * 2 + (token < end ? b : 0));
          const u16 *from = cache + at * page_elements + ((half << a.page_shift) + (token & ((1 << a.page_shift) - 1))) * D + lane * 8;
#pragma unroll
          for (int r = 0; r < BLOCK; r += STEP)
            copy_async(tiles + slot * TILE + (b * BLOCK + r) * D * 2 + lane * 16, from + r * D, token + r + lane / CHUNKS < there);
        }
      }
    }
    if constexpr (!BULK) copy_async_commit();
  };
  // Whether a tile has the row's own, which the kernel before may be storing.
  auto late = [&](int h) { return BULK && !ROPE && token_of(h >> 1) + UNIT > past; };
  for (int h = 0; h < halves; h++)
    if (!late(h)) load(h, h);
  Angles<D> angles;
  i64 own_page = 0;
  if constexpr (ROPE) angles = angles_of<D>(rope, past), own_page = load_fresh(pages + (past >> a.page_shift));
  if constexpr (BULK) {
    wait_for_earlier();
    for (int h = 0; h < halves; h++)
      if (late(h)) load(h, h);
  }
  // Row g of the tensor core's tile is query head g; the lower 8 rows are not used.
  const u16 *query = a.qkv + (i64)row * (a.heads + 2 * a.kv_heads) * D + (head * ratio + first_head + g) * D;
  u32x4 q[D / 32];
#pragma unroll
  for (int j = 0; j < D / 32; j++) q[j] = g < mine ? *(const u32x4 *)(query + j * 32 + t * 8) : (u32x4){0, 0, 0, 0};
  const bool owner = ROPE && end == context && past / UNIT % TEAM == warp % TEAM && (TEAMS == 1 || (parts - 1 - first) % TEAMS == team);
  Own<D> own;
  if constexpr (ROPE) {
    rotate_query<D>(angles, rope.interleaved, q);
    const u16 *k = a.qkv + ((i64)row * (a.heads + 2 * a.kv_heads) + a.heads + head) * D;
    u16 *to = (u16 *)cache + own_page * page_elements + (past & ((1 << a.page_shift) - 1)) * D;
    if (owner) own = store_own<D>(angles, rope.interleaved, k, k + a.kv_heads * D, to, a.page_shift);
  }
  const float scale = a.scale * LOG2E;
  float *sums = (float *)(dynamic + WARPS * halves * TILE);
  u16 *out = a.out + (i64)row * a.heads * D + (head * ratio + first_head) * D;
  const i64 place = (i64)CTAID_Z * NCTAID_Y + CTAID_Y;
  Sum<4> all[ITEMS];
  auto tile_at = [&](u32 address) { return (u16 *)(dynamic + (address - shared_address(dynamic))); };
  int slot = 0, parity = 0;
  auto wait = [&] {
    if constexpr (BULK) barrier_wait(bars + slot * 8, parity);
    else copy_async_wait<RING80<D> - 1>();
    __nvvm_bar_warp_sync(0xffffffffu);
  };
  auto refill = [&](int h) {
    __nvvm_bar_warp_sync(0xffffffffu);
    load(h + halves, slot);
    if (++slot == halves) slot = 0, parity ^= 1;
  };

  for (int turn = first, n = 0; turn < last; turn += TEAMS) {
    // sum is transposed: a row is an element of the head, columns 2·t and 2·t + 1 are heads.
    float top = NONE, total = 0, sum[D / 16][4] = {};
    for (int round = 0; round < step; round += ROUND, n++) {
      const int k0 = token_of(n);
      if (k0 >= end) continue;
      const bool has_own = owner && k0 + UNIT > past;
      wait();
      const u32 keys = tiles + slot * TILE;
      if constexpr (ROPE)
        if (has_own) put_key<D>(tile_at(keys), past - k0, own, rope.interleaved);
      float score[4][4] = {};
      add_scores<D>(score, q, keys);
      refill(n * 2);
      float high = top;
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          score[n][h] = k0 + n * 8 + t * 2 + h < end ? score[n][h] * scale : NONE;
          high = __builtin_fmaxf(high, score[n][h]);
        }
      high = __builtin_fmaxf(high, shfl_xor(high, 1));
      high = __builtin_fmaxf(high, shfl_xor(high, 2));
      const float base = high == NONE ? 0 : high, fade = ex2(top - base);
      top = high;
      float more = 0;
      u32 weight[4];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const float x = ex2(score[n][0] - base), y = ex2(score[n][1] - base);
        more += x + y;
        weight[n] = pack_bf16(x, y);
      }
      total = __builtin_fmaf(total, fade, more);
      const float fade0 = shfl(fade, t * 8), fade1 = shfl(fade, t * 8 + 4);
#pragma unroll
      for (int j = 0; j < D / 16; j++)
#pragma unroll
        for (int h = 0; h < 4; h++) sum[j][h] *= h & 1 ? fade1 : fade0;
      wait();
      const u32 values = tiles + slot * TILE;
      if (k0 + UNIT > there) put_value<D>(tile_at(values), there - k0, has_own, own);
      add_values<D>(sum, weight, values);
      refill(n * 2 + 1);
    }
    total += shfl_xor(total, 1);
    total += shfl_xor(total, 2);
    if (turn > first) __syncthreads(); // all have read what the warps found in the part before
    if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int h = 0; h < 4; h++)
        if (t * 2 + (h & 1) < mine) sums[(warp * mine + t * 2 + (h & 1)) * STRIDE + j * 16 + (h >> 1) * 8 + g] = sum[j][h];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const int e = TID + i * THREADS, h = e / (D / 4), d = e % (D / 4) * 4;
      if (h >= mine) break;
#pragma unroll
      for (int k = 0; k < TEAMS; k++) {
        const int part = turn + k, w = k * TEAM;
        if (part >= last) break;
        float most, weight, value[4];
        add_warps(&tops[w][h], &totals[w][h], sums + (w * mine + h) * STRIDE + d, mine * STRIDE, most, weight, value);
        if (parts <= per) {
          all[i].add(most, weight, value);
        } else {
          Found<D> *found = CLUSTER ? (Found<D> *)dynamic : partial + place * SPLITS + part; // the ring is free
          *(f32x4 *)&found->sum[h][d] = (f32x4){value[0], value[1], value[2], value[3]};
          if (d == 0) found->top[h] = most, found->total[h] = weight;
        }
      }
    }
  }
  if (parts <= per) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const int e = TID + i * THREADS;
      if (e / (D / 4) < mine) all[i].store(out + e * 4);
    }
    return;
  }
  if constexpr (CLUSTER) {
#if __CUDA_ARCH__ >= 900
    cluster_sync();
    const u32 at = shared_address(dynamic);
    for (int e = TID + first * THREADS; e < mine * (D / 2); e += parts * THREADS) {
      const u32 top_at = at + (HEADS * D + e / (D / 2)) * 4;
      add_parts(parts, [&](int i, int member) {
        return cluster_load(member == 0 ? top_at : member == 1 ? top_at + HEADS * 4 : at + e * 8 + (member - 2) * 4, i);
      }).store(out + e * 2);
    }
    cluster_sync(); // the others' shared memory is there until all have read
#endif
    return;
  }
  // Every thread's part is visible to the GPU before the block counts as arrived.
  fence_gpu();
  __syncthreads();
  if (TID == 0) before = count_up(arrived + place);
  __syncthreads();
  if ((int)before != (parts + per - 1) / per - 1) return;
  fence_gpu();
  if (TID == 0) arrived[place] = 0;
  const Found<D> *found = partial + place * SPLITS;
  for (int e = TID; e < mine * (D / 2); e += THREADS) {
    const int h = e / (D / 2);
    add_parts(parts, [&](int i, int member) {
      return member == 0 ? found[i].top[h] : member == 1 ? found[i].total[h] : found[i].sum[h][e % (D / 2) * 2 + member - 2];
    }).store(out + e * 2);
  }
}

// As many blocks on an SM as shared memory has room for.
#define BOUNDS(D, TEAMS) __launch_bounds__(128 * TEAMS, TEAMS > 1 ? 1 : D == 64 ? 3 : 2)
#define ROPE_ARGUMENTS const float *cos, const float *sin, int interleaved
#define ATTEND(NAME, D, TEAMS, CLUSTER)                                                                                          \
  KERNEL BOUNDS(D, TEAMS) attend_##NAME##_##D(ARGUMENTS, Found<D> *partial, u32 *arrived, int per, int halves) {                 \
    attend_one<D, TEAMS, CLUSTER, false>(THEM, partial, arrived, {}, per, halves);                                               \
  }
#define ATTEND_ROPE(NAME, D, TEAMS, CLUSTER)                                                                                     \
  KERNEL BOUNDS(D, TEAMS) attend_##NAME##_##D(ARGUMENTS, Found<D> *partial, u32 *arrived, ROPE_ARGUMENTS, int per, int halves) { \
    attend_one<D, TEAMS, CLUSTER, true>(THEM, partial, arrived, {cos, sin, interleaved}, per, halves);                           \
  }
ATTEND(one, 64, 1, false)
ATTEND(one, 128, 1, false)
ATTEND_ROPE(rope, 64, 1, false)
ATTEND_ROPE(rope, 128, 1, false)
#if __CUDA_ARCH__ >= 900
// Clusters use neither partial nor arrived.
ATTEND(cluster, 64, 1, true)
ATTEND(cluster, 128, 1, true)
ATTEND_ROPE(rope_cluster, 64, 1, true)
ATTEND_ROPE(rope_cluster, 128, 1, true)
ATTEND(teams, 64, 3, false)
ATTEND_ROPE(rope_teams, 64, 3, false)
#endif
