// Weights that stay Q8_0.
#include "quant_kernels.cuh"

struct Q8_0 : Plain<Q8_0> {
  static constexpr i32 KIND = PLAIN, ELEMENTS = 32, BYTES = 34, CODES = 16, HIGH = 0, SCALES = 4, BLOCKS = 0, ZERO = 128;
  static MEMBER u32 code(const u8 *row, i32 k) { return row[k / 32 * 34 + 2 + k % 32] ^ 0x80; }
};
QUANTIZED(q8_0, Q8_0)
