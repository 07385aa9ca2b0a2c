// Weights that stay Q5_0.
#include "quant_kernels.cuh"

struct Q5_0 : Plain<Q5_0> {
  static constexpr i32 KIND = PLAIN, ELEMENTS = 32, BYTES = 22, CODES = 8, HIGH = 2, SCALES = 4, BLOCKS = 0, ZERO = 16;
  static MEMBER u32 code(const u8 *row, i32 k) {
    const u8 *b = row + k / 32 * 22;
    return nibble(b + 6, k % 32) | (read32(b + 2) >> k % 32 & 1) << 4;
  }
};
QUANTIZED(q5_0, Q5_0)
