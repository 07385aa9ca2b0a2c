// Causal attention of a step's rows over paged keys and values, several query heads to a key head. A sequence with one row is
// attend_one's and one with more is attend_many's; each leaves the other's alone.
//
// Keys and values of a layer are bf16 [page][key head][key, value][token of the page][D]. A row of qkv is [heads·D queries |
// kv_heads·D | kv_heads·D] bf16, of which the queries are read. out is bf16 [rows][heads·D]. No result depends on how the rows of
// a sequence are cut into steps' rows by attend_many, or on other sequences.
#include "mma.cuh"

constexpr float NONE = -__builtin_inff(), LOG2E = 1.4426950408889634f;

// What both kernels know of a sequence: its first row in qkv, how many, how many tokens precede them, its pages.
struct Sequence { int row, rows, past; const int *pages; };

struct Arguments {
  const u16 *qkv;
  u16 *out;
  const u16 *cache;
  const int *tables, *row, *rows, *past;
  int max_pages, heads, kv_heads, page_shift;
  float scale;
};

DEV Sequence sequence(const Arguments &a, int i) { return {a.row[i], a.rows[i], a.past[i], a.tables + (i64)i * a.max_pages}; }

// Where the key of a token begins; its value lies D << page_shift elements on.
template <int D> DEV const u16 *key_of(const Arguments &a, const Sequence &s, int head, int token) {
  const i64 page = s.pages[token >> a.page_shift];
  return a.cache + (((page * a.kv_heads + head) * 2 << a.page_shift) + (token & ((1 << a.page_shift) - 1))) * D;
}

DEV float shfl(float v, int lane) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, v, lane, 31); }
DEV u32 prmt(u32 a, u32 b, u32 take) { return (u32)__nvvm_prmt(a, b, take); }
DEV u32x2 half_of(u32x4 v, int h) { return h ? (u32x2){v.z, v.w} : (u32x2){v.x, v.y}; }

// ---- one row a sequence ----

constexpr int WARPS = 8, HEADS = 8, SPLIT = 256, SPLITS = 16;

// A block takes a part of a sequence's tokens for one key head and up to 8 of its query heads, a warp 32 tokens at a time. Parts
// are of SPLIT tokens, or of the smallest multiple that makes no more than SPLITS. The block that finishes last adds the parts.
//
// partial: float [sequence][group of heads][part][HEADS][D + 2]; arrived: u32 [sequence][group of heads], 0 before and after.
// Grid: parts, kv_heads · groups of 8 query heads, sequences.
template <int D> DEV void attend_one(const Arguments &a, float *partial, u32 *arrived) {
  __shared__ float sums[WARPS][HEADS][D];
  __shared__ float tops[WARPS][HEADS], totals[WARPS][HEADS];
  __shared__ u32 before;
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  dependents_may_launch();
  wait_for_earlier();
  const Sequence s = sequence(a, CTAID_Z);
  if (s.rows != 1) return;
  const int context = s.past + 1, step = SPLIT * ((context + SPLIT * SPLITS - 1) / (SPLIT * SPLITS));
  const int parts = (context + step - 1) / step, part = CTAID;
  if (part >= parts) return;
  const int ratio = a.heads / a.kv_heads, groups = (ratio + HEADS - 1) / HEADS;
  const int head = CTAID_Y / groups, first = CTAID_Y % groups * HEADS, mine = ratio - first < HEADS ? ratio - first : HEADS;
  const float scale = a.scale * LOG2E;
  const u32x4 zero = {0, 0, 0, 0};

  // Row g of the tensor core's tile is query head g; the lower 8 rows are not used.
  const u16 *query = a.qkv + (i64)s.row * (a.heads + 2 * a.kv_heads) * D + (head * ratio + first + g) * D;
  u32x4 q[D / 32];
#pragma unroll
  for (int j = 0; j < D / 32; j++) q[j] = g < mine ? *(const u32x4 *)(query + j * 32 + t * 8) : zero;
  float top = NONE, total = 0, sum[D / 16][4] = {}; // of heads 2·t and 2·t + 1, transposed: a row is an element of the head
  const int end = (part + 1) * step < context ? (part + 1) * step : context;
  for (int k0 = part * step + warp * 32; k0 < end; k0 += WARPS * 32) {
    // 16 tokens from a multiple of 16 on lie in one page. What is behind the end is read where there is a page, and not used.
    const u16 *keys[2] = {key_of<D>(a, s, head, k0), key_of<D>(a, s, head, k0 + 16 < end ? k0 + 16 : k0)};
    float score[4][4] = {};
#pragma unroll
    for (int n = 0; n < 4; n++) {
      u32x4 k[D / 32];
#pragma unroll
      for (int j = 0; j < D / 32; j++) k[j] = *(const u32x4 *)(keys[n >> 1] + ((n & 1) * 8 + g) * D + j * 32 + t * 8);
#pragma unroll
      for (int j = 0; j < D / 32; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j], h), (u32x2){0, 0}, half_of(k[j], h));
    }
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
    total *= fade;
    const float fade0 = shfl(fade, t * 8), fade1 = shfl(fade, t * 8 + 4);
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
      for (int h = 0; h < 4; h++) sum[i][h] *= h & 1 ? fade1 : fade0;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      float p[4];
      u32x4 v[4][D / 64];
#pragma unroll
      for (int h = 0; h < 4; h++) {
        const int at = (h >> 1) * 8 + t * 2 + (h & 1);
        p[h] = ex2(score[n + (h >> 1)][h & 1] - base);
        total += p[h];
        const u16 *value = keys[n >> 1] + (D << a.page_shift) + at * D;
#pragma unroll
        for (int j = 0; j < D / 64; j++) v[h][j] = k0 + n * 8 + at < end ? *(const u32x4 *)(value + j * 64 + g * 8) : zero;
      }
      const u32x2 weight = {pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])};
      // Row g of tile i is element j·64 + g·8 + 2·i of the head, row g + 8 the next one.
#pragma unroll
      for (int j = 0; j < D / 64; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32x2 even, odd;
          even.x = prmt(v[0][j][i], v[1][j][i], 0x5410), even.y = prmt(v[2][j][i], v[3][j][i], 0x5410);
          odd.x = prmt(v[0][j][i], v[1][j][i], 0x7632), odd.y = prmt(v[2][j][i], v[3][j][i], 0x7632);
          mma_16x8x16(sum[j * 4 + i], even, odd, weight);
        }
    }
  }
  total += shfl_xor(total, 1);
  total += shfl_xor(total, 2);
  if (t == 0) tops[warp][g] = top, totals[warp][g] = total;
#pragma unroll
  for (int j = 0; j < D / 64; j++)
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int h = 0; h < 4; h++) sums[warp][t * 2 + (h & 1)][j * 64 + g * 8 + i * 2 + (h >> 1)] = sum[j * 4 + i][h];
  __syncthreads();

  u16 *out = a.out + (i64)s.row * a.heads * D + (head * ratio + first) * D;
  const i64 slot = (i64)CTAID_Z * NCTAID_Y + CTAID_Y;
  float *parts_at = partial + slot * SPLITS * HEADS * (D + 2), *to = parts_at + part * HEADS * (D + 2);
  for (int e = TID; e < mine * D; e += 32 * WARPS) {
    const int h = e / D, d = e % D;
    float most = NONE, weight = 0, value = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = __builtin_fmaxf(most, tops[w][h]);
    const float base = most == NONE ? 0 : most;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float f = ex2(tops[w][h] - base);
      weight += f * totals[w][h];
      value += f * sums[w][h][d];
    }
    if (parts == 1) out[e] = f32_bf16(value / weight);
    else {
      to[h * (D + 2) + d] = value;
      if (d == 0) to[h * (D + 2) + D] = most, to[h * (D + 2) + D + 1] = weight;
    }
  }
  if (parts == 1) return;
  // Every thread's part is visible to the GPU before the block counts as arrived.
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  __syncthreads();
  if (TID == 0) {
    u32 n;
    asm volatile("atom.global.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(arrived + slot) : "memory");
    before = n;
  }
  __syncthreads();
  if ((int)before != parts - 1) return;
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  if (TID == 0) arrived[slot] = 0;
  for (int e = TID; e < mine * D; e += 32 * WARPS) {
    const float *from = parts_at + e / D * (D + 2);
    const int d = e % D;
    float most = NONE, weight = 0, value = 0;
    for (int i = 0; i < parts; i++) most = __builtin_fmaxf(most, from[(i64)i * HEADS * (D + 2) + D]);
    const float base = most == NONE ? 0 : most;
    for (int i = 0; i < parts; i++) {
      const float *p = from + (i64)i * HEADS * (D + 2);
      const float f = ex2(p[D] - base);
      weight += f * p[D + 1];
      value += f * p[d];
    }
    out[e] = f32_bf16(value / weight);
  }
}

// ---- several rows a sequence ----

constexpr int ROWS = 64, KEYS = 64;

// Chunk c of 16 bytes of row r of a tile lies at chunk swizzle(r, c): the reads of 2 rows × 4 chunks and of 8 rows × 1 chunk both
// meet every bank once.
DEV int swizzle(int r, int c) { return (c & ~7) | ((c & 7) ^ ((r & 1) << 2 | (r >> 1 & 3))); }

DEV void load_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEV u32x4 load_shared16(u32 address) {
  u32x4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// A block takes 64 rows of a sequence for one query head, a warp 16; keys and values pass by in tiles of 64. Grid: tiles of rows
// (the last first, which have most to do), query heads, sequences.
template <int D> DEV void attend_many(const Arguments &a) {
  extern __shared__ __attribute__((aligned(128))) u8 dynamic[];
  constexpr u32 TILE = KEYS * D * 2;
  const int warp = TID >> 5, lane = TID & 31, g = lane >> 2, t = lane & 3;
  dependents_may_launch();
  wait_for_earlier();
  const Sequence s = sequence(a, CTAID_Z);
  const int tile = (int)NCTAID - 1 - (int)CTAID, first = tile * ROWS;
  if (s.rows < 2 || first >= s.rows) return;
  const int head = CTAID_Y, kv_head = head / (a.heads / a.kv_heads), last = first + ROWS < s.rows ? first + ROWS : s.rows;
  const int context = s.past + last, tiles = (context + KEYS - 1) / KEYS;
  const u32 base = shared_address(dynamic);
  const float scale = a.scale * LOG2E;

  auto load = [&](int i) {
    if (i < tiles) {
      const u32 to = base + (i & 1) * 2 * TILE;
#pragma unroll
      for (int n = 0; n < KEYS * (D / 8) / 128; n++) {
        const int at = TID + n * 128, r = at / (D / 8), c = at % (D / 8), token = i * KEYS + r;
        const bool valid = token < context;
        const u16 *key = key_of<D>(a, s, kv_head, valid ? token : 0) + c * 8;
        const u32 place = to + r * D * 2 + swizzle(r, c) * 16;
        copy_async(place, key, valid);
        copy_async(place + TILE, key + (D << a.page_shift), valid);
      }
    }
    copy_async_commit();
  };
  load(0);
  u32x4 q[D / 32][2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = first + warp * 16 + g + h * 8;
    const u16 *query = a.qkv + ((i64)(s.row + (r < last ? r : first)) * (a.heads + 2 * a.kv_heads) + head) * D;
#pragma unroll
    for (int j = 0; j < D / 32; j++) q[j][h] = *(const u32x4 *)(query + j * 32 + t * 8);
  }
  // Of row g in the lower half and row g + 8 in the upper.
  float top[2] = {NONE, NONE}, total[2] = {0, 0}, sum[D / 8][4] = {};
  const int position = s.past + first + warp * 16 + g;
  for (int i = 0; i < tiles; i++) {
    load(i + 1);
    copy_async_wait<1>();
    __syncthreads();
    const u32 keys = base + (i & 1) * 2 * TILE, values = keys + TILE;
    float score[KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < D / 32; j++)
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) {
        const u32x4 k = load_shared16(keys + (n * 8 + g) * D * 2 + swizzle(g, j * 4 + t) * 16);
#pragma unroll
        for (int h = 0; h < 2; h++) mma_16x8x16(score[n], half_of(q[j][0], h), half_of(q[j][1], h), half_of(k, h));
      }
    const bool partly = i * KEYS + KEYS - 1 > s.past + first + warp * 16;
    float high[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        score[n][e] *= scale;
        if (partly && i * KEYS + n * 8 + t * 2 + (e & 1) > position + (e >> 1) * 8) score[n][e] = NONE;
        high[e >> 1] = __builtin_fmaxf(high[e >> 1], score[n][e]);
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      high[h] = __builtin_fmaxf(high[h], shfl_xor(high[h], 1));
      high[h] = __builtin_fmaxf(high[h], shfl_xor(high[h], 2));
      const float fade = ex2(top[h] - (high[h] == NONE ? 0 : high[h]));
      top[h] = high[h];
      total[h] *= fade;
#pragma unroll
      for (int n = 0; n < D / 8; n++) sum[n][h * 2] *= fade, sum[n][h * 2 + 1] *= fade;
      if (high[h] == NONE) high[h] = 0;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
      u32 p[4]; // keys n·8 + 2t, + 1 of row g, of row g + 8; then the same 8 keys on
#pragma unroll
      for (int h = 0; h < 4; h++) {
        const float x = ex2(score[n + (h >> 1)][(h & 1) * 2] - high[h & 1]), y = ex2(score[n + (h >> 1)][(h & 1) * 2 + 1] - high[h & 1]);
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
    __syncthreads();
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    total[h] += shfl_xor(total[h], 1);
    total[h] += shfl_xor(total[h], 2);
    const int r = first + warp * 16 + g + h * 8;
    if (r >= last) continue;
    u32 *out = (u32 *)(a.out + ((i64)(s.row + r) * a.heads + head) * D) + t;
#pragma unroll
    for (int n = 0; n < D / 8; n++) out[n * 4] = pack_bf16(sum[n][h * 2] / total[h], sum[n][h * 2 + 1] / total[h]);
  }
}

#define ATTEND(D)                                                                                                                \
  KERNEL __launch_bounds__(32 * WARPS, D == 64 ? 2 : 1)                                                                            \
      attend_one_##D(const u16 *qkv, u16 *out, const u16 *cache, const int *tables, const int *row, const int *rows,             \
                     const int *past, int max_pages, int heads, int kv_heads, int page_shift, float scale, float *partial,       \
                     u32 *arrived) {                                                                                             \
    attend_one<D>({qkv, out, cache, tables, row, rows, past, max_pages, heads, kv_heads, page_shift, scale}, partial, arrived);  \
  }                                                                                                                              \
  KERNEL __launch_bounds__(128)                                                                                                  \
      attend_many_##D(const u16 *qkv, u16 *out, const u16 *cache, const int *tables, const int *row, const int *rows,            \
                      const int *past, int max_pages, int heads, int kv_heads, int page_shift, float scale) {                    \
    attend_many<D>({qkv, out, cache, tables, row, rows, past, max_pages, heads, kv_heads, page_shift, scale});                   \
  }
ATTEND(64)
ATTEND(128)
