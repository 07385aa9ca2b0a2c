// RMSNorm of a float32 row in one place, so that every kernel that norms gets the same bits: 256 threads, of which thread t takes
// the quads of elements t, t + 256, …, in order; the sums of a warp's lanes are added by warp_sum, and those of the 8 warps as below.
#ifndef NORM_CUH
#define NORM_CUH
#include "nv.cuh"

DEV float add_squares(float sum, f32x4 v) {
  sum = __builtin_fmaf(v.x, v.x, sum);
  sum = __builtin_fmaf(v.y, v.y, sum);
  sum = __builtin_fmaf(v.z, v.z, sum);
  return __builtin_fmaf(v.w, v.w, sum);
}
// What a row is multiplied by; part: the sums of the 8 warps.
DEV float norm_scale(const float *part, int width, float eps) {
  const float sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  return rsqrt(sum / (float)width + eps);
}
DEV u32x2 normed(f32x4 v, float scale, f32x4 w) {
  return (u32x2){pack_bf16(v.x * scale * w.x, v.y * scale * w.y), pack_bf16(v.z * scale * w.z, v.w * scale * w.w)};
}
#endif
