// Attention of prompts on Hopper, by wgmma: what attend_many.cu does, in other tiles and so with other bits.
//
// A block goes from item to item; an item is ROWS packed rows (row r of head h of a group of n is packed row r·n + h) of a key head of
// a prompt. Two of its warps bring keys and values by the TMA into a ring, two the queries of the item to come, and GROUPS warp groups
// of 64 packed rows each compute. Tiles of keys begin at multiples of KEYS of the sequence, and what a row sums in which order is a
// matter of its own position, so that neither the cut of a prompt nor the choice of ROWS shows.
#include "attention.cuh"
#include "hopper.cuh"

// Queries of two items lie first, in columns of 64 elements, rows of 128 bytes; keys and values follow in PAIRS pairs of tiles, in groups
// of 8 rows, each in columns of 64 elements.
template <int HEAD, int G, int K, int P, int BLOCKS> struct Shape {
  static constexpr int D = HEAD, GROUPS = G, KEYS = K, PAIRS = P, ROWS = 64 * G;
  static constexpr int REGISTERS = 65536 / (BLOCKS * 128 * (G + 1)) / 8 * 8; // a thread has at first
  static constexpr int FEW = G == 2 ? 72 : G == 1 && BLOCKS == 2 ? 56 : G == 1 ? 40 : 32, MANY = (REGISTERS * (G + 1) - FEW) / G / 8 * 8;
  static constexpr u32 EIGHT = 8 * D * 2, TILE = KEYS * D * 2, GROUP = 64 * D * 2, RING = 2 * GROUPS * GROUP, PROMPTS = RING + 2 * PAIRS * TILE;
};

// The sequences of a step that have more than one row are listed in shared memory, 16 bytes each, so that items are theirs alone.
struct Prompts { u32 list; int count, tiles; };
// Packed rows first to before last of a prompt, for one key head; context is how many tokens the last of them sees.
struct Item { int row, past, sequence, head, first, last, context; };

DEV int list_prompts(const Arguments &a, int sequences, u32 list) {
  int count = 0;
  const int lane = TID & 31;
  for (int from = 0; from < sequences; from += 32) {
    const int i = from + lane, rows = i < sequences ? a.rows[i] : 0, row = i < sequences ? a.row[i] : 0, past = i < sequences ? a.past[i] : 0;
    const u32 all = ballot(rows > 1);
    if (rows > 1) store_shared16(list + 16 * (count + __builtin_popcount(all & ((1u << lane) - 1))), (u32x4){(u32)row, (u32)rows, (u32)past, (u32)i});
    count += __builtin_popcount(all);
  }
  return count;
}

// Calls what is to be done for each item of this block in turn: those with most keys come first, over all of the prompts, and are dealt
// out to and fro.
template <class S, class Do> DEV void each_item(const Arguments &a, const Prompts &p, Do what) {
  const int group = a.heads / a.kv_heads, per = p.count * a.kv_heads, items = p.tiles * per;
  for (int dealt = 0, i = CTAID; dealt < items; dealt += NCTAID, i = dealt + (dealt / NCTAID & 1 ? NCTAID - 1 - CTAID : CTAID)) {
    if (i >= items) continue;
    const int rest = i % per, first = (p.tiles - 1 - i / per) * S::ROWS;
    const u32x4 of = load_shared16(p.list + rest / a.kv_heads * 16);
    const int packed = (int)of.y * group, past = (int)of.z, last = first + S::ROWS < packed ? first + S::ROWS : packed;
    if (first < packed) what(Item{(int)of.x, past, (int)of.w, rest % a.kv_heads, first, last, past + (last - 1) / group + 1});
  }
}

// The barriers: a tile of the ring is full, is empty; then the same of queries.
template <class S> struct Barriers {
  u32 at;
  MEMBER u32 full(int tile) const { return at + 8 * tile; }
  MEMBER u32 empty(int tile) const { return at + 8 * (2 * S::PAIRS + tile); }
  MEMBER u32 asked(int i) const { return at + 8 * (4 * S::PAIRS + i); }
  MEMBER u32 answered(int i) const { return at + 8 * (4 * S::PAIRS + 2 + i); }
};
template <class S> struct Turn { // which of the ring's pairs, and what its barriers wait for
  int pair = 0;
  u32 phase = 0;
  MEMBER void next() {
    if (++pair == S::PAIRS) pair = 0, phase ^= 1;
  }
};

// Brings keys (half 0) or values (half 1), by a warp, a lane each page's part of 16 tokens of a tile. Those behind the context are left
// out, and the table isn't read there.
template <class S> DEV void bring(const Arguments &a, const Prompts &p, const void *map, int half, u32 ring, Barriers<S> bars) {
  constexpr int BOXES = S::KEYS / 16;
  const int lane = TID & 31;
  if (lane >= BOXES) return;
  Turn<S> turn;
  each_item<S>(a, p, [&](const Item &item) {
    const int *pages = a.tables + (i64)item.sequence * a.max_pages, parts = (item.context + 15) / 16;
    auto look = [&](int part) { return part < parts ? pages[part * 16 >> a.page_shift] : 0; };
    int page = look(lane);
    for (int from = 0; from < parts; from += BOXES) {
      const int part = from + lane, tile = 2 * turn.pair + half;
      // In groups of 8 rows of the map.
      const int at = ((((page * a.kv_heads + item.head) * 2 + half) << a.page_shift) + (part * 16 & ((1 << a.page_shift) - 1))) / 8;
      page = look(part + BOXES);
      barrier_wait(bars.empty(tile), turn.phase ^ 1);
      if (lane == 0) barrier_expect(bars.full(tile), (parts - from < BOXES ? parts - from : BOXES) * 2 * S::EIGHT);
      if (part < parts) tma_load_4d(ring + tile * S::TILE + lane * 2 * S::EIGHT, map, 0, 0, 0, at, bars.full(tile));
      turn.next();
    }
  });
}

// Copies queries of packed rows, by two warps: a thread the same 16 bytes of every STEPth row.
template <class S> DEV void bring_queries(const Arguments &a, const Prompts &p, u32 queries, Barriers<S> bars) {
  constexpr int CHUNKS = S::D / 8, STEP = 64 / CHUNKS;
  const int group = a.heads / a.kv_heads, width = (a.heads + 2 * a.kv_heads) * S::D, c = TID % CHUNKS, from = (TID & 63) / CHUNKS;
  const int rows_on = STEP / group, heads_on = STEP % group;
  int turn = 0;
  each_item<S>(a, p, [&](const Item &item) {
    const int buffer = turn & 1;
    const u16 *first = a.qkv + (i64)item.row * width + item.head * group * S::D + c * 8;
    int row = (item.first + from) / group, head = (item.first + from) % group;
    barrier_wait(bars.answered(buffer), (turn >> 1 & 1) ^ 1);
#pragma unroll 8
    for (int n = 0; n < S::ROWS / STEP; n++) {
      const int r = from + n * STEP;
      const bool valid = item.first + r < item.last;
      const u32 to = queries + (buffer * S::GROUPS + r / 64) * S::GROUP + c / 8 * 8192 + r % 64 * 128 + (c % 8 ^ r % 8) * 16;
      copy_async(to, valid ? first + ((i64)row * width + head * S::D) : first, valid);
      row += rows_on, head += heads_on;
      if (head >= group) head -= group, row++;
    }
    copy_async_commit();
    copy_async_wait<0>();
    fence_async();
    barrier_arrive(bars.asked(buffer));
    turn++;
  });
}

// Of row g of 16 of a warp in the first half and row g + 8 in the second: the highest score, the sum of weights over this lane's tokens,
// and by how much the last tile made what was summed before fade.
struct Softmax { float top[2], total[2], fade[2]; };

// Scores of tokens from k0 on become weights. Tokens behind a row's position have none.
template <int KEYS> DEV void weigh(float (&score)[KEYS / 2], Softmax &s, float scale, int k0, bool partly, const int (&position)[2]) {
  const int t = TID & 3;
  if (partly)
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (n * 8 + (e & 1) > position[e >> 1] - k0 - t * 2) score[n * 4 + e] = NONE;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float high = s.top[h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) high = __builtin_fmaxf(high, __builtin_fmaxf(score[n * 4 + h * 2], score[n * 4 + h * 2 + 1]));
    high = __builtin_fmaxf(high, shfl_xor(high, 1));
    high = __builtin_fmaxf(high, shfl_xor(high, 2));
    const float bottom = high == NONE ? 0 : high * scale;
    s.fade[h] = ex2(s.top[h] * scale - bottom);
    s.top[h] = high;
    float total = s.total[h] * s.fade[h];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = h * 2; e < h * 2 + 2; e++) {
        score[n * 4 + e] = ex2(__builtin_fmaf(score[n * 4 + e], scale, -bottom));
        total += score[n * 4 + e];
      }
    s.total[h] = total;
  }
}

template <class S> DEV void multiply_keys(float (&score)[S::KEYS / 2], u32 queries, u32 keys) {
#pragma unroll
  for (int c = 0; c < S::D / 64; c++) {
    const u64 q = wgmma_operand(queries + c * 8192), k = wgmma_operand(keys + c * 1024, S::EIGHT);
    if constexpr (S::KEYS == 64) wgmma_64x64x64(score, q, k, c);
    else wgmma_64x128x64(score, q, k, c);
  }
  wgmma_commit();
}
template <class S> DEV void multiply_values(float (&sum)[S::D / 2], const u32 (&weight)[S::KEYS / 4], u32 values, int keep) {
#pragma unroll
  for (int k = 0; k < S::KEYS / 64; k++) {
    const u64 v = wgmma_columns<S::D>(values + k * 8 * S::EIGHT);
    if constexpr (S::D == 64) wgmma_weights_64x64x64(sum, weight + k * 16, v, k || keep);
    else wgmma_weights_64x128x64(sum, weight + k * 16, v, k || keep);
  }
  wgmma_commit();
}
template <int N> DEV void narrow(u32 (&weight)[N], const float (&score)[2 * N]) {
#pragma unroll
  for (int i = 0; i < N; i++) weight[i] = pack_bf16(score[2 * i], score[2 * i + 1]);
}

// Values behind the context are whatever was in the ring or in the cache; their weights are 0, which infinity and NaN would survive.
template <class S> DEV void clear_values(u32 values, int from) {
  for (int e = from * (S::D / 8) + (TID & 127); e < S::KEYS * (S::D / 8); e += 128) {
    const int r = e / (S::D / 8), c = e % (S::D / 8);
    store_shared16(values + r / 8 * S::EIGHT + c / 8 * 1024 + r % 8 * 128 + c % 8 * 16, (u32x4){0, 0, 0, 0});
  }
  fence_async();
  group_sync(1 + (TID >> 7));
}

// Four lanes that share rows get 16 bytes in a row each instead of 4 here and there.
template <int D> DEV void store_rows(const Arguments &a, const Item &item, int row, float (&sum)[D / 2], Softmax &s) {
  const int t = TID & 3, group = a.heads / a.kv_heads;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float total = s.total[h] + shfl_xor(s.total[h], 1);
    total += shfl_xor(total, 2);
    const float share = rcp(total);
    const int r = row + h * 8;
    u16 *out = a.out + ((i64)(item.row + r / group) * a.heads + item.head * group + r % group) * D;
#pragma unroll
    for (int n = 0; n < D / 8; n += 4) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) w[i] = __builtin_bit_cast(float, pack_bf16(sum[(n + i) * 4 + h * 2] * share, sum[(n + i) * 4 + h * 2 + 1] * share));
#pragma unroll
      for (int m = 1; m < 4; m *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (!(i & m)) {
            const float low = w[i], high = w[i | m], got = shfl_xor(t & m ? low : high, m);
            w[i] = t & m ? got : low;
            w[i | m] = t & m ? high : got;
          }
      if (r < item.last) *(f32x4 *)(out + (n + t) * 8) = (f32x4){w[0], w[1], w[2], w[3]};
    }
  }
}

template <class S> DEV void attend(const Arguments &a, const Prompts &p, u32 base, Barriers<S> bars) {
  constexpr int D = S::D, KEYS = S::KEYS;
  const int me = TID >> 7, group = a.heads / a.kv_heads, in_group = (TID >> 5 & 3) * 16 + (TID >> 2 & 7);
  const bool leader = (TID & 127) == 0;
  const float scale = a.scale * LOG2E;
  const u32 ring = base + S::RING;
  Turn<S> turn;
  int items = 0;
  each_item<S>(a, p, [&](const Item &item) {
    const int mine = item.first + me * 64, end = mine + 64 < item.last ? mine + 64 : item.last, lowest = item.past + mine / group;
    // Tiles that this group's rows see, and that the block's do.
    const int own = mine < end ? (item.past + (end - 1) / group) / KEYS + 1 : 0, all = (item.context + KEYS - 1) / KEYS;
    const int position[2] = {item.past + (mine + in_group) / group, item.past + (mine + in_group + 8) / group};
    const int buffer = items & 1;
    const u32 queries = base + (buffer * S::GROUPS + me) * S::GROUP;
    float score[KEYS / 2] = {}, sum[D / 2] = {};
    u32 weight[KEYS / 4];
    Softmax s = {{NONE, NONE}, {0, 0}, {0, 0}};
    auto release = [&](int tile) {
      if (leader) barrier_arrive(bars.empty(tile));
    };
    auto wait = [&](int tile) { barrier_wait(bars.full(tile), turn.phase); };
    barrier_wait(bars.asked(buffer), items >> 1 & 1);
    if (own > 0) {
      wait(2 * turn.pair);
      wgmma_fence();
      multiply_keys<S>(score, queries, ring + 2 * turn.pair * S::TILE);
      wgmma_wait<0>();
      wgmma_hold(score);
      release(2 * turn.pair);
      weigh<KEYS>(score, s, scale, 0, KEYS - 1 > lowest, position);
      narrow(weight, score);
      // The products of a tile's values go on while the next one's scores become weights.
      for (int i = 1; i < own; i++) {
        const Turn<S> before = turn;
        turn.next();
        if (i == 1) wait(2 * turn.pair);
        wgmma_fence();
        multiply_keys<S>(score, queries, ring + 2 * turn.pair * S::TILE);
        barrier_wait(bars.full(2 * before.pair + 1), before.phase);
        wgmma_fence();
        multiply_values<S>(sum, weight, ring + (2 * before.pair + 1) * S::TILE, i > 1);
        wgmma_wait<1>();
        wgmma_hold(score);
        release(2 * turn.pair);
        weigh<KEYS>(score, s, scale, i * KEYS, (i + 1) * KEYS - 1 > lowest, position);
        // The wait is a branch, behind which the assembler leaves the powers of 2; else it does them when the products are done.
        Turn<S> after = turn;
        after.next();
        wgmma_hold(score);
        if (i + 1 < own) barrier_wait(bars.full(2 * after.pair), after.phase);
        wgmma_wait<0>();
        wgmma_hold(sum);
        release(2 * before.pair + 1);
#pragma unroll
        for (int n = 0; n < D / 2; n++) sum[n] *= s.fade[n >> 1 & 1];
        narrow(weight, score);
      }
      wait(2 * turn.pair + 1);
      const u32 values = ring + (2 * turn.pair + 1) * S::TILE;
      if (own * KEYS > item.context) clear_values<S>(values, item.context - (own - 1) * KEYS);
      wgmma_fence();
      multiply_values<S>(sum, weight, values, own > 1);
      wgmma_wait<0>();
      wgmma_hold(sum);
      release(2 * turn.pair + 1);
      turn.next();
    }
    // Tiles that only another group needs. The others wait for the leader, lest a barrier pass them by twice.
    for (int i = own; i < all; i++) {
      for (int tile = 2 * turn.pair; leader && tile < 2 * turn.pair + 2; tile++) {
        wait(tile);
        release(tile);
      }
      turn.next();
    }
    if (own < all) group_sync(1 + me);
    if (leader) barrier_arrive(bars.answered(buffer));
    store_rows<D>(a, item, mine + in_group, sum, s);
    items++;
  });
}

template <class S> DEV void attend_prompts(const Arguments &a, const void *map, int sequences, int most) {
  DYNAMIC_SHARED(1024);
  __shared__ __attribute__((aligned(8))) u64 storage[4 * S::PAIRS + 4];
  __shared__ int count;
  const u32 base = (shared_address(dynamic) + 1023) & ~1023u;
  const Barriers<S> bars = {shared_address(storage)};
  if (TID == 0) {
    tma_prefetch_map(map);
    for (int i = 0; i < 2 * S::PAIRS; i++) {
      barrier_init(bars.full(i), 1);
      barrier_init(bars.empty(i), S::GROUPS);
    }
    for (int i = 0; i < 2; i++) {
      barrier_init(bars.asked(i), 64);
      barrier_init(bars.answered(i), S::GROUPS);
    }
    barrier_init_visible();
  }
  wait_for_earlier();
  if (TID < 32) {
    const int n = list_prompts(a, sequences, base + S::PROMPTS);
    if (TID == 0) count = n;
  }
  __syncthreads();
  const Prompts p = {base + S::PROMPTS, count, (most * (a.heads / a.kv_heads) + S::ROWS - 1) / S::ROWS};
  // The registers of a block are shared out anew: few are enough to bring what others compute with.
  if (TID < 128 * S::GROUPS) {
    registers_up<S::MANY>();
    attend<S>(a, p, base, bars);
  } else {
    registers_down<S::FEW>();
    const int warp = (TID >> 5) - 4 * S::GROUPS;
    if (warp < 2) bring<S>(a, p, map, warp, base + S::RING, bars);
    else bring_queries<S>(a, p, base, bars);
  }
  // Not before: blocks of the next kernel would take room from this one's.
  dependents_may_launch();
}

// 128·GROUPS + 128 threads; PROMPTS, 1,024 to align, and 16 bytes a sequence of dynamic shared memory. map describes the cache as rows of
// one token's key or value, in boxes of 16 rows × 64 columns.
#define ATTEND(NAME, D, GROUPS, KEYS, PAIRS, BLOCKS)                                                                             \
  KERNEL __launch_bounds__(128 * GROUPS + 128, BLOCKS) NAME(ARGUMENTS, const void *map, int sequences, int most) {               \
    attend_prompts<Shape<D, GROUPS, KEYS, PAIRS, BLOCKS>>(THEM, map, sequences, most);                                           \
  }
ATTEND(attend_wgmma_64, 64, 1, 128, 2, 2)
ATTEND(attend_wgmma_128, 128, 2, 128, 2, 1)
