// Causal attention of a step's rows over paged keys and values, several query heads to a key head. A sequence with one row is
// attend_one's and one with more is attend_many's; each leaves the other's alone.
//
// Keys and values of a layer are bf16 [page][key head][key, value][token of the page][D]. A row of qkv is [heads·D queries |
// kv_heads·D | kv_heads·D] bf16, of which the queries are read. out is bf16 [rows][heads·D]. No result depends on how the rows of
// a sequence are cut into steps' rows by attend_many, or on other sequences.
#ifndef ATTENTION_CUH
#define ATTENTION_CUH
#include "mma.cuh"

constexpr float NONE = -__builtin_inff(), LOG2E = 1.4426950408889634f;

// What both kernels know of a sequence: its first row in qkv, how many, how many tokens precede them, its pages.
struct Sequence { int row, rows, past; const int *pages; };

struct Arguments {
  const u16 *qkv;
  u16 *out;
  const u16 *cache;
  const int *tables, *row, *rows, *past;
  int max_pages, heads, kv_heads, page_shift;
  float scale;
};

DEV Sequence sequence(const Arguments &a, int i) { return {a.row[i], a.rows[i], a.past[i], a.tables + (i64)i * a.max_pages}; }

// Where the key of a token begins; its value lies D << page_shift elements on.
template <int D> DEV const u16 *key_of(const Arguments &a, const Sequence &s, int head, int token) {
  const i64 page = s.pages[token >> a.page_shift];
  return a.cache + (((page * a.kv_heads + head) * 2 << a.page_shift) + (token & ((1 << a.page_shift) - 1))) * D;
}

DEV u32x2 half_of(u32x4 v, int h) { return h ? (u32x2){v.z, v.w} : (u32x2){v.x, v.y}; }

// Chunk c of 16 bytes of row r of a tile lies at chunk swizzle(r, c): the reads of 2 rows × 4 chunks and of 8 rows × 1 chunk both
// meet every bank once.
DEV int swizzle(int r, int c) { return (c & ~7) | ((c & 7) ^ ((r & 1) << 2 | (r >> 1 & 3))); }

// The kernels' first parameters.
#define ARGUMENTS                                                                                                                \
  const u16 *qkv, u16 *out, const u16 *cache, const int *tables, const int *row, const int *rows, const int *past, int max_pages, \
      int heads, int kv_heads, int page_shift, float scale
#define THEM {qkv, out, cache, tables, row, rows, past, max_pages, heads, kv_heads, page_shift, scale}
#endif
