// The kernels of weights that stay quantised, on the CPU. Reads cases: a format's number, N, K, M, bytes on the device, bytes of the file
// (u32 each), the file's blocks [N, K], and the bf16 that they stand for. Prints what differs and ends with 1.
#include "mma.cuh"
#include "product.cuh"
#include <random>

namespace any {
#include "mma.cu"
}
#undef PRODUCT
#include "quant_q8_0.cu"
#include "quant_q4_0.cu"
#include "quant_q4_1.cu"
#include "quant_q5_0.cu"
#include "quant_q5_1.cu"
#include "quant_q4_k.cu"
#include "quant_q5_k.cu"
#include "quant_q6_k.cu"

using std::vector;
static int failures, calls;
#define FAILED(...) (failures++, printf(__VA_ARGS__))

using Direct = void(const u16 *, const u8 *, void *, const float *, i32, i32, i32, i32, i32);
static const struct {
  const char *name;
  void (*repack)(u8 *, const u8 *, i32, i32, i32, i32);
  void (*expand)(u16 *, const u8 *, i32, i32);
  void (*embed)(float *, const u8 *, const i32 *, const i32 *, i32, i32);
  Direct *direct[4];
} formats[] = {
#define FORMAT(F) {#F, repack_##F, expand_##F, embed_##F, {direct_##F##_8, direct_##F##_16, direct_##F##_32, direct_##F##_64}}
    FORMAT(q8_0), FORMAT(q4_0), FORMAT(q4_1), FORMAT(q5_0), FORMAT(q5_1), FORMAT(q4_k), FORMAT(q5_k), FORMAT(q6_k)};

template <class T> static vector<T> read(size_t n) {
  vector<T> v(n);
  if (fread(v.data(), sizeof(T), n, stdin) != n) fault("the input ends early");
  return v;
}
static std::mt19937 source(1);
static float normal() {
  static std::normal_distribution<float> d;
  return d(source);
}

int main() {
  u32 head[6];
  while (fread(head, sizeof head, 1, stdin) == 1) {
    const auto &f = formats[head[0]];
    const i32 N = head[1], K = head[2], M = head[3], GUARD = 64;
    const vector<u8> file = read<u8>(head[5]);
    const vector<u16> want = read<u16>((size_t)N * K);
    // In two pieces, as a file comes.
    vector<u8> w(head[4] + GUARD, 0xff);
    const i32 first = N / 16 * 8;
    if (first) launch(2, 1, 1, 256, 1, [&] { f.repack(w.data(), file.data(), 0, first, N, K); });
    launch(1, 1, 1, 256, 1, [&] { f.repack(w.data(), file.data() + file.size() / N * first, first, N - first, N, K); });
    for (i32 i = 0; i < GUARD; i++)
      if (w[head[4] + i] != 0xff) FAILED("repack_%s wrote behind its segment\n", f.name), i = GUARD;
    vector<u16> expanded((size_t)N * K, 0xffff);
    launch(3, 1, 1, 256, 1, [&] { f.expand(expanded.data(), w.data(), N, K); });
    vector<i32> tokens = {N - 1, 0, ~1, 5}, sampled = {3, 7}, rows = {N - 1, 0, 7, 5};
    vector<float> embedded(4 * K, NAN);
    launch(4, 1, 1, 128, 1, [&] { f.embed(embedded.data(), w.data(), tokens.data(), sampled.data(), N, K); });
    size_t differ = 0;
    for (i32 i = 0; i < N * K; i++) differ += bf16_f32(expanded[i]) != bf16_f32(want[i]); // NaN differs
    for (i32 i = 0; i < 4 * K; i++) differ += embedded[i] != bf16_f32(want[rows[i / K] * K + i % K]);
    if (differ) FAILED("%s: N %d, K %d: %zu elements differ\n", f.name, N, K, differ);

    vector<u16> x(M * K);
    vector<float> bias(N), c0(M * N);
    for (u16 &v : x) v = f32_bf16(normal());
    for (float &v : bias) v = normal();
    for (float &v : c0) v = normal();
    for (i32 mode : {STORE_BF16, STORE_F32, ADD_F32, SWIGLU}) {
      if (mode == SWIGLU && N % 16) continue;
      const i32 columns = mode == SWIGLU ? N / 2 : N, size = mode == STORE_BF16 || mode == SWIGLU ? 2 : 4, stride = columns + 24;
      const float *b = mode & 1 ? bias.data() : nullptr;
      vector<u8> plain(M * columns * size), wide(M * stride * size, 0xff);
      if (mode == ADD_F32) memcpy(plain.data(), c0.data(), plain.size());
      for (i32 m = 0; m < M && mode == ADD_F32; m++) memcpy(wide.data() + m * stride * 4, c0.data() + m * N, N * 4);
      launch((M + 31) / 32, (N + 63) / 64, 1, 64, 1, [&] { any::mma_64x32(x.data(), want.data(), plain.data(), b, M, N, K, mode); });
      // Every kernel, from the one for as many rows to those for fewer, which take them by and by.
      for (i32 k = 3; k >= 0; k--) {
        const i32 most = 8 << k, tiles = 8 / slices(K) * (k > 1 ? 2 : 1);
        if (most > 8 && most / 2 >= M) continue;
        vector<u8> c = wide;
        launch((N + 16 * tiles - 1) / (16 * tiles), (M + most - 1) / most, 1, 256, 1, [&] { f.direct[k](x.data(), w.data(), c.data(), b, M, N, K, mode, stride); });
        calls++;
        differ = 0;
        for (i32 m = 0; m < M; m++)
          for (i32 i = 0; i < stride * size; i++) differ += c[m * stride * size + i] != (i < columns * size ? plain[m * columns * size + i] : 0xff);
        if (differ) FAILED("direct_%s_%d: %d rows, N %d, K %d, mode %d: %zu bytes differ\n", f.name, most, M, N, K, mode, differ);
      }
    }
  }
  printf("%d calls, %d failures\n", calls, failures);
  return failures != 0 || !calls;
}
