// The engine's kernels, by name, in plain C: what internal/kernels' CUDA C computes, with the same roundings to bf16. An access
// outside an allocation is an illegal address, which spoils the context, as on a GPU. Included by launch.h.
#pragma GCC push_options
#pragma GCC optimize("O2")
#include <math.h>

static float widen16(uint16_t b) { union { uint32_t u; float f; } x = {(uint32_t)b << 16}; return x.f; }

static uint16_t narrow16(float f) {
    union { float f; uint32_t u; } x = {f};
    if (f != f) return 0x7fff;
    return (uint16_t)((x.u + 0x7fff + (x.u >> 16 & 1)) >> 16);
}

static float half_float(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
    return h & 0x8000 ? -v : v;
}

#define U64(i) (*(uint64_t *)k->p[i])
#define I32(i) (*(int32_t *)k->p[i])
#define F32(i) (*(float *)k->p[i])
// A parameter that points to n elements in one allocation; the kernel faults where it doesn't.
#define AT(type, i, n) ({ void *p_ = within(U64(i), sizeof(type) * (size_t)(n)); if (!p_) return ILLEGAL_ADDRESS; (type *)p_; })
#define AT_OR_NULL(type, i, n) (U64(i) ? AT(type, i, n) : NULL)

static CUresult run_embed(struct node *k) {
    int rows = k->grid[0], cols = I32(4);
    float *dst = AT(float, 0, (size_t)rows * cols);
    int32_t *tokens = AT(int32_t, 2, rows), *sampled = AT(int32_t, 3, 1);
    for (int r = 0; r < rows; r++) {
        int t = tokens[r] < 0 ? sampled[~tokens[r]] : tokens[r];
        uint16_t *from = within(U64(1) + 2ull * (t < 0 ? 0 : t) * cols, 2ull * cols) ? (uint16_t *)(uintptr_t)U64(1) + (size_t)(t < 0 ? 0 : t) * cols : NULL;
        if (!from) return ILLEGAL_ADDRESS;
        for (int i = 0; i < cols; i++) dst[(size_t)r * cols + i] = widen16(from[i]);
    }
    return 0;
}

// norm_rows writes the rows of x, normed, as bf16 or as float32.
static void norm_rows(uint16_t *dst, float *wide, const float *x, const float *w, size_t rows, size_t width, float eps) {
    for (size_t r = 0; r < rows; r++, x += width) {
        float sum = 0;
        for (size_t i = 0; i < width; i++) sum += x[i] * x[i];
        float scale = 1 / sqrtf(sum / width + eps);
        for (size_t i = 0; i < width; i++) {
            float v = x[i] * scale * w[i];
            if (dst) dst[r * width + i] = narrow16(v); else wide[r * width + i] = v;
        }
    }
}

static CUresult run_norm(struct node *k, int narrow) {
    size_t rows = k->grid[0], width = I32(3);
    float *x = AT(float, 1, rows * width), *w = AT(float, 2, width);
    norm_rows(narrow ? AT(uint16_t, 0, rows * width) : NULL, narrow ? NULL : AT(float, 0, rows * width), x, w, rows, width, F32(4));
    return 0;
}

// The general kernel has its head dim among its parameters, the others in their name.
static CUresult run_rope_store(struct node *k, int named) {
    int rows = named ? I32(11) : (int)k->grid[0], heads = I32(9), kv_heads = I32(10), dim = named ? named : I32(11), turn = named ? named : I32(12),
        interleaved = I32(named ? 12 : 13), size = I32(named ? 13 : 14), all = heads + 2 * kv_heads;
    uint16_t *qkv = AT(uint16_t, 0, (size_t)rows * all * dim);
    int32_t *positions = AT(int32_t, 6, rows), *slots = AT(int32_t, 7, rows);
    float *norms[2] = {AT_OR_NULL(float, 4, dim), AT_OR_NULL(float, 5, dim)};
    for (int r = 0; r < rows; r++)
        for (int head = 0; head < all; head++) {
            float h[256];
            uint16_t *in = qkv + ((size_t)r * all + head) * dim, *to = NULL;
            int is_value = head >= heads + kv_heads, is_key = !is_value && head >= heads;
            float *w = is_value ? NULL : norms[is_key], sum = 0;
            for (int i = 0; i < dim; i++) { h[i] = widen16(in[i]); sum += h[i] * h[i]; }
            float scale = 1 / sqrtf(sum / dim + F32(8));
            for (int i = 0; w && i < dim; i++) h[i] *= scale * w[i];
            if (U64(1) && head >= heads && slots[r] >= 0) {
                size_t page = slots[r] / size, at = slots[r] % size, kv_head = head - heads - (is_value ? kv_heads : 0);
                to = (uint16_t *)within(U64(1) + 2 * (((page * kv_heads + kv_head) * 2 + is_value) * size + at) * dim, 2ull * dim);
                if (!to) return ILLEGAL_ADDRESS;
            }
            float *c = turn ? (float *)within(U64(2) + 4ull * positions[r] * (turn / 2), 2ull * turn) : NULL;
            float *s = turn ? (float *)within(U64(3) + 4ull * positions[r] * (turn / 2), 2ull * turn) : NULL;
            if (turn && (!c || !s)) return ILLEGAL_ADDRESS;
            for (int i = 0; i < dim; i++) {
                float v = h[i];
                if (!is_value && i < turn) {
                    int pair = interleaved ? i / 2 : i % (turn / 2), second = interleaved ? i & 1 : i >= turn / 2;
                    float a = interleaved ? h[i & ~1] : h[pair], b = interleaved ? h[i | 1] : h[pair + turn / 2];
                    v = second ? b * c[pair] + a * s[pair] : a * c[pair] - b * s[pair];
                }
                if (!is_value) in[i] = narrow16(v);
                if (to) to[i] = narrow16(v);
            }
        }
    return 0;
}

static CUresult run_swiglu(struct node *k) {
    size_t rows = k->grid[1], width = I32(2);
    uint16_t *dst = AT(uint16_t, 0, rows * width), *in = AT(uint16_t, 1, 2 * rows * width);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) {
            float gate = widen16(in[2 * r * width + i]);
            dst[r * width + i] = narrow16(gate / (1 + expf(-gate)) * widen16(in[(2 * r + 1) * width + i]));
        }
    return 0;
}

static CUresult run_gather(struct node *k) {
    int rows = k->grid[0], units = I32(3);
    uint16_t *dst = AT(uint16_t, 0, (size_t)rows * units);
    int32_t *outputs = AT(int32_t, 2, rows);
    for (int r = 0; r < rows; r++) {
        char *from = within(U64(1) + 2ull * outputs[r] * units, 2ull * units);
        if (!from) return ILLEGAL_ADDRESS;
        memcpy(dst + (size_t)r * units, from, 2ull * units);
    }
    return 0;
}

static CUresult run_to_bf16(struct node *k, int half) {
    size_t n = U64(2);
    uint16_t *dst = AT(uint16_t, 0, n);
    if (half) {
        uint16_t *src = AT(uint16_t, 1, n);
        for (size_t i = 0; i < n; i++) dst[i] = narrow16(half_float(src[i]));
    } else {
        float *src = AT(float, 1, n);
        for (size_t i = 0; i < n; i++) dst[i] = narrow16(src[i]);
    }
    return 0;
}

typedef float lanes __attribute__((vector_size(32)));

// matmul is every product of the engine: c [M, N] = x [M, K] · w [N, K]ᵀ + bias; mode 0 stores bf16, 1 float32, 2 adds, 3 stores
// silu(gate)·up of w's two halves.
static CUresult matmul(const uint16_t *x, const uint16_t *w, void *c, const float *bias, size_t M, size_t N, size_t K, int mode) {
    size_t padded = (K + 7) / 8 * 8;
    float *xs = aligned_alloc(32, M * padded * 4), *row = aligned_alloc(32, padded * 4), *sums = malloc(M * N * 4);
    memset(xs, 0, M * padded * 4);
    memset(row, 0, padded * 4);
    for (size_t m = 0; m < M; m++) for (size_t i = 0; i < K; i++) xs[m * padded + i] = widen16(x[m * K + i]);
    for (size_t n = 0; n < N; n++) {
        for (size_t i = 0; i < K; i++) row[i] = widen16(w[n * K + i]);
        for (size_t m = 0; m < M; m++) {
            lanes sum = {0};
            const lanes *a = (const lanes *)(xs + m * padded), *b = (const lanes *)row;
            for (size_t i = 0; i < padded / 8; i++) sum += a[i] * b[i];
            sums[m * N + n] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7])) + (bias ? bias[n] : 0);
        }
    }
    for (size_t i = 0; i < M * N && mode < 3; i++)
        if (mode == 0) ((uint16_t *)c)[i] = narrow16(sums[i]);
        else if (mode == 1) ((float *)c)[i] = sums[i];
        else ((float *)c)[i] += sums[i];
    for (size_t m = 0; m < M && mode == 3; m++)
        for (size_t n = 0; n < N / 2; n++) {
            float gate = widen16(narrow16(sums[m * N + n])), up = widen16(narrow16(sums[m * N + N / 2 + n]));
            ((uint16_t *)c)[m * N / 2 + n] = narrow16(gate / (1 + expf(-gate)) * up);
        }
    free(xs);
    free(row);
    free(sums);
    return 0;
}

// mapped returns where a tensor map in device memory points to.
static uint64_t mapped(uint64_t map) {
    struct tensor_map *m = (struct tensor_map *)within(map, 128);
    return m && map % 64 == 0 && m->magic == TENSOR_MAP ? m->base : 0;
}

static CUresult run_matmul(struct node *k, int maps) {
    size_t M = I32(4), N = I32(5), K = I32(6);
    int mode = I32(7);
    uint16_t *x = (uint16_t *)within(maps ? mapped(U64(0)) : U64(0), 2 * M * K), *w = (uint16_t *)within(maps ? mapped(U64(1)) : U64(1), 2 * N * K);
    if (!x || !w) return ILLEGAL_ADDRESS;
    return matmul(x, w, AT(char, 2, mode == 3 ? M * N : M * N * (mode ? 4 : 2)), AT_OR_NULL(float, 3, N), M, N, K, mode);
}

static CUresult run_norm_matmul(struct node *k) {
    size_t M = I32(4), N = I32(5), K = I32(6);
    int mode = I32(7);
    float *x = AT(float, 0, M * K), *norm = AT(float, 8, K), *bias = AT_OR_NULL(float, 3, N);
    uint16_t *w = AT(uint16_t, 1, N * K);
    char *c = AT(char, 2, mode == 3 ? M * N : M * N * (mode ? 4 : 2));
    uint16_t *normed = malloc(2 * M * K);
    norm_rows(normed, NULL, x, norm, M, K, F32(9));
    CUresult code = matmul(normed, w, c, bias, M, N, K, mode);
    free(normed);
    return code;
}

static int starts(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

// attend is one row and head: causal softmax(q·K·scale)·V over tokens 0 to last of a block table.
static CUresult attend(uint16_t *out, const uint16_t *q, uint64_t kv, const int32_t *table, int last, float scale, int kv_heads, int kv_head, int dim, int size) {
    float top = -INFINITY, sum = 0, acc[256] = {0};
    for (int t = 0; t <= last; t++) {
        const uint16_t *key = (uint16_t *)within(kv + 2 * (((uint64_t)table[t / size] * kv_heads + kv_head) * 2 * size + t % size) * dim, 2ull * dim);
        if (!key || !within((uint64_t)(uintptr_t)(key + (size_t)size * dim), 2ull * dim)) return ILLEGAL_ADDRESS;
        float s = 0;
        for (int i = 0; i < dim; i++) s += widen16(q[i]) * widen16(key[i]);
        s *= scale;
        float higher = s > top || s != s ? s : top, old = expf(top - higher), w = expf(s - higher);
        for (int i = 0; i < dim; i++) acc[i] = acc[i] * old + w * widen16(key[(size_t)size * dim + i]);
        sum = sum * old + w;
        top = higher;
    }
    for (int i = 0; i < dim; i++) out[i] = narrow16(acc[i] / sum);
    return 0;
}

static CUresult run_attention(struct node *k) {
    int rows = k->grid[0], heads = I32(7), kv_heads = I32(8), dim = I32(9), size = I32(10), stride = I32(11);
    uint16_t *out = AT(uint16_t, 0, (size_t)rows * heads * dim), *qkv = AT(uint16_t, 1, (size_t)rows * (heads + 2 * kv_heads) * dim);
    int32_t *row_seq = AT(int32_t, 4, rows), *positions = AT(int32_t, 5, rows);
    for (int r = 0; r < rows; r++) {
        int32_t *table = (int32_t *)within(U64(3) + 4ull * row_seq[r] * stride, 4ull * (positions[r] / size + 1));
        if (!table) return ILLEGAL_ADDRESS;
        for (int h = 0; h < heads; h++) {
            CUresult code = attend(out + ((size_t)r * heads + h) * dim, qkv + ((size_t)r * (heads + 2 * kv_heads) + h) * dim, U64(2), table,
                                   positions[r], F32(6), kv_heads, h / (heads / kv_heads), dim, size);
            if (code) return code;
        }
    }
    return 0;
}

// The attention of sequences of one row, or of those of more: the others are the other kernel's. The one that has a tensor map of the
// keys and values is told how many sequences there are.
static CUresult run_attend(struct node *k, int many, int maps) {
    int seqs = maps ? I32(13) : (int)k->grid[2], stride = I32(7), heads = I32(8), kv_heads = I32(9), size = 1 << I32(10), dim = atoi(strrchr(k->f->name, '_') + 1);
    int32_t *first = AT(int32_t, 4, seqs), *rows = AT(int32_t, 5, seqs), *past = AT(int32_t, 6, seqs);
    if (!many && (!within(U64(12), 4) || !within(U64(13), 4))) return ILLEGAL_ADDRESS;
    if (maps && mapped(U64(12)) != U64(2)) return ILLEGAL_ADDRESS;
    for (int i = 0; i < seqs; i++)
        for (int r = 0; r < rows[i] && (rows[i] > 1) == many; r++) {
            int last = past[i] + r;
            int32_t *table = (int32_t *)within(U64(3) + 4ull * i * stride, 4ull * (last / size + 1));
            uint16_t *q = (uint16_t *)within(U64(0) + 2ull * (first[i] + r) * (heads + 2 * kv_heads) * dim, 2ull * heads * dim);
            uint16_t *out = (uint16_t *)within(U64(1) + 2ull * (first[i] + r) * heads * dim, 2ull * heads * dim);
            if (!table || !q || !out) return ILLEGAL_ADDRESS;
            for (int h = 0; h < heads; h++) {
                CUresult code = attend(out + (size_t)h * dim, q + (size_t)h * dim, U64(2), table, last, F32(11), kv_heads, h / (heads / kv_heads), dim, size);
                if (code) return code;
            }
        }
    return 0;
}

// attend_rope: rotates the query and the key of each sequence of one row, and stores key and value, before it attends. The queries
// are rotated in a copy, as a launch may be run twice.
static CUresult run_attend_rope(struct node *k) {
    int seqs = k->grid[2], stride = I32(7), heads = I32(8), kv_heads = I32(9), shift = I32(10), dim = atoi(strrchr(k->f->name, '_') + 1);
    int all = heads + 2 * kv_heads, interleaved = I32(16), size = 1 << shift;
    int32_t *first = AT(int32_t, 4, seqs), *rows = AT(int32_t, 5, seqs), *past = AT(int32_t, 6, seqs);
    for (int i = 0; i < seqs; i++) {
        if (rows[i] != 1) continue;
        int32_t *table = (int32_t *)within(U64(3) + 4ull * i * stride, 4ull * (past[i] / size + 1));
        uint16_t *qkv = (uint16_t *)within(U64(0) + 2ull * first[i] * all * dim, 2ull * all * dim), turned[256];
        uint16_t *out = (uint16_t *)within(U64(1) + 2ull * first[i] * heads * dim, 2ull * heads * dim);
        float *c = (float *)within(U64(14) + 4ull * past[i] * (dim / 2), 2ull * dim), *s = (float *)within(U64(15) + 4ull * past[i] * (dim / 2), 2ull * dim);
        if (!table || !qkv || !out || !c || !s) return ILLEGAL_ADDRESS;
        for (int head = all - 1; head >= 0; head--) {
            uint16_t *in = qkv + (size_t)head * dim;
            int is_value = head >= heads + kv_heads;
            for (int j = 0; j < dim / 2 && !is_value; j++) {
                int x = interleaved ? 2 * j : j, y = interleaved ? 2 * j + 1 : j + dim / 2;
                float a = widen16(in[x]), b = widen16(in[y]);
                turned[x] = narrow16(a * c[j] - b * s[j]);
                turned[y] = narrow16(b * c[j] + a * s[j]);
            }
            if (head < heads) {
                CUresult code = attend(out + (size_t)head * dim, turned, U64(2), table, past[i], F32(11), kv_heads, head / (heads / kv_heads), dim, size);
                if (code) return code;
                continue;
            }
            size_t page = table[past[i] / size], kv_head = head - heads - (is_value ? kv_heads : 0);
            uint16_t *to = (uint16_t *)within(U64(2) + 2 * (((page * kv_heads + kv_head) * 2 + is_value) * size + past[i] % size) * dim, 2ull * dim);
            if (!to) return ILLEGAL_ADDRESS;
            memcpy(to, is_value ? in : turned, 2 * dim);
        }
    }
    return 0;
}

#include "quantized.h"
#include "sample.h"

static int run_engine(struct node *k, CUresult *code) {
    const char *name = k->f->name;
    if (!strcmp(name, "embed")) *code = run_embed(k);
    else if (!strcmp(name, "rms_norm_f32")) *code = run_norm(k, 0);
    else if (starts(name, "rms_norm")) *code = run_norm(k, 1);
    else if (!strcmp(name, "rope_store")) *code = run_rope_store(k, 0);
    else if (starts(name, "rope_store_")) *code = run_rope_store(k, atoi(name + 11));
    else if (!strcmp(name, "swiglu")) *code = run_swiglu(k);
    else if (!strcmp(name, "gather")) *code = run_gather(k);
    else if (!strcmp(name, "f32_to_bf16")) *code = run_to_bf16(k, 0);
    else if (!strcmp(name, "f16_to_bf16")) *code = run_to_bf16(k, 1);
    else if (starts(name, "skinny_norm_")) *code = run_norm_matmul(k);
    else if (!strcmp(name, "matmul_any") || starts(name, "skinny") || starts(name, "mma_")) *code = run_matmul(k, 0);
    else if (starts(name, "ordered_") || starts(name, "sliced_") || starts(name, "cluster_")) *code = run_matmul(k, 1);
    else if (!strcmp(name, "attention_any")) *code = run_attention(k);
    else if (starts(name, "attend_one_") || starts(name, "attend_cluster_") || starts(name, "attend_teams_")) *code = run_attend(k, 0, 0);
    else if (starts(name, "attend_rope_")) *code = run_attend_rope(k);
    else if (starts(name, "attend_many_")) *code = run_attend(k, 1, 0);
    else if (starts(name, "attend_wgmma_")) *code = run_attend(k, 1, 1);
    else if (run_quantized(k, code)) return 1;
    else return run_sampling(k, code);
    return 1;
}
#pragma GCC pop_options
