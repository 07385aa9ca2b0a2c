// The rotary embedding of one pair, in one place, so that every kernel that rotates gets the same bits.
#ifndef ROPE_CUH
#define ROPE_CUH
#include "nv.cuh"

DEV void rotate_pair(float cos, float sin, float &x, float &y) {
  const float a = x, b = y;
  x = __builtin_fmaf(a, cos, -(b * sin));
  y = __builtin_fmaf(b, cos, a * sin);
}
#endif
