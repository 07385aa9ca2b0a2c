// Weights that stay Q4_K.
#include "quant_kernels.cuh"

struct Q4_K : Nested<Q4_K> {
  static constexpr i32 KIND = NESTED, ELEMENTS = 256, BYTES = 144, CODES = 8, HIGH = 0, SCALES = 4, BLOCKS = 4, ZERO = 0;
  static MEMBER u32 code(const u8 *row, i32 k) {
    const u8 *b = row + k / 256 * 144;
    return b[16 + k % 256 / 64 * 32 + k % 32] >> (k / 32 & 1) * 4 & 15;
  }
};
QUANTIZED(q4_k, Q4_K)
