// Sampling on the device: what internal/engine's sampler does to a row of logits, in the same order. Masses are 64-bit integers
// (weights in units of 2^-40 of the largest), so that no sum depends on the order in which threads add.
#include "nv.cuh"

DEV void begin() {
  dependents_may_launch();
  wait_for_earlier();
}

#define BANNED (-3.4028234663852886e38f)

// adjust: changes the logits of the listed tokens of each row. offsets [rows + 1] cut entries, each {id, flags, bias, count}:
// flags 1: ruled out; 2: seen, so penalties apply, count times in the answer. penalties [rows][4]: repetition, frequency,
// presence, unused. A logit that isn't finite stays as it is. Grid (rows).
KERNEL __launch_bounds__(256) adjust(float *logits, i32 stride, const i32 *offsets, const u32x4 *entries, const f32x4 *penalties) {
  begin();
  float *row = logits + (i64)CTAID * stride;
  const f32x4 p = penalties[CTAID];
  for (i32 i = offsets[CTAID] + (i32)TID; i < offsets[CTAID + 1]; i += NTID) {
    const u32x4 e = entries[i];
    const u32 bias = e.z; // clang 19 takes the vector's start for an element that is cast in place
    float v = row[e.x];
    if (v - v != 0.0f) continue;
    if (e.y & 1) {
      row[e.x] = BANNED;
      continue;
    }
    v += __builtin_bit_cast(float, bias);
    if (e.y & 2) {
      v = v > 0.0f ? v / p.x : v * p.x;
      if (e.w) v -= p.y * (float)e.w + p.z;
      v = __builtin_fminf(__builtin_fmaxf(v, -1e30f), 1e30f);
    }
    row[e.x] = v;
  }
}

// Largest value, lowest index where equal; bad: something isn't finite.
struct Best { float v; i32 i; u32 bad; };
DEV Best better(Best a, Best b) {
  const bool take = b.v > a.v || (b.v == a.v && b.i < a.i);
  return {take ? b.v : a.v, take ? b.i : a.i, a.bad | b.bad};
}
DEV Best warp_best(Best b) {
#pragma unroll
  for (int m = 16; m; m >>= 1) {
    Best o = {shfl_xor(b.v, m), __nvvm_shfl_sync_bfly_i32(0xffffffffu, b.i, m, 31),
              (u32)__nvvm_shfl_sync_bfly_i32(0xffffffffu, (i32)b.bad, m, 31)};
    b = better(b, o);
  }
  return b;
}
// The block's best for all its threads; part: 32 of shared memory.
DEV Best block_best(Best b, Best *part) {
  b = warp_best(b);
  if ((TID & 31) == 0) part[TID >> 5] = b;
  __syncthreads();
  b = warp_best((TID & 31) < NTID / 32 ? part[TID & 31] : (Best){-__builtin_inff(), 0x7fffffff, 0});
  __syncthreads();
  return b;
}

#define CHUNK 4096

// best_of_chunk: part[row][chunk] = {value, index, bad, 0} of CHUNK logits. Grid (ceil(vocab / CHUNK), rows).
KERNEL __launch_bounds__(256) best_of_chunk(const float *logits, i32 stride, i32 vocab, u32x4 *part) {
  __shared__ Best shared[32];
  begin();
  const float *row = logits + (i64)CTAID_Y * stride;
  const i32 end = (i32)CTAID * CHUNK + CHUNK < vocab ? (i32)CTAID * CHUNK + CHUNK : vocab;
  Best b = {-__builtin_inff(), 0x7fffffff, 0};
  for (i32 i = CTAID * CHUNK + TID; i < end; i += 256) {
    const float v = row[i];
    b.bad |= !(v - v == 0.0f);
    if (v > b.v) { b.v = v; b.i = i; }
  }
  b = block_best(b, shared);
  if (TID == 0) part[(i64)CTAID_Y * NCTAID + CTAID] = (u32x4){__builtin_bit_cast(u32, b.v), (u32)b.i, b.bad, 0};
}

// Philox4x32-10: the number that belongs to a place in an answer, as a fraction of 2^64 (53 bits).
DEV u64 uniform(u32 seed_lo, u32 seed_hi, u32 choice, u32 position) {
  u32 a = position, b = 0, c = choice, d = 0;
  for (int i = 0; i < 10; i++) {
    const u64 p = (u64)0xD2511F53u * a, q = (u64)0xCD9E8D57u * c;
    const u32 na = (u32)(q >> 32) ^ b ^ seed_lo, nc = (u32)(p >> 32) ^ d ^ seed_hi;
    b = (u32)q;
    d = (u32)p;
    a = na;
    c = nc;
    seed_lo += 0x9E3779B9u;
    seed_hi += 0xBB67AE85u;
  }
  return ((u64)a << 32 | b) >> 11 << 11;
}

// Floats in an order that unsigned integers have.
DEV u32 ordered(float v) {
  const u32 u = __builtin_bit_cast(u32, v);
  return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}

struct Row {
  const float *logits;
  i32 vocab;
  float top, scale; // scale: log2(e) / temperature
  float least;      // smallest weight that counts
};
DEV u64 mass_of(const Row &r, float v) {
  if (v == BANNED) return 0;
  const float w = ex2((v - r.top) * r.scale);
  return w >= r.least ? (u64)(w * 1099511627776.0f) : 0;
}

// Inclusive sum over the block's threads in their order; total gets the sum. part: 32 of shared memory.
DEV u64 block_scan(u64 v, u64 *part, u64 &total) {
  const u32 lane = TID & 31, warp = TID >> 5;
#pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const u32 lo = (u32)__nvvm_shfl_sync_up_i32(0xffffffffu, (i32)(u32)v, m, 0), hi = (u32)__nvvm_shfl_sync_up_i32(0xffffffffu, (i32)(v >> 32), m, 0);
    if (lane >= (u32)m) v += (u64)hi << 32 | lo;
  }
  if (lane == 31) part[warp] = v;
  __syncthreads();
  u64 before = 0;
  total = 0;
  for (u32 w = 0; w < NTID / 32; w++) {
    if (w < warp) before += part[w];
    total += part[w];
  }
  __syncthreads();
  return v + before;
}

#define BINS 2048
// What is kept of a row: logits above key, and the first ties of those equal to it, by id.
struct Kept { u32 key; u64 ties; };

// keep finds the shortest start of the order (largest first, lower id where equal) whose masses, or counts, reach target; all of
// it where it has less. Radix selection by 11, 11 and 10 bits. 1024 threads.
DEV Kept keep(const Row &r, bool count, u64 target, u64 *bins, u64 *part, u64 *found) {
  u32 prefix = 0, mask = 0;
  for (int shift = 21;; shift = shift == 21 ? 10 : 0) {
    const u32 width = shift ? BINS : 1024;
    for (u32 i = TID; i < BINS; i += NTID) bins[i] = 0;
    __syncthreads();
    for (i32 i = TID; i < r.vocab; i += NTID) {
      const float v = r.logits[i];
      const u32 key = ordered(v);
      if ((key & mask) != prefix) continue;
      const u64 m = mass_of(r, v);
      if (m) __atomic_fetch_add(&bins[key >> shift & (width - 1)], count ? 1 : m, __ATOMIC_RELAXED);
    }
    __syncthreads();
    // Bins from the highest: thread t has 2t and 2t + 1 of the reversed order.
    const u32 hi = BINS - 1 - 2 * TID, lo = hi - 1;
    const u64 a = bins[hi], b = bins[lo];
    u64 total;
    const u64 after = block_scan(a + b, part, total), before = after - a - b;
    if (total < target) return {0, 0}; // only in the first round: everything is kept
    if (before < target && after >= target) {
      const bool second = before + a < target;
      found[0] = second ? lo : hi;
      found[1] = target - before - (second ? a : 0);
    }
    __syncthreads();
    prefix |= (u32)found[0] << shift;
    mask |= (width - 1) << shift;
    target = found[1];
    __syncthreads();
    if (shift == 0) break;
  }
  // What is left of the target falls on logits that are all equal.
  const u64 each = count ? 1 : mass_of(r, __builtin_bit_cast(float, prefix >> 31 ? prefix ^ 0x80000000u : ~prefix));
  return {prefix, (target + each - 1) / each};
}

// What is left of a row: its mass, and the id at which target of it is reached in the order of ids. Thread t has a run of ids.
DEV u64 walk(const Row &r, Kept k, bool want, u64 fraction, u64 *part, u64 *found) {
  const i32 run = (r.vocab + NTID - 1) / NTID, first = (i32)TID * run, end = first + run < r.vocab ? first + run : r.vocab;
  u64 ties = 0, all, mass = 0;
  for (i32 i = first; i < end; i++) ties += ordered(r.logits[i]) == k.key;
  const u64 earlier = block_scan(ties, part, all) - ties;
  auto counts = [&](i32 i, u64 &tie) {
    const u32 key = ordered(r.logits[i]);
    return key > k.key || (key == k.key && tie++ < k.ties);
  };
  u64 tie = earlier;
  for (i32 i = first; i < end; i++)
    if (counts(i, tie)) mass += mass_of(r, r.logits[i]);
  const u64 upto = block_scan(mass, part, all), before = upto - mass;
  if (!want) return all;
  const u64 target = __nvvm_mulhi_ull(all, fraction);
  if (before <= target && target < upto) {
    u64 left = target - before;
    tie = earlier;
    for (i32 i = first; i < end; i++) {
      if (!counts(i, tie)) continue;
      const u64 m = mass_of(r, r.logits[i]);
      if (left < m) {
        found[0] = (u64)i;
        break;
      }
      left -= m;
    }
  }
  __syncthreads();
  return found[0];
}

// draw: ids[row], on the device and in page-locked memory of the host (to), is the token that the row's parameters choose; -1 where a logit isn't finite. part is best_of_chunk's; draws
// [rows][8]: temperature, top_p, min_p (float), top_k, seed (low, high), choice, position; choice's highest bit sends the id to
// to[half + row]. Grid (rows), 1024 threads.
KERNEL __launch_bounds__(1024, 1) draw(i32 *ids, i32 *to, const u32x4 *part, i32 chunks, const float *logits, i32 stride, i32 vocab,
                                      const u32 *draws, i32 half) {
  __shared__ Best shared[32];
  __shared__ u64 bins[BINS], sums[32], found[2];
  begin();
  Best b = {-__builtin_inff(), 0x7fffffff, 0};
  for (i32 i = TID; i < chunks; i += NTID) {
    const u32x4 p = part[(i64)CTAID * chunks + i];
    b = better(b, (Best){__builtin_bit_cast(float, p.x), (i32)p.y, p.z});
  }
  b = block_best(b, shared);
  const u32 *d = draws + 8 * CTAID;
  to += d[6] >> 31 ? half : 0;
  const float temperature = __builtin_bit_cast(float, d[0]), top_p = __builtin_bit_cast(float, d[1]), min_p = __builtin_bit_cast(float, d[2]);
  if (b.bad || !(temperature > 0.0f)) {
    if (TID == 0) ids[CTAID] = to[CTAID] = b.bad ? -1 : b.i;
    return;
  }
  Row r = {logits + (i64)CTAID * stride, vocab, b.v, __builtin_fminf(1.4426950408889634f / temperature, 3e38f), min_p};
  Kept k = {0, 0};
  if (d[3]) k = keep(r, true, d[3], bins, sums, found);
  if (top_p < 1.0f) {
    const u64 mass = walk(r, k, false, 0, sums, found);
    u64 target = (u64)((double)mass * (double)top_p);
    if (!target) target = 1;
    k = keep(r, false, target, bins, sums, found);
  }
  if (TID == 0) found[0] = (u64)b.i;
  __syncthreads();
  const u64 id = walk(r, k, true, uniform(d[4], d[5], d[6] & 0x7fffffffu, d[7]), sums, found);
  if (TID == 0) ids[CTAID] = to[CTAID] = (i32)id;
}
