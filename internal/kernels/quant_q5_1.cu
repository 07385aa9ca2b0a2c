// Weights that stay Q5_1.
#include "quant_kernels.cuh"

struct Q5_1 : Offset<Q5_1> {
  static constexpr i32 KIND = OFFSET, ELEMENTS = 32, BYTES = 24, CODES = 8, HIGH = 2, SCALES = 8, BLOCKS = 0, ZERO = 0;
  static MEMBER u32 code(const u8 *row, i32 k) {
    const u8 *b = row + k / 32 * 24;
    return nibble(b + 8, k % 32) | (read32(b + 4) >> k % 32 & 1) << 4;
  }
};
QUANTIZED(q5_1, Q5_1)
