// The kernels of weights that stay quantised, by name: repack_F, expand_F, embed_F and direct_F_ROWS of internal/kernels, whose quant.cuh
// says how they lie. Included by engine.h.

// What a format's block of a file has, and the planes it becomes: bytes of a unit's codes and high bits, of scales for 64 and 256 columns.
struct format { const char *name; int elements, bytes, codes, high, scales, blocks; };

static const struct format formats[] = {
    {"q8_0", 32, 34, 16, 0, 4, 0}, {"q4_0", 32, 18, 8, 0, 4, 0}, {"q4_1", 32, 20, 8, 0, 8, 0}, {"q5_0", 32, 22, 8, 2, 4, 0},
    {"q5_1", 32, 24, 8, 2, 8, 0}, {"q4_k", 256, 144, 8, 0, 4, 4}, {"q5_k", 256, 176, 8, 2, 4, 4}, {"q6_k", 256, 210, 8, 4, 4, 2},
};

// Codes of a block as the file has it, as whole numbers from 0.
static void file_codes(const struct format *f, const uint8_t *b, uint8_t *q) {
    const char *n = f->name;
    if (f->elements == 32) {
        int at = f->bytes - (f->codes == 16 ? 32 : 16), five = f->high == 2 ? at - 4 : 0;
        for (int i = 0; i < 32; i++) {
            if (f->codes == 16) { q[i] = b[at + i] + 128; continue; }
            q[i] = i < 16 ? b[at + i] & 15 : b[at + i - 16] >> 4;
            if (five) q[i] |= (b[five + i / 8] >> i % 8 & 1) << 4;
        }
        return;
    }
    for (int i = 0; i < 256; i++) {
        int group = i / 32, l = i % 32, half = i / 128;
        if (n[1] == '6') {
            int part = group % 4;
            q[i] = (b[half * 64 + part % 2 * 32 + l] >> part / 2 * 4 & 15) | (b[128 + half * 32 + l] >> part * 2 & 3) << 4;
            continue;
        }
        q[i] = b[f->bytes - 128 + group / 2 * 32 + l] >> group % 2 * 4 & 15;
        if (f->high) q[i] |= (b[16 + l] >> group & 1) << 4;
    }
}

struct planes { const struct format *f; size_t N, K, wide; uint8_t *codes, *high, *scales, *blocks; };

static size_t plane_bytes(const struct format *f, size_t N, size_t K) {
    size_t wide = (K + 63) / 64;
    return N / 8 * (wide * (32 * (f->codes + f->high) + 8 * f->scales) + (wide + 3) / 4 * 8 * f->blocks);
}

// planes_at returns 0 where w isn't the beginning of as many bytes.
static int planes_at(struct planes *p, const struct format *f, uint64_t w, size_t N, size_t K) {
    *p = (struct planes){f, N, K, (K + 63) / 64, (uint8_t *)within(w, plane_bytes(f, N, K)), 0, 0, 0};
    if (!p->codes || N % 8 || K % f->elements) return 0;
    size_t units = N / 8 * p->wide * 32;
    p->high = p->codes + units * f->codes;
    p->scales = p->high + units * f->high;
    p->blocks = p->scales + units / 4 * f->scales;
    return 1;
}

// Where an element's code lies: its unit, group j and place e there.
static size_t unit_of(const struct planes *p, size_t row, size_t k, int *j, int *e) {
    *j = k % 64 / 16;
    *e = k % 4;
    return (row / 8 * p->wide + k / 64) * 32 + row % 8 * 4 + k % 16 / 4;
}
static size_t scale_row(const struct planes *p, size_t row, size_t k) { return (row / 8 * p->wide + k / 64) * 8 + row % 8; }
static size_t block_row(const struct planes *p, size_t row, size_t k) { return (row / 8 * ((p->wide + 3) / 4) + k / 256) * 8 + row % 8; }

static void put_code(struct planes *p, size_t row, size_t k, unsigned q) {
    int j, e;
    size_t u = unit_of(p, row, k, &j, &e);
    if (p->f->codes == 16) { p->codes[u * 16 + j * 4 + e] = q; return; }
    uint8_t *low = p->codes + u * 8 + j / 2 * 4 + e;
    *low = j % 2 ? (*low & 15) | (q & 15) << 4 : (*low & 0xf0) | (q & 15);
    if (p->f->high == 2) {
        uint8_t *h = p->high + u * 2 + e / 2;
        int bit = e % 2 * 4 + j;
        *h = (*h & ~(1 << bit)) | (q >> 4) << bit;
    } else if (p->f->high == 4) {
        uint8_t *h = p->high + u * 4 + e;
        *h = (*h & ~(3 << 2 * j)) | (q >> 4) << 2 * j;
    }
}

static int code_at(const struct planes *p, size_t row, size_t k) {
    int j, e;
    size_t u = unit_of(p, row, k, &j, &e);
    if (p->f->codes == 16) return p->codes[u * 16 + j * 4 + e];
    int q = p->codes[u * 8 + j / 2 * 4 + e] >> j % 2 * 4 & 15;
    if (p->f->high == 2) q |= (p->high[u * 2 + e / 2] >> (e % 2 * 4 + j) & 1) << 4;
    if (p->f->high == 4) q |= (p->high[u * 4 + e] >> 2 * j & 3) << 4;
    return q;
}

static float half_at(const uint8_t *b) { return half_float(b[0] | b[1] << 8); }

// value_at is an element as weights.Dequantize has it.
static float value_at(const struct planes *p, size_t row, size_t k) {
    int q = code_at(p, row, k), second = k % 64 / 32;
    const uint8_t *s = p->scales + scale_row(p, row, k) * p->f->scales, *b = p->blocks + block_row(p, row, k) * p->f->blocks;
    const char *n = p->f->name;
    if (n[3] == '0') return (float)(q - (n[1] == '8' ? 128 : n[1] == '5' ? 16 : 8)) * half_at(s + 2 * second);
    if (n[3] == '1') { volatile float v = (float)q * half_at(s + 4 * second); return v + half_at(s + 4 * second + 2); }
    if (n[1] == '6') { volatile float v = half_at(b) * (float)(int8_t)s[k % 64 / 16]; return v * (float)(q - 32); }
    volatile float scale = half_at(b) * (float)s[2 * second], v = scale * (float)q, offset = half_at(b + 2) * (float)s[2 * second + 1];
    return v - offset;
}

// The scale and offset numbered group of a Q4_K or Q5_K block.
static void nested_scale(const uint8_t *s, int group, uint8_t *out) {
    out[0] = group < 4 ? s[group] & 63 : (s[group + 4] & 15) | s[group - 4] >> 6 << 4;
    out[1] = group < 4 ? s[group + 4] & 63 : s[group + 4] >> 4 | s[group] >> 6 << 4;
}

static CUresult run_repack(struct node *k, const struct format *f) {
    size_t first = I32(2), rows = I32(3), N = I32(4), K = I32(5), row_bytes = K / f->elements * f->bytes;
    struct planes p;
    uint8_t *file = AT(uint8_t, 1, rows * row_bytes), q[256];
    if (first % 8 || rows % 8 || first + rows > N || !planes_at(&p, f, U64(0), N, K)) return ILLEGAL_ADDRESS;
    for (size_t r = 0; r < rows; r++) {
        size_t row = first + r;
        for (size_t at = 0; at < p.wide * 64; at += f->elements) { // columns behind K are zeros
            const uint8_t *b = file + r * row_bytes + at / f->elements * f->bytes;
            memset(q, 0, sizeof q);
            if (at < K) file_codes(f, b, q);
            for (int i = 0; i < f->elements && at + i < p.wide * 64; i++) put_code(&p, row, at + i, q[i]);
            if (f->elements == 32) {
                uint8_t *s = p.scales + scale_row(&p, row, at) * f->scales + at % 64 / 32 * (f->scales / 2);
                if (at < K) memcpy(s, b, f->scales / 2); else memset(s, 0, f->scales / 2);
                continue;
            }
            for (int block = 0; block < 4; block++) {
                uint8_t *s = p.scales + scale_row(&p, row, at + 64 * block) * 4;
                if (f->blocks == 2) memcpy(s, b + 192 + 4 * block, 4);
                else for (int i = 0; i < 2; i++) nested_scale(b + 4, 2 * block + i, s + 2 * i);
            }
            memcpy(p.blocks + block_row(&p, row, at) * f->blocks, b + (f->blocks == 2 ? 208 : 0), f->blocks);
        }
    }
    return 0;
}

static CUresult run_expand(struct node *k, const struct format *f) {
    size_t N = I32(2), K = I32(3);
    struct planes p;
    uint16_t *to = AT(uint16_t, 0, N * K);
    if (!planes_at(&p, f, U64(1), N, K)) return ILLEGAL_ADDRESS;
    for (size_t i = 0; i < N * K; i++) to[i] = narrow16(value_at(&p, i / K, i % K));
    return 0;
}

static CUresult run_embed_quantized(struct node *k, const struct format *f) {
    size_t rows = k->grid[0], N = I32(4), K = I32(5);
    struct planes p;
    float *dst = AT(float, 0, rows * K);
    int32_t *tokens = AT(int32_t, 2, rows), *sampled = AT(int32_t, 3, 1);
    if (!planes_at(&p, f, U64(1), N, K)) return ILLEGAL_ADDRESS;
    for (size_t r = 0; r < rows; r++) {
        int t = tokens[r] < 0 ? sampled[~tokens[r]] : tokens[r];
        if (t >= (int)N) return ILLEGAL_ADDRESS;
        for (size_t i = 0; i < K; i++) dst[r * K + i] = widen16(narrow16(value_at(&p, t < 0 ? 0 : t, i)));
    }
    return 0;
}

static CUresult run_direct(struct node *k, const struct format *f) {
    size_t M = I32(4), N = I32(5), K = I32(6), mode = I32(7), stride = I32(8), columns = mode == 3 ? N / 2 : N, size = mode == 1 || mode == 2 ? 4 : 2;
    struct planes p;
    uint16_t *x = AT(uint16_t, 0, M * K);
    float *bias = AT_OR_NULL(float, 3, N);
    char *c = within(U64(2), ((M - 1) * stride + columns) * size);
    if (!c || !planes_at(&p, f, U64(1), N, K) || stride < columns || (mode == 3 && N % 16)) return ILLEGAL_ADDRESS;
    uint16_t *w = malloc(N * K * 2);
    char *out = malloc(M * columns * size);
    for (size_t i = 0; i < N * K; i++) w[i] = narrow16(value_at(&p, i / K, i % K));
    for (size_t m = 0; m < M; m++) memcpy(out + m * columns * size, c + m * stride * size, columns * size);
    CUresult code = matmul(x, w, out, bias, M, N, K, mode);
    for (size_t m = 0; m < M; m++) memcpy(c + m * stride * size, out + m * columns * size, columns * size);
    free(w);
    free(out);
    return code;
}

static int run_quantized(struct node *k, CUresult *code) {
    static const struct { const char *prefix; CUresult (*run)(struct node *, const struct format *); } kinds[] = {
        {"repack_", run_repack}, {"expand_", run_expand}, {"embed_", run_embed_quantized}, {"direct_", run_direct}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t j = 0; starts(k->f->name, kinds[i].prefix) && j < sizeof formats / sizeof *formats; j++)
            if (starts(k->f->name + strlen(kinds[i].prefix), formats[j].name)) {
                *code = kinds[i].run(k, &formats[j]);
                return 1;
            }
    return 0;
}
