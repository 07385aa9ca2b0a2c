// Weights that stay Q4_1.
#include "quant_kernels.cuh"

struct Q4_1 : Offset<Q4_1> {
  static constexpr i32 KIND = OFFSET, ELEMENTS = 32, BYTES = 20, CODES = 8, HIGH = 0, SCALES = 8, BLOCKS = 0, ZERO = 0;
  static MEMBER u32 code(const u8 *row, i32 k) { return nibble(row + k / 32 * 20 + 4, k % 32); }
};
QUANTIZED(q4_1, Q4_1)
