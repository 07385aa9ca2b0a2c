// The light kernels of the engine: everything of a decoder layer but its matrix products and fast attention, for which there
// are plain ones here too, for shapes that the fast ones don't take. The residual stream and logits are float32; inputs and
// outputs of matrix products, keys and values are bf16; sums are float32. A row of a batch is a block of its own, so that
// nothing depends on the other rows.
//
// Keys and values of a layer: [page][kv head][k, v][page size][head dim]. A qkv row: [heads | kv heads | kv heads] of head dim.
#include "norm.cuh"
#include "rope.cuh"

DEV void begin() {
  dependents_may_launch();
  wait_for_earlier();
}

// Sums over a block of up to 1024 threads; all get it. part: 32 floats of shared memory.
DEV float block_sum(float v, float *part) {
  v = warp_sum(v);
  if ((TID & 31) == 0) part[TID >> 5] = v;
  __syncthreads();
  v = warp_sum((TID & 31) < NTID / 32 ? part[TID & 31] : 0.0f);
  __syncthreads();
  return v;
}

// embed: dst[row] = table[tokens[row]], widened. A token ~i stands for what the step before sampled in row i, which nothing
// but the device may know yet; where that row had no token (-1), token 0 is taken and the row's result is nobody's.
KERNEL __launch_bounds__(256) embed(float *dst, const u16 *table, const i32 *tokens, const i32 *sampled, i32 cols) {
  begin();
  i32 t = tokens[CTAID];
  if (t < 0) t = sampled[~t];
  if (t < 0) t = 0;
  const u16 *from = table + (i64)t * cols;
  float *to = dst + (i64)CTAID * cols;
  for (i32 i = TID; i < cols; i += NTID) to[i] = bf16_f32(from[i]);
}

// rms_norm: dst = x / sqrt(mean(x²) + eps) * w, a block a row.
template <class T> DEV void norm_row(T *dst, const float *x, const float *w, i32 width, float eps) {
  __shared__ float part[32];
  begin();
  const float *row = x + (i64)CTAID * width;
  T *out = dst + (i64)CTAID * width;
  float sum = 0.0f;
  for (i32 i = TID; i < width; i += NTID) sum += row[i] * row[i];
  const float scale = rsqrt(block_sum(sum, part) / (float)width + eps);
  for (i32 i = TID; i < width; i += NTID) {
    const float v = row[i] * scale * w[i];
    if constexpr (sizeof(T) == 2) out[i] = f32_bf16(v); else out[i] = v;
  }
}
KERNEL __launch_bounds__(256) rms_norm(u16 *dst, const float *x, const float *w, i32 width, float eps) { norm_row(dst, x, w, width, eps); }
KERNEL __launch_bounds__(256) rms_norm_f32(float *dst, const float *x, const float *w, i32 width, float eps) { norm_row(dst, x, w, width, eps); }

// rms_norm of a width that is a multiple of 4 and at most 1024·QUADS, by 256 threads: a row is read once, four elements at a time. The
// weights are there before the row is.
template <int QUADS> DEV void norm_quads(u16 *dst, const float *x, const float *w, i32 width, float eps) {
  __shared__ float part[8];
  const i32 quads = width / 4;
  const f32x4 *row = (const f32x4 *)(x + (i64)CTAID * width);
  f32x4 v[QUADS], g[QUADS];
  dependents_may_launch();
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    const i32 i = TID + j * 256;
    if (i < quads) g[j] = ((const f32x4 *)w)[i];
  }
  wait_for_earlier();
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    const i32 i = TID + j * 256;
    v[j] = i < quads ? row[i] : (f32x4){0, 0, 0, 0};
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++) sum = add_squares(sum, v[j]);
  sum = warp_sum(sum);
  if ((TID & 31) == 0) part[TID >> 5] = sum;
  __syncthreads();
  const float scale = norm_scale(part, width, eps);
  u32x2 *out = (u32x2 *)(dst + (i64)CTAID * width);
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    const i32 i = TID + j * 256;
    if (i < quads) out[i] = normed(v[j], scale, g[j]);
  }
}
#define NORM_QUADS(QUADS) \
  KERNEL __launch_bounds__(256) rms_norm_##QUADS(u16 *dst, const float *x, const float *w, i32 width, float eps) { norm_quads<QUADS>(dst, x, w, width, eps); }
NORM_QUADS(1)
NORM_QUADS(2)
NORM_QUADS(4)
NORM_QUADS(8)

// rope_store: norms (where there are weights) and rotates the queries and keys of a row in place, and writes its keys and
// values to its slot; slot -1 stores nothing, nor does a null kv. Grid (rows, ceil((heads + 2*kv_heads) / 8)), a warp a head; dim
// is at most 256.
KERNEL __launch_bounds__(256) rope_store(u16 *qkv, u16 *kv, const float *cos, const float *sin, const float *q_norm, const float *k_norm,
                                         const i32 *positions, const i32 *slots, float eps, i32 heads, i32 kv_heads, i32 dim,
                                         i32 rope_dim, i32 interleaved, i32 page_size) {
  __shared__ float heads_of_block[8][256];
  begin();
  const i32 lane = TID & 31, warp = TID >> 5, head = CTAID_Y * 8 + warp, row = CTAID;
  const i32 all = heads + 2 * kv_heads;
  if (head >= all) return;
  float *h = heads_of_block[warp];
  u16 *in = qkv + ((i64)row * all + head) * dim;
  const bool is_value = head >= heads + kv_heads, is_key = !is_value && head >= heads;
  float sum = 0.0f;
  for (i32 i = lane; i < dim; i += 32) {
    h[i] = bf16_f32(in[i]);
    sum += h[i] * h[i];
  }
  const float *w = is_value ? nullptr : is_key ? k_norm : q_norm;
  if (w) {
    const float scale = rsqrt(warp_sum(sum) / (float)dim + eps);
    for (i32 i = lane; i < dim; i += 32) h[i] *= scale * w[i];
  }
  __nvvm_bar_warp_sync(0xffffffffu);
  const i32 slot = slots[row];
  u16 *store = nullptr;
  if (kv && head >= heads && slot >= 0) {
    const i64 page = slot / page_size, at = slot % page_size, kv_head = is_value ? head - heads - kv_heads : head - heads;
    store = kv + (((page * kv_heads + kv_head) * 2 + is_value) * page_size + at) * dim;
  }
  const i64 angle = (i64)positions[row] * (rope_dim / 2);
  for (i32 i = lane; i < dim; i += 32) {
    float v = h[i];
    if (!is_value && i < rope_dim) {
      const i32 half = rope_dim / 2, pair = interleaved ? i / 2 : i % half;
      const bool second = interleaved ? i & 1 : i >= half;
      const float a = interleaved ? h[i & ~1] : h[pair], b = interleaved ? h[i | 1] : h[pair + half];
      float x = a, y = b;
      rotate_pair(cos[angle + pair], sin[angle + pair], x, y);
      v = second ? y : x;
    }
    const u16 out = f32_bf16(v);
    if (!is_value) in[i] = out;
    if (store) store[i] = out;
  }
}

// rope_store_64 and _128 are rope_store for such heads that rotate whole: a thread has 16 elements of a head, which are 8 pairs. Grid
// (ceil(rows * heads' threads / 256)).
template <int DIM> DEV void rope_vec(u16 *qkv, u16 *kv, const float *cos, const float *sin, const float *q_norm, const float *k_norm,
                                     const i32 *positions, const i32 *slots, float eps, i32 heads, i32 kv_heads, i32 rows, i32 interleaved,
                                      i32 page_size) {
  constexpr u32 LANES = DIM / 16, HALF = DIM / 2;
  const u32 all = heads + 2 * kv_heads, unit = (CTAID * 256 + TID) / LANES, lane = TID % LANES;
  const bool live = unit < (u32)rows * all;
  const u32 row = live ? unit / all : 0, head = live ? unit % all : 0;
  begin();
  u16 *in = qkv + ((i64)row * all + head) * DIM;
  const i32 position = positions[row], slot = slots[row];
  const bool is_value = head >= (u32)(heads + kv_heads), is_key = !is_value && head >= (u32)heads;
  // Two neighbours a word. Halves: 8 elements from 8*lane and from HALF + 8*lane; else 16 from 16*lane, of which every other pair is b's.
  const u32 ia = interleaved ? 16 * lane : 8 * lane, ib = interleaved ? ia + 8 : ia + HALF;
  u32x4 pa = *(const u32x4 *)(in + ia), pb = *(const u32x4 *)(in + ib);
  const u32x4 ra = interleaved ? (u32x4){pa.x, pa.z, pb.x, pb.z} : pa, rb = interleaved ? (u32x4){pa.y, pa.w, pb.y, pb.w} : pb;
  float a0[4], a1[4], b0[4], b1[4];
#pragma unroll
  for (int j = 0; j < 4; j++) a0[j] = bf16_lo(ra[j]), a1[j] = bf16_hi(ra[j]), b0[j] = bf16_lo(rb[j]), b1[j] = bf16_hi(rb[j]);
  if (q_norm) {
    float sum[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      sum[j] = a0[j] * a0[j] + a1[j] * a1[j] + b0[j] * b0[j] + b1[j] * b1[j];
#pragma unroll
      for (int m = LANES / 2; m; m >>= 1) sum[j] += shfl_xor(sum[j], m);
    }
    const float scale = rsqrt(((sum[0] + sum[2]) + (sum[1] + sum[3])) / (float)DIM + eps);
    if (!is_value) {
      const float *w = is_key ? k_norm : q_norm;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u32 a = interleaved ? ia + 4 * j : ia + 2 * j, b = interleaved ? a + 2 : ib + 2 * j;
        a0[j] *= scale * w[a];
        a1[j] *= scale * w[a + 1];
        b0[j] *= scale * w[b];
        b1[j] *= scale * w[b + 1];
      }
    }
  }
  if (!live) return;
  if (!is_value) {
    const i64 angle = (i64)position * HALF + 8 * lane;
    u32x4 oa, ob;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const f32x4 c = ((const f32x4 *)(cos + angle))[h], s = ((const f32x4 *)(sin + angle))[h];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int j = 2 * h + i;
        rotate_pair(c[2 * i], s[2 * i], a0[j], interleaved ? a1[j] : b0[j]);
        rotate_pair(c[2 * i + 1], s[2 * i + 1], interleaved ? b0[j] : a1[j], b1[j]);
        oa[j] = pack_bf16(a0[j], a1[j]);
        ob[j] = pack_bf16(b0[j], b1[j]);
      }
    }
    pa = interleaved ? (u32x4){oa.x, ob.x, oa.y, ob.y} : oa;
    pb = interleaved ? (u32x4){oa.z, ob.z, oa.w, ob.w} : ob;
    *(u32x4 *)(in + ia) = pa;
    *(u32x4 *)(in + ib) = pb;
  }
  if (head < (u32)heads || slot < 0) return;
  const i64 page = slot / page_size, at = slot % page_size, kv_head = is_value ? head - heads - kv_heads : head - heads;
  u16 *store = kv + (((page * kv_heads + kv_head) * 2 + is_value) * page_size + at) * DIM;
  *(u32x4 *)(store + ia) = pa;
  *(u32x4 *)(store + ib) = pb;
}
#define ROPE_VEC(DIM)                                                                                                                      \
  KERNEL __launch_bounds__(256) rope_store_##DIM(u16 *qkv, u16 *kv, const float *cos, const float *sin, const float *q_norm,               \
                                                 const float *k_norm, const i32 *positions, const i32 *slots, float eps, i32 heads,        \
                                                 i32 kv_heads, i32 rows, i32 interleaved, i32 page_size) {                                 \
    rope_vec<DIM>(qkv, kv, cos, sin, q_norm, k_norm, positions, slots, eps, heads, kv_heads, rows, interleaved, page_size);                \
  }
ROPE_VEC(64)
ROPE_VEC(128)

// swiglu: dst[row] = silu(gate) * up of a row [gate (width) | up (width)]. Grid (ceil(width / 256), rows).
KERNEL __launch_bounds__(256) swiglu(u16 *dst, const u16 *gate_up, i32 width) {
  begin();
  const i32 i = CTAID * 256 + TID;
  const i64 row = CTAID_Y;
  if (i >= width) return;
  const u16 *in = gate_up + 2 * row * width;
  dst[row * width + i] = f32_bf16(silu(bf16_f32(in[i])) * bf16_f32(in[width + i]));
}

// gather: row r of dst is row outputs[r] of src, units of 2 bytes each. Grid (rows).
KERNEL __launch_bounds__(256) gather(u16 *dst, const u16 *src, const i32 *outputs, i32 units) {
  begin();
  const u16 *from = src + (i64)outputs[CTAID] * units;
  u16 *to = dst + (i64)CTAID * units;
  for (i32 i = TID; i < units; i += NTID) to[i] = from[i];
}

// Conversions to bf16, of n elements by any grid.
KERNEL __launch_bounds__(256) f32_to_bf16(u16 *dst, const float *src, u64 n) {
  begin();
  for (u64 i = (u64)CTAID * NTID + TID; i < n; i += (u64)NCTAID * NTID) dst[i] = f32_bf16(src[i]);
}
KERNEL __launch_bounds__(256) f16_to_bf16(u16 *dst, const u16 *src, u64 n) {
  begin();
  for (u64 i = (u64)CTAID * NTID + TID; i < n; i += (u64)NCTAID * NTID) dst[i] = f32_bf16(f16_f32(src[i]));
}

// matmul_any: any shape. A warp an element of c [M, N] = x [M, K] · w [N, K]ᵀ + bias; mode as in gemm.go. Grid (ceil(N/8), M).
KERNEL __launch_bounds__(256) matmul_any(const u16 *x, const u16 *w, void *c, const float *bias, i32 M, i32 N, i32 K, i32 mode) {
  begin();
  const i32 n = CTAID * 8 + (TID >> 5), lane = TID & 31;
  const i64 m = CTAID_Y;
  if (n >= N || m >= M) return;
  float sum = 0.0f;
  for (i32 k = lane; k < K; k += 32) sum += bf16_f32(x[m * K + k]) * bf16_f32(w[(i64)n * K + k]);
  sum = warp_sum(sum);
  if (lane) return;
  if (bias) sum += bias[n];
  if (mode == 0) ((u16 *)c)[m * N + n] = f32_bf16(sum);
  else if (mode == 1) ((float *)c)[m * N + n] = sum;
  else ((float *)c)[m * N + n] += sum;
}

// attention_any: any head dim up to 256. A block a row and head (grid (rows, heads)); its 4 warps take every fourth key each.
KERNEL __launch_bounds__(128) attention_any(u16 *out, const u16 *qkv, const u16 *kv, const i32 *tables, const i32 *row_seq,
                                            const i32 *positions, float scale, i32 heads, i32 kv_heads, i32 dim, i32 page_size,
                                            i32 max_pages) {
  __shared__ float tops[4], sums[4], values[4][256];
  begin();
  const i32 row = CTAID, head = CTAID_Y, warp = TID >> 5, lane = TID & 31, kv_head = head / (heads / kv_heads);
  const u16 *q = qkv + ((i64)row * (heads + 2 * kv_heads) + head) * dim;
  const i32 *table = tables + (i64)row_seq[row] * max_pages, last = positions[row];
  float query[8], acc[8], top = -__builtin_inff(), sum = 0.0f;
#pragma unroll
  for (i32 j = 0; j < 8; j++) {
    acc[j] = 0.0f;
    query[j] = lane + 32 * j < dim ? bf16_f32(q[lane + 32 * j]) * scale * 1.4426950408889634f : 0.0f;
  }
  for (i32 t = warp; t <= last; t += 4) {
    const u16 *k = kv + (((i64)table[t / page_size] * kv_heads + kv_head) * 2 * page_size + t % page_size) * dim;
    const u16 *v = k + (i64)page_size * dim;
    float s = 0.0f;
#pragma unroll
    for (i32 j = 0; j < 8; j++)
      if (lane + 32 * j < dim) s += query[j] * bf16_f32(k[lane + 32 * j]);
    s = warp_sum(s);
    const float higher = __builtin_fmaxf(top, s), old = ex2(top - higher), w = ex2(s - higher);
    // fmax drops a NaN: the weight keeps it.
    sum = sum * old + w;
    top = higher;
#pragma unroll
    for (i32 j = 0; j < 8; j++)
      if (lane + 32 * j < dim) acc[j] = acc[j] * old + w * bf16_f32(v[lane + 32 * j]);
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
#pragma unroll
  for (i32 j = 0; j < 8; j++)
    if (lane + 32 * j < dim) values[warp][lane + 32 * j] = acc[j];
  __syncthreads();
  top = __builtin_fmaxf(__builtin_fmaxf(tops[0], tops[1]), __builtin_fmaxf(tops[2], tops[3]));
  for (i32 i = TID; i < dim; i += 128) {
    float v = 0.0f, total = 0.0f;
#pragma unroll
    for (i32 w = 0; w < 4; w++)
      if (sums[w] != 0.0f) { // false for a warp without keys alone: a NaN is not equal to 0
        const float share = ex2(tops[w] - top);
        v += share * values[w][i];
        total += share * sums[w];
      }
    out[((i64)row * heads + head) * dim + i] = f32_bf16(v / total);
  }
}
