// Every kernel of the matrix products and the norms that may be within them, at shapes with tails of every kind, on the CPU: against
// float64, and against each other to the bit where they sum in the same order. Prints what differs and ends with 1.
#include "hopper.cuh"
#include "mma.cuh"
#include "norm.cuh"
#include "product.cuh"
#include "rope.cuh"
#include <random>

namespace light {
#include "engine.cu"
}
namespace few {
#include "skinny.cu"
}
namespace any {
#include "mma.cu"
}
#undef PRODUCT
namespace hopper {
#include "wgmma.cu"
}

using std::vector;
static int failures, calls;
#define FAILED(...) (failures++, printf(__VA_ARGS__))

static std::mt19937 source(1);
static float normal() {
  static std::normal_distribution<float> d;
  return d(source);
}

constexpr float EPS = 1e-6f;

struct Operands {
  int M, N, K;
  vector<float> wide, norm, bias, c0; // wide: x before the norm
  vector<u16> x, w;                   // x has two rows more, of NaN
  Operands(int M, int N, int K) : M(M), N(N), K(K), wide(M * K), norm(K), bias(N), c0(M * N), x((M + 2) * K, 0x7fff), w(N * K) {
    for (float &v : wide) v = 3 * normal();
    for (float &v : norm) v = 1 + 0.3f * normal();
    for (float &v : bias) v = normal();
    for (float &v : c0) v = normal();
    for (u16 &v : w) v = f32_bf16(normal() / sqrtf(K));
  }
};

struct Call {
  const Operands &o;
  int rows, mode;
  const float *bias() const { return mode & 1 ? o.bias.data() : nullptr; }
  int width() const { return mode == SWIGLU ? o.N / 2 : o.N; }
  size_t size() const { return mode == STORE_BF16 || mode == SWIGLU ? 2 : 4; }
  // The bytes of c as run(c) leaves them; what lies behind must stay as it is.
  template <class Run> vector<u8> run(const char *name, Run run) const {
    constexpr int GUARD = 64;
    vector<u8> c(rows * width() * size() + GUARD, 0xff);
    if (mode == ADD_F32) memcpy(c.data(), o.c0.data(), rows * width() * 4);
    run((void *)c.data());
    calls++;
    for (int i = 0; i < GUARD; i++)
      if (c[c.size() - 1 - i] != 0xff) return FAILED("%s wrote behind c\n", name), vector<u8>();
    c.resize(c.size() - GUARD);
    return c;
  }
  void same(const char *name, const vector<u8> &got, const vector<u8> &want) const {
    size_t differ = 0;
    for (size_t i = 0; i < got.size(); i++) differ += got[i] != want[i];
    if (got.size() > want.size() || differ) FAILED("%s: %d rows, N %d, K %d, mode %d: %zu of %zu bytes differ\n", name, rows, o.N, o.K, mode, differ, got.size());
  }
  // A sum with its bias in float64, and the sum of the absolute values.
  double sum(int m, int n, double &all) const {
    double v = bias() ? bias()[n] : 0;
    all = fabs(v);
    for (int k = 0; k < o.K; k++) {
      const double p = (double)bf16_f32(o.x[m * o.K + k]) * bf16_f32(o.w[n * o.K + k]);
      v += p, all += fabs(p);
    }
    return v;
  }
  void exact(const char *name, const vector<u8> &got) const {
    for (int m = 0; m < rows; m++)
      for (int n = 0; n < width(); n += 1 + n % 7) {
        double all, up_all, want = sum(m, n, all), allowed = 2e-6 * all + 1e-7, v;
        if (mode == SWIGLU) {
          const double up = sum(m, o.N / 2 + n, up_all), s = want / (1 + exp(-want));
          allowed = 0x1p-7 * (fabs(want * up) + fabs(s * up)) + 1e-4;
          want = s * up;
        } else if (mode == STORE_BF16) allowed += fabs(want) * 0x1p-8;
        else if (mode == ADD_F32) want += o.c0[m * o.N + n], allowed += fabs(want) * 1e-7;
        if (size() == 2) v = bf16_f32(((const u16 *)got.data())[m * width() + n]);
        else v = ((const float *)got.data())[m * width() + n];
        if (!(fabs(v - want) <= allowed)) {
          FAILED("%s: N %d, K %d, mode %d: [%d, %d] is %g, want %g\n", name, o.N, o.K, mode, m, n, v, want);
          return;
        }
      }
  }
};

using Product = void(const u16 *, const u16 *, void *, const float *, int, int, int, int);
using Mapped = void(const void *, const void *, void *, const float *, int, int, int, int);
using Normed = void(const float *, const u16 *, void *, const float *, int, int, int, int, const float *, float);
using Norm = void(u16 *, const float *, const float *, i32, float);

static void norm_rows(Operands &o) {
  static Norm *const norms[] = {light::rms_norm_1, light::rms_norm_2, light::rms_norm_4, light::rms_norm_8};
  Norm *norm = norms[o.K <= 1024 ? 0 : o.K <= 2048 ? 1 : o.K <= 4096 ? 2 : 3];
  launch(o.M, 1, 1, 256, 1, [&] { norm(o.x.data(), o.wide.data(), o.norm.data(), o.K, EPS); });
  for (int m = 0; m < o.M; m++) {
    double squares = 0;
    for (int k = 0; k < o.K; k++) squares += (double)o.wide[m * o.K + k] * o.wide[m * o.K + k];
    for (int k = 0; k < o.K; k++) {
      const double want = o.wide[m * o.K + k] / sqrt(squares / o.K + EPS) * o.norm[k];
      if (!(fabs(bf16_f32(o.x[m * o.K + k]) - want) <= fabs(want) * 0x1.02p-8)) return (void)FAILED("norm of %d: row %d, element %d\n", o.K, m, k);
    }
  }
}

// The kernels for few rows, on blocks that take one tile each, and on few that take many.
static void test_few(const Call &c, const vector<u8> &want) {
  static const struct { const char *name; Product *kernel; int most, slices, rows; } kernels[] = {
      {"skinny1_4", few::skinny1_4, 8, 4, 32}, {"skinny1_8", few::skinny1_8, 8, 8, 16}, {"skinny2_4", few::skinny2_4, 16, 4, 32},
      {"skinny2_8", few::skinny2_8, 16, 8, 16}};
  const Operands &o = c.o;
  for (auto &k : kernels) {
    if (c.rows > k.most || k.slices != slices(o.K)) continue;
    const int tiles = (o.N + k.rows - 1) / k.rows;
    for (int blocks : {tiles, tiles > 3 ? 2 : 1})
      c.same(k.name, c.run(k.name, [&](void *to) {
        launch(blocks, 1, 1, 256, 1, [&] { k.kernel(o.x.data(), o.w.data(), to, c.bias(), c.rows, o.N, o.K, c.mode); });
      }), want);
  }
  const int quads = o.K <= 1024 ? 1 : o.K <= 2048 ? 2 : o.K <= 4096 ? 4 : 8, tiles = (o.N + 128 / slices(o.K) - 1) / (128 / slices(o.K));
  if (c.rows * quads > 8) return;
  Normed *const kernel = slices(o.K) == 4 ? few::skinny_norm_4 : few::skinny_norm_8;
  for (int blocks : {tiles, tiles > 3 ? 2 : 1})
    c.same("skinny_norm", c.run("skinny_norm", [&](void *to) {
      launch(blocks, 1, 1, 256, 1, [&] { kernel(o.wide.data(), o.w.data(), to, c.bias(), c.rows, o.N, o.K, c.mode, o.norm.data(), EPS); });
    }), want);
}

static void encode(tensor_map *map, const u16 *base, vector<uint64_t> size, vector<uint64_t> pitch, vector<u32> box) {
  const u32 step[4] = {1, 1, 1, 1};
  if (ptx_make_map(map, 9, size.size(), (u64)base, size.data(), pitch.data(), box.data(), step, 0, 3, 0)) fault("a tensor map");
}

static void test_hopper(const Call &c, const vector<u8> &want) {
#define OF(NAME, W, X, FORM) {#NAME, hopper::NAME, W, X, hopper::FORM, W * 2 + 128}
#define MANY(NAME, W, X, THREADS) {#NAME, hopper::NAME, W, X, hopper::MANY, THREADS}
  static const struct { const char *name; Mapped *kernel; int w, x, form, threads; } kernels[] = {
      MANY(ordered_64x64, 64, 64, 256), MANY(ordered_64x128, 64, 128, 256), MANY(ordered_128x144, 128, 144, 384), MANY(ordered_128x176, 128, 176, 384),
      MANY(ordered_128x200, 128, 200, 384), MANY(ordered_128x256, 128, 256, 384), MANY(ordered_128x128_turns, 128, 128, 384),
      MANY(ordered_128x176_turns, 128, 176, 384), MANY(ordered_128x176_gated, 128, 176, 384),
      OF(sliced_64x16, 64, 16, SLICED), OF(sliced_64x32, 64, 32, SLICED),
      OF(sliced_128x64, 128, 64, SLICED), OF(sliced_128x128, 128, 128, SLICED), OF(sliced_64x128, 64, 128, SLICED), OF(sliced_128x144, 128, 144, SLICED),
      OF(sliced_128x176, 128, 176, SLICED), OF(cluster_64x16, 64, 16, CLUSTER), OF(cluster_64x32, 64, 32, CLUSTER), OF(cluster_64x64, 64, 64, CLUSTER),
      OF(cluster_64x128, 64, 128, CLUSTER)};
  const Operands &o = c.o;
  const uint64_t row = o.K * 2, K = o.K, N = o.N;
  vector<u8> ordered;
  for (auto &k : kernels) {
    if (k.kernel == hopper::ordered_128x176_gated && c.mode != SWIGLU) continue;
    if (o.K > 256 && c.mode != STORE_F32 && k.form != hopper::CLUSTER) continue; // modes were seen with few slices
    alignas(64) tensor_map x, w;
    encode(&x, o.x.data(), {K, (uint64_t)o.M + 2}, {row}, {64, (u32)k.x});
    if (c.mode == SWIGLU) encode(&w, o.w.data(), {K, 8, 2, N / 16}, {row, N / 2 * row, 8 * row}, {64, 8, 2, 4});
    else encode(&w, o.w.data(), {K, N}, {row}, {64, 64});
    const u32 tiles = (c.rows + k.x - 1) / k.x * ((o.N + k.w - 1) / k.w);
    for (u32 cluster : {1, 2, 4, 8}) {
      if (k.form == hopper::CLUSTER ? cluster == 1 || (int)cluster > slices(o.K) || (o.K > 256 && cluster == 2) : cluster > 1) continue;
      const u32 blocks = k.form == hopper::CLUSTER ? tiles * cluster : tiles > 5 ? 2 : tiles > 1 ? tiles - 1 : 1; // of which some take more tiles
      const vector<u8> got = c.run(k.name, [&](void *to) {
        launch(blocks, 1, 1, k.threads, cluster, [&] { k.kernel(&x, &w, to, c.bias(), c.rows, o.N, o.K, c.mode); });
      });
      if (k.form != hopper::MANY) c.same(k.name, got, want);
      else if (ordered.empty()) c.exact(k.name, ordered = got);
      else c.same(k.name, got, ordered);
    }
  }
}

int main() {
  // Hopper's kernels, of which there are many, run at some of the shapes.
  static const struct { int M, N, K; bool hopper; } shapes[] = {
      {3, 80, 72, true}, {8, 80, 896, false}, {17, 144, 136, true}, {2, 48, 2056, true}, {1, 16, 8, false}, {5, 144, 200, false},
      {2, 48, 4096, false}, {1, 16, 8192, false}, {4, 48, 1536, false}, {8, 80, 1024, false}, {13, 64, 264, false}, {16, 48, 2304, false}, {130, 80, 136, true}, {530, 272, 72, true}};
  for (auto &s : shapes) {
    Operands o(s.M, s.N, s.K);
    norm_rows(o);
    for (int mode : {STORE_BF16, STORE_F32, ADD_F32, SWIGLU}) {
      const Call c{o, o.M, mode};
      const vector<u8> want = c.run("mma_64x32", [&](void *to) {
        launch((o.M + 31) / 32, (o.N + 63) / 64, 1, 64, 1, [&] { any::mma_64x32(o.x.data(), o.w.data(), to, c.bias(), o.M, o.N, o.K, mode); });
      });
      c.exact("mma_64x32", want);
      c.same("mma_128x64", c.run("mma_128x64", [&](void *to) {
        launch((o.M + 63) / 64, (o.N + 127) / 128, 1, 256, 1, [&] { any::mma_128x64(o.x.data(), o.w.data(), to, c.bias(), o.M, o.N, o.K, mode); });
      }), want);
      test_few(c, want);
      test_few({o, 1, mode}, want); // the first row alone
      if (s.hopper) test_hopper(c, want);
    }
  }
  printf("%d calls, %d failures\n", calls, failures);
  return failures != 0;
}
