// Weights that stay quantised: blocks of ggml (Q8_0, Q4_0, …, Q6_K), laid out so that a warp of a matrix product reads whole lines and
// each lane gets just its operands. A segment is N rows of K columns of one format, N a multiple of 8, K of the format's block.
//
// A unit is what a lane of a tensor-core operand needs of a half tile (8 rows) and a block of 64 columns: of row g = lane / 4 the
// elements 16·j + 4·t + e, j and e from 0 to 3, t = lane % 4. Units lie [half tile][block][lane]; columns behind K are zeros. What a
// unit's codes need lies in up to four planes, one behind the other:
//   codes  u32x2: byte e of word j / 2 has the low four bits of element (j, e) in its low (j even) or high nibble; of Q8_0 u32x4:
//          byte e of word j, its sign bit flipped
//   high   of formats with 5 bits u16: bit 4·(e % 2) + j of byte e / 2; of those with 6 u32: bits 2·j and 2·j + 1 of byte e
//   scales [half tile][block][row], what of a row's scales the block of 64 needs: binary16 d of its two groups of 32; d and m of each;
//          of Q4_K and Q5_K bytes scale, offset, scale, offset; of Q6_K four int8
//   blocks [half tile][K / 256][row]: d, or d and dmin, of the K formats
// A format F says how a unit is loaded and expanded to bf16, and how a file's blocks become codes and scales. An element expanded is the
// float32 that weights.Dequantize gives, rounded to bf16 (a zero may have the other sign), wherever it is done: so products of
// quantised weights are those of the expanded ones, to the bit.
#ifndef QUANT_CUH
#define QUANT_CUH
#include "nv.cuh"

// 128 + byte J of v, which is below 128; 32768 + it, whatever it is.
template <int J> DEV float seven_bits(u32 v) { return __builtin_bit_cast(float, permute<0x7044 | J << 8>(v, 0x43000000u)); }
template <int J> DEV float eight_bits(u32 v) { return __builtin_bit_cast(float, permute<0x7404 | J << 4>(v, 0x47000000u)); }

// A file's 16-bit value, which may lie anywhere.
DEV u32 read16(const u8 *p) { return p[0] | (u32)p[1] << 8; }
DEV u32 read32(const u8 *p) { return read16(p) | read16(p + 2) << 16; }


// How scales lie in a file's block, and what a format's file has in common with others.
struct Kinds {
  enum { PLAIN, OFFSET, NESTED, SIGNED };
  static MEMBER u32 block(const u8 *, i32) { return 0; }
};
// d in front of a block of 32.
template <class F> struct Plain : Kinds {
  static MEMBER u32x2 scales(const u8 *row, i32 block, bool second) {
    const u8 *b = row + (i64)block * 2 * F::BYTES;
    return (u32x2){read16(b) | (second ? read16(b + F::BYTES) : 0) << 16, 0};
  }
};
// d and m in front of a block of 32.
template <class F> struct Offset : Kinds {
  static MEMBER u32x2 scales(const u8 *row, i32 block, bool second) {
    const u8 *b = row + (i64)block * 2 * F::BYTES;
    return (u32x2){read32(b), second ? read32(b + F::BYTES) : 0};
  }
};
// d, dmin and 12 bytes of 6-bit scales and offsets in front of a block of 256.
template <class F> struct Nested : Kinds {
  static MEMBER u32 pair(const u8 *s, i32 group) {
    if (group < 4) return (s[group] & 63) | (u32)(s[group + 4] & 63) << 8;
    return (s[group + 4] & 15) | s[group - 4] >> 6 << 4 | (u32)(s[group + 4] >> 4 | s[group] >> 6 << 4) << 8;
  }
  static MEMBER u32x2 scales(const u8 *row, i32 block, bool) {
    const u8 *s = row + (i64)(block / 4) * F::BYTES + 4;
    return (u32x2){pair(s, block % 4 * 2) | pair(s, block % 4 * 2 + 1) << 16, 0};
  }
  static MEMBER u32 block(const u8 *row, i32 block) { return read32(row + (i64)block * F::BYTES); }
};
// The nibble of element i of 32, the first 16 in the low ones.
DEV u32 nibble(const u8 *codes, i32 i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// The planes of a segment of format F.
template <class F> struct Planes {
  const u8 *codes, *high, *scales, *blocks;
  i32 wide; // blocks of 64 columns
  MEMBER Planes(const u8 *w, i32 N, i32 K) {
    wide = (K + 63) / 64;
    const i64 units = (i64)(N / 8) * wide * 32;
    codes = w;
    high = codes + units * F::CODES;
    scales = high + units * F::HIGH;
    blocks = scales + units / 4 * F::SCALES;
  }
  MEMBER i64 unit(i32 half, i32 block) const { return ((i64)half * wide + block) * 32; }
  MEMBER i64 row(i32 half, i32 block) const { return ((i64)half * wide + block) * 8; }
  MEMBER i64 wide_row(i32 half, i32 block) const { return ((i64)half * ((wide + 3) / 4) + block / 4) * 8; }
};

// A loaded unit; what a format doesn't have is not loaded and costs nothing.
struct Unit {
  u32x4 codes;
  u32 high;
  u32x2 scales;
  u32 block;
};

template <class F> DEV Unit load_unit(const Planes<F> &p, i32 half, i32 block, i32 lane) {
  Unit u = {};
  const i64 at = p.unit(half, block) + lane, row = p.row(half, block) + (lane >> 2);
  if constexpr (F::CODES == 16) u.codes = load_once(p.codes + at * 16);
  else {
    const u32x2 c = load_once8(p.codes + at * 8);
    u.codes.x = c.x;
    u.codes.y = c.y;
  }
  if constexpr (F::HIGH == 2) u.high = load_half(p.high + at * 2);
  if constexpr (F::HIGH == 4) u.high = load_word(p.high + at * 4);
  if constexpr (F::SCALES == 4) u.scales.x = load_word(p.scales + row * 4);
  if constexpr (F::SCALES == 8) u.scales = load_pair(p.scales + row * 8);
  if constexpr (F::BLOCKS == 2) u.block = load_half(p.blocks + (p.wide_row(half, block) + (lane >> 2)) * 2);
  if constexpr (F::BLOCKS == 4) u.block = load_word(p.blocks + (p.wide_row(half, block) + (lane >> 2)) * 4);
  return u;
}

// Bytes of the four codes of group j; high bits in place.
template <class F, int J> DEV u32 codes_of(const Unit &u) {
  if constexpr (F::CODES == 16) return u.codes[J];
  u32 low = (J & 1 ? u.codes[J / 2] >> 4 : u.codes[J / 2]) & 0x0f0f0f0fu;
  if constexpr (F::HIGH == 2) {
    const u32 pairs = permute<0x1100>(u.high, 0), bits = (pairs & 0x000f000fu) << 4 | (pairs & 0xf000f000u);
    low |= bits >> J & 0x10101010u;
  }
  if constexpr (F::HIGH == 4) low |= (J == 3 ? u.high >> 2 : u.high << (4 - 2 * J)) & 0x30303030u;
  return low;
}

// Scale and offset of group j: an element is scale · (code − ZERO) − 0, or scale · code + offset.
template <class F, int J> DEV void scale_of(const Unit &u, float &scale, float &offset) {
  offset = 0;
  if constexpr (F::KIND == F::PLAIN) scale = f16_f32((u16)(J < 2 ? u.scales.x : u.scales.x >> 16));
  if constexpr (F::KIND == F::OFFSET) {
    const u32 s = J < 2 ? u.scales.x : u.scales.y;
    scale = f16_f32((u16)s);
    offset = f16_f32((u16)(s >> 16));
  }
  if constexpr (F::KIND == F::NESTED) {
    scale = f16_f32((u16)u.block) * (seven_bits<J / 2 * 2>(u.scales.x) - 128.0f);
    offset = -(f16_f32((u16)(u.block >> 16)) * (seven_bits<J / 2 * 2 + 1>(u.scales.x) - 128.0f));
  }
  if constexpr (F::KIND == F::SIGNED) scale = f16_f32((u16)u.block) * (eight_bits<J>(u.scales.x ^ 0x80808080u) - 32896.0f);
}

// Group j as bf16: elements e 0 and 1, 2 and 3. All products are exact in float32, so that fused they give the same; where a zero stands
// for a code, magic − zero is what its multiple takes away.
template <class F, int J> DEV u32x2 expand_group(const Unit &u) {
  const u32 b = codes_of<F, J>(u);
  float scale, offset, v[4];
  scale_of<F, J>(u, scale, offset);
  if constexpr (F::CODES == 16) {
    v[0] = eight_bits<0>(b), v[1] = eight_bits<1>(b), v[2] = eight_bits<2>(b), v[3] = eight_bits<3>(b);
    offset = -(32768.0f + F::ZERO) * scale;
  } else {
    v[0] = seven_bits<0>(b), v[1] = seven_bits<1>(b), v[2] = seven_bits<2>(b), v[3] = seven_bits<3>(b);
    if constexpr (F::ZERO != 0) offset = -(128.0f + F::ZERO) * scale;
    else v[0] -= 128.0f, v[1] -= 128.0f, v[2] -= 128.0f, v[3] -= 128.0f;
  }
#pragma unroll
  for (int e = 0; e < 4; e++) v[e] = __builtin_fmaf(v[e], scale, offset);
  return (u32x2){pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
}
template <class F> DEV void expand_unit(const Unit &u, u32x2 (&a)[4]) {
  a[0] = expand_group<F, 0>(u);
  a[1] = expand_group<F, 1>(u);
  a[2] = expand_group<F, 2>(u);
  a[3] = expand_group<F, 3>(u);
}
#endif
