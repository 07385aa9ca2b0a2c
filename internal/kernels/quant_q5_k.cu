// Weights that stay Q5_K.
#include "quant_kernels.cuh"

struct Q5_K : Nested<Q5_K> {
  static constexpr i32 KIND = NESTED, ELEMENTS = 256, BYTES = 176, CODES = 8, HIGH = 2, SCALES = 4, BLOCKS = 4, ZERO = 0;
  static MEMBER u32 code(const u8 *row, i32 k) {
    const u8 *b = row + k / 256 * 176;
    return (b[48 + k % 256 / 64 * 32 + k % 32] >> (k / 32 & 1) * 4 & 15) | (b[16 + k % 32] >> k % 256 / 32 & 1) << 4;
  }
};
QUANTIZED(q5_k, Q5_K)
