// Weights that stay Q6_K.
#include "quant_kernels.cuh"

struct Q6_K : Kinds {
  static constexpr i32 KIND = SIGNED, ELEMENTS = 256, BYTES = 210, CODES = 8, HIGH = 4, SCALES = 4, BLOCKS = 2, ZERO = 32;
  static MEMBER u32 code(const u8 *row, i32 k) {
    const i32 half = k % 256 / 128, group = k % 128 / 32, i = k % 32;
    const u8 *b = row + k / 256 * 210;
    return (b[64 * half + (group & 1) * 32 + i] >> group / 2 * 4 & 15) | (b[128 + 32 * half + i] >> 2 * group & 3) << 4;
  }
  static MEMBER u32x2 scales(const u8 *row, i32 block, bool) { return (u32x2){read32(row + block / 4 * 210 + 192 + block % 4 * 4), 0}; }
  static MEMBER u32 block(const u8 *row, i32 block) { return read16(row + block * 210 + 208); }
};
QUANTIZED(q6_k, Q6_K)
