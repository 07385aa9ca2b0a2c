// Weights that stay Q4_0.
#include "quant_kernels.cuh"

struct Q4_0 : Plain<Q4_0> {
  static constexpr i32 KIND = PLAIN, ELEMENTS = 32, BYTES = 18, CODES = 8, HIGH = 0, SCALES = 4, BLOCKS = 0, ZERO = 8;
  static MEMBER u32 code(const u8 *row, i32 k) { return nibble(row + k / 32 * 18 + 2, k % 32); }
};
QUANTIZED(q4_0, Q4_0)
