// The kernels of attention on the CPU: against float64, in pieces and whole, with the parts' blocks in a cluster and without, and with the
// rotation within against the rotation in front, to the bit. Prints what differs and ends with 1.
#include "hopper.cuh"
#include "mma.cuh"
#include "norm.cuh"
#include "rope.cuh"
#include <algorithm>
#include <random>

namespace light {
#include "engine.cu"
}
#include "attention.cuh"
namespace one {
#include "attend_one.cu"
}
#undef ATTEND
#undef ATTEND_ROPE
#undef BOUNDS
#undef ROPE_ARGUMENTS
#undef BULK
#define BULK 0 // as for a GPU without copies of whole pages
namespace ampere {
#include "attend_one.cu"
}
#undef ATTEND
namespace many {
#include "attend_many.cu"
}
#undef ATTEND
namespace wide {
#include "attend_wgmma.cu"
}

using std::vector;
static int failures, calls;
#define FAILED(...) (failures++, printf(__VA_ARGS__))

static std::mt19937 source(1);
static u16 normal() {
  static std::normal_distribution<float> d;
  return f32_bf16(d(source));
}

struct Rows { int rows, past; };

// A step. Pages are scattered; what no token is in holds NaN, and pages that no token needs are outside of memory.
struct Step {
  int D, heads, kv_heads, shift, max_pages = 0, total = 0;
  vector<Rows> seqs;
  vector<u16> qkv, cache;
  vector<int> tables, row, rows, past;
  Step(int D, int heads, int kv_heads, int shift, vector<Rows> seqs) : D(D), heads(heads), kv_heads(kv_heads), shift(shift), seqs(seqs) {
    int pages = 0;
    auto needed = [&](Rows s) { return ((s.past + s.rows - 1) >> shift) + 1; };
    for (Rows s : seqs) {
      row.push_back(total), rows.push_back(s.rows), past.push_back(s.past);
      total += s.rows, pages += needed(s);
      if (needed(s) > max_pages) max_pages = needed(s);
    }
    qkv.resize(total * width());
    for (u16 &v : qkv) v = normal();
    cache.assign((size_t)pages * kv_heads * 2 * D << shift, 0x7fff);
    tables.assign(seqs.size() * max_pages, 1 << 24);
    vector<int> order(pages);
    for (int i = 0; i < pages; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), source);
    for (size_t i = 0, next = 0; i < seqs.size(); i++) {
      for (int p = 0; p < needed(seqs[i]); p++) tables[i * max_pages + p] = order[next++];
      for (int t = 0; t < seqs[i].past + seqs[i].rows; t++)
        for (int h = 0; h < kv_heads; h++)
          for (int half = 0; half < 2; half++)
            for (int e = 0; e < D; e++) at(i, t, h, half)[e] = normal();
    }
  }
  int width() const { return (heads + 2 * kv_heads) * D; }
  u16 *at(int seq, int t, int head, int half) {
    const size_t page = tables[seq * max_pages + (t >> shift)];
    return &cache[((((page * kv_heads + head) * 2 + half) << shift) + (t & ((1 << shift) - 1))) * D];
  }
  float scale() const { return 1 / sqrtf(D); }
  // What the rows of the sequences that have one, or more, are in float64.
  void check(const char *name, const vector<u16> &out, bool single) {
    for (size_t i = 0; i < seqs.size(); i++)
      for (int r = 0; r < seqs[i].rows && (seqs[i].rows == 1) == single; r++)
        for (int h = 0; h < heads; h++) {
          const u16 *q = &qkv[(row[i] + r) * width() + h * D];
          vector<double> weight, value(D), size(D);
          double top = -1e300, sum = 0;
          for (int t = 0; t <= seqs[i].past + r; t++) {
            double s = 0;
            for (int e = 0; e < D; e++) s += (double)bf16_f32(q[e]) * bf16_f32(at(i, t, h / (heads / kv_heads), 0)[e]);
            weight.push_back(s * scale());
            top = fmax(top, weight[t]);
          }
          for (size_t t = 0; t < weight.size(); t++) {
            const double w = exp(weight[t] - top);
            sum += w;
            for (int e = 0; e < D; e++) {
              const double v = bf16_f32(at(i, t, h / (heads / kv_heads), 1)[e]);
              value[e] += w * v, size[e] += w * fabs(v);
            }
          }
          for (int e = 0; e < D; e++) {
            const double got = bf16_f32(out[((size_t)(row[i] + r) * heads + h) * D + e]), want = value[e] / sum;
            if (!(fabs(got - want) <= size[e] / sum * 0x1p-8 + fabs(want) * 0x1p-8)) {
              FAILED("%s: heads %d:%d of %d, sequence %zu row %d head %d element %d is %g, want %g\n", name, heads, kv_heads, D, i, r, h, e, got, want);
              return;
            }
          }
        }
  }
};

template <class T> static void same(const char *name, const Step &s, const vector<T> &got, const vector<T> &want) {
  size_t differ = 0;
  for (size_t i = 0; i < want.size(); i++) differ += got[i] != want[i];
  if (differ) FAILED("%s: heads %d:%d of %d: %zu of %zu elements differ\n", name, s.heads, s.kv_heads, s.D, differ, want.size());
}

template <int D> struct Kernels;
#define KERNELS_OF(SIZE)                                                                                                      \
  template <> struct Kernels<SIZE> {                                                                                          \
    static constexpr auto many = many::attend_many_##SIZE;                                                                    \
    static constexpr auto wide = wide::attend_wgmma_##SIZE;                                                              \
    static constexpr auto plain = one::attend_one_##SIZE, cluster = one::attend_cluster_##SIZE;                               \
    static constexpr auto rope = one::attend_rope_##SIZE, rope_cluster = one::attend_rope_cluster_##SIZE;                     \
    static constexpr auto ampere = ampere::attend_one_##SIZE;                                                                 \
    static constexpr auto ampere_rope = ampere::attend_rope_##SIZE;                                                           \
    static constexpr auto store = light::rope_store_##SIZE;                                                                   \
  };
KERNELS_OF(64)
KERNELS_OF(128)

#define STEP(s, out) s.qkv.data(), out.data(), s.cache.data(), s.tables.data(), s.row.data(), s.rows.data(), s.past.data(), s.max_pages, s.heads, s.kv_heads, s.shift, s.scale()

static int groups_of(const Step &s) { return s.kv_heads * ((s.heads / s.kv_heads + 7) / 8); }

// How the parts of sequences are shared out: teams of a block, parts of a block, whether blocks are in a cluster, tiles of a ring, without
// copies of whole pages.
struct Way { int teams, per; bool cluster; int ring; bool plain; };
static const Way ways[] = {{1, 1, false, 2}, {1, 1, true, 3}, {1, 4, false, 6}, {1, 2, false, 4}, {3, 3, false, 2}, {3, 6, false, 2}, {3, 1, false, 2}, {1, 1, false, 0, true}, {1, 4, false, 0, true}};

// The rows of sequences that have one; cos and sin are null, or the tables by which queries and keys are yet to be rotated.
template <int D> static vector<u16> decode(Step &s, Way way, const float *cos, const float *sin, int interleaved) {
  vector<u16> out((size_t)s.total * s.heads * D, 0xffff);
  int longest = 0;
  for (Rows r : s.seqs) longest = r.rows == 1 && r.past + 1 > longest ? r.past + 1 : longest;
  if (D != 64) way.teams = 1; // there are no others
  const int parts = longest > 4096 ? 16 : (longest + 255) / 256, groups = groups_of(s), seqs = s.seqs.size(), per = way.per;
  const int blocks = (parts + per - 1) / per;
  const int ring = way.plain ? ampere::RING80<D> : way.ring;
  vector<one::Found<D>> partial((size_t)seqs * groups * 16);
  memset((void *)partial.data(), 0xff, partial.size() * sizeof partial[0]);
  vector<u32> arrived(seqs * groups);
  calls++;
  launch(blocks, groups, seqs, 128 * way.teams, way.cluster ? blocks : 1, [&] {
    auto run = [&](auto plain, auto rope, auto *partial) {
      if (cos) rope(STEP(s, out), partial, arrived.data(), cos, sin, interleaved, per, ring);
      else plain(STEP(s, out), partial, arrived.data(), per, ring);
    };
    if (way.plain) run(Kernels<D>::ampere, Kernels<D>::ampere_rope, (ampere::Found<D> *)partial.data());
    else if (way.cluster) run(Kernels<D>::cluster, Kernels<D>::rope_cluster, partial.data());
    else if constexpr (D == 64) way.teams > 1 ? run(one::attend_teams_64, one::attend_rope_teams_64, partial.data()) : run(Kernels<D>::plain, Kernels<D>::rope, partial.data());
    else run(Kernels<D>::plain, Kernels<D>::rope, partial.data());
  });
  for (u32 n : arrived)
    if (n) FAILED("arrivals are left\n");
  return out;
}

// The rows of sequences that have more than one, by mma.sync or by wgmma, there with fewer blocks than items.
template <int D> static vector<u16> prompts(Step &s, bool hopper) {
  vector<u16> out((size_t)s.total * s.heads * D, 0xffff);
  int most = 0;
  for (int r : s.rows) most = r > most ? r : most;
  calls++;
  if (!hopper) {
    launch((most * (s.heads / s.kv_heads) + 63) / 64, s.kv_heads, s.seqs.size(), D == 64 ? 256 : 128, 1, [&] { Kernels<D>::many(STEP(s, out)); });
    return out;
  }
  alignas(64) tensor_map map; // as EncodeKVBF16 makes it
  const uint64_t size[] = {64, 8, D / 64, s.cache.size() / D / 8}, pitch[] = {2 * D, 128, 16 * D};
  const uint32_t box[] = {64, 8, D / 64, 2}, step[] = {1, 1, 1, 1};
  if (ptx_make_map(&map, 9, 4, (uint64_t)s.cache.data(), size, pitch, box, step, 0, 3, 0)) FAILED("no map of the cache\n");
  launch(5, 1, 1, D == 64 ? 256 : 384, 1, [&] { Kernels<D>::wide(STEP(s, out), &map, (int)s.seqs.size(), most); });
  return out;
}

// Queries and keys of a row a sequence as rope_store leaves them; norms: null, or the weights of queries and those of keys.
static void check_rotated(const Step &before, const Step &after, int interleaved, const float *norms) {
  const int D = before.D;
  for (size_t i = 0; i < before.seqs.size(); i++)
    for (int h = 0; h < before.heads + before.kv_heads; h++) {
      const u16 *from = &before.qkv[i * before.width() + h * D], *to = &after.qkv[i * before.width() + h * D];
      const float *w = norms ? norms + (h < before.heads ? 0 : D) : nullptr;
      double squares = 0;
      for (int e = 0; e < D; e++) squares += (double)bf16_f32(from[e]) * bf16_f32(from[e]);
      auto value = [&](int e) { return bf16_f32(from[e]) * (w ? w[e] / sqrt(squares / D + 1e-6) : 1); };
      for (int pair = 0; pair < D / 2; pair++) {
        const int x = interleaved ? 2 * pair : pair, y = interleaved ? x + 1 : pair + D / 2;
        const double angle = before.past[i] * pow(1e4, -2.0 * pair / D), a = value(x), b = value(y);
        if (!(fabs(bf16_f32(to[x]) - (a * cos(angle) - b * sin(angle))) <= 0x1p-7 * (fabs(a) + fabs(b))) ||
            !(fabs(bf16_f32(to[y]) - (b * cos(angle) + a * sin(angle))) <= 0x1p-7 * (fabs(a) + fabs(b))))
          return (void)FAILED("rope_store of %d: sequence %zu head %d pair %d\n", D, i, h, pair);
      }
    }
}

template <int D> static void test(int heads, int kv_heads, int shift) {
  Step s(D, heads, kv_heads, shift, {{1, 0}, {5, 3}, {1, 15}, {1, 16}, {2, 64}, {1, 300}, {150, 30}, {1, 700}, {3, 509}});
  const vector<u16> out = decode<D>(s, ways[0], nullptr, nullptr, 0);
  s.check("attend_one", out, true);
  for (const Way &way : ways) same("attend_one in other ways", s, decode<D>(s, way, nullptr, nullptr, 0), out);
  for (bool hopper : {false, true}) {
    const char *name = hopper ? "attend_wgmma" : "attend_many";
    const vector<u16> prompt = prompts<D>(s, hopper);
    s.check(name, prompt, false);
    Step cut = s; // the prompt of 150 rows in three steps of 20, 128 and 2 has the same results
    const int whole = 6, first = s.row[whole], begin[] = {0, 20, 148, 150};
    for (int piece = 0; piece < 3; piece++) {
      for (int &r : cut.rows) r = 0;
      cut.row[whole] = first + begin[piece], cut.rows[whole] = begin[piece + 1] - begin[piece], cut.past[whole] = 30 + begin[piece];
      const vector<u16> part = prompts<D>(cut, hopper);
      const size_t from = (size_t)cut.row[whole] * heads * D, n = (size_t)cut.rows[whole] * heads * D;
      same(name, s, vector<u16>(part.begin() + from, part.begin() + from + n), vector<u16>(prompt.begin() + from, prompt.begin() + from + n));
    }
  }

  vector<Rows> single = {{1, 0}, {1, 15}, {1, 16}, {1, 255}, {1, 256}, {1, 530}};
  vector<float> cos(600 * D / 2), sin(600 * D / 2);
  for (int p = 0; p < 600; p++)
    for (int i = 0; i < D / 2; i++) cos[p * D / 2 + i] = ::cos(p * pow(1e4, -2.0 * i / D)), sin[p * D / 2 + i] = ::sin(p * pow(1e4, -2.0 * i / D));
  for (int interleaved : {0, 1}) {
    Step turned(D, heads, kv_heads, shift, single);
    vector<int> slots;
    for (size_t i = 0; i < single.size(); i++) {
      slots.push_back((turned.tables[i * turned.max_pages + (single[i].past >> shift)] << shift) + (single[i].past & ((1 << shift) - 1)));
      for (int h = 0; h < 2 * kv_heads; h++) memset(turned.at(i, single[i].past, h / 2, h & 1), 0xff, 2 * D); // not stored yet
    }
    vector<Step> within(std::size(ways), turned);
    auto store = [&](Step &to, const float *q, const float *k) {
      launch((to.total * to.width() / 16 + 255) / 256, 1, 1, 256, 1, [&] {
        Kernels<D>::store(to.qkv.data(), to.cache.data(), cos.data(), sin.data(), q, k, to.past.data(), slots.data(), 1e-6f, heads, kv_heads, to.total, interleaved, 1 << shift);
      });
    };
    Step normed = turned;
    vector<float> norms(2 * D);
    for (float &v : norms) v = bf16_f32(normal());
    store(normed, norms.data(), norms.data() + D);
    check_rotated(within[0], normed, interleaved, norms.data());
    store(turned, nullptr, nullptr);
    check_rotated(within[0], turned, interleaved, nullptr);
    const vector<u16> want = decode<D>(turned, ways[0], nullptr, nullptr, 0);
    turned.check("rope_store and attend_one", want, true);
    for (size_t way = 0; way < std::size(ways); way++) {
      Step &w = within[way];
      same("attend_rope", w, decode<D>(w, ways[way], cos.data(), sin.data(), interleaved), want);
      same("keys and values of attend_rope", w, w.cache, turned.cache);
    }
  }
}

int main() {
  test<64>(14, 2, 4);
  test<64>(9, 3, 6);
  test<128>(4, 1, 4);
  test<128>(10, 1, 5); // two groups of query heads
  Step longest(64, 2, 1, 4, {{1, 4300}}); // parts of twice 256 tokens
  const vector<u16> out = decode<64>(longest, ways[0], nullptr, nullptr, 0);
  longest.check("attend_one", out, true);
  for (const Way &way : ways)
    if (!way.cluster) same("attend_one of many tokens", longest, decode<64>(longest, way, nullptr, nullptr, 0), out);
  printf("%d calls, %d failures\n", calls, failures);
  return failures != 0;
}
