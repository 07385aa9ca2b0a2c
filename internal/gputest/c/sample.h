// The kernels that choose tokens, in plain C: the order of candidates is by value, then by id. Included by engine.h.

#define BANNED (-3.4028234663852886e38f)

static CUresult run_adjust(struct node *k) {
    int rows = k->grid[0], stride = I32(1);
    int32_t *offsets = AT(int32_t, 2, rows + 1);
    struct { uint32_t id, flags; float bias; uint32_t count; } *e = (void *)AT(char, 3, 16ull * offsets[rows]);
    float *penalties = AT(float, 4, 4 * rows), *logits = AT(float, 0, (size_t)rows * stride);
    for (int r = 0; r < rows; r++, logits += stride, penalties += 4)
        for (int i = offsets[r]; i < offsets[r + 1]; i++) {
            float v = logits[e[i].id];
            if (!isfinite(v)) continue;
            v += e[i].bias;
            if (e[i].flags & 2) {
                v = v > 0 ? v / penalties[0] : v * penalties[0];
                if (e[i].count) v -= penalties[1] * (float)e[i].count + penalties[2];
                v = fminf(fmaxf(v, -1e30f), 1e30f);
            }
            logits[e[i].id] = e[i].flags & 1 ? BANNED : v;
        }
    return 0;
}

static CUresult run_best_of_chunk(struct node *k) {
    int chunks = k->grid[0], rows = k->grid[1], stride = I32(1), vocab = I32(2);
    float *logits = AT(float, 0, (size_t)rows * stride);
    uint32_t *part = AT(uint32_t, 3, 4ull * chunks * rows);
    for (int r = 0; r < rows; r++, logits += stride)
        for (int c = 0; c < chunks; c++, part += 4) {
            float best = -INFINITY;
            part[1] = 0x7fffffff;
            part[2] = part[3] = 0;
            for (int i = c * 4096; i < (c + 1) * 4096 && i < vocab; i++) {
                if (!isfinite(logits[i])) part[2] = 1;
                if (logits[i] > best) { best = logits[i]; part[1] = i; }
            }
            memcpy(part, &best, 4);
        }
    return 0;
}

struct token { double weight; float v; int id; };

static int by_order(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    return x->v > y->v ? -1 : x->v < y->v ? 1 : x->id - y->id;
}

static int by_id(const void *a, const void *b) { return ((const struct token *)a)->id - ((const struct token *)b)->id; }

static double philox_uniform(uint32_t lo, uint32_t hi, uint32_t choice, uint32_t position) {
    uint32_t c[4] = {position, 0, choice, 0}, key[2] = {lo, hi};
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) / 9007199254740992.0;
}

static int draw_one(const float *logits, int vocab, float top, const uint32_t *d) {
    float temperature, top_p, min_p;
    memcpy(&temperature, d, 4);
    memcpy(&top_p, d + 1, 4);
    memcpy(&min_p, d + 2, 4);
    struct token *t = malloc(vocab * sizeof *t);
    int n = 0;
    double sum = 0, kept = 0;
    for (int i = 0; i < vocab; i++) {
        double w = exp(((double)logits[i] - top) / temperature);
        if (w >= min_p && w > 1e-12 && logits[i] != BANNED) t[n++] = (struct token){w, logits[i], i};
    }
    qsort(t, n, sizeof *t, by_order);
    if (d[3] && n > (int)d[3]) n = d[3];
    for (int i = 0; i < n; i++) sum += t[i].weight;
    if (top_p < 1) {
        int m = 0;
        for (; m < n && (!m || kept < top_p * sum); m++) kept += t[m].weight;
        n = m;
        sum = kept;
    }
    qsort(t, n, sizeof *t, by_id);
    double u = philox_uniform(d[4], d[5], d[6] & 0x7fffffff, d[7]) * sum;
    int i = 0;
    for (; i < n - 1 && u >= t[i].weight; i++) u -= t[i].weight;
    int id = t[i].id;
    free(t);
    return id;
}

static CUresult run_draw(struct node *k) {
    int rows = k->grid[0], chunks = I32(3), stride = I32(5), vocab = I32(6);
    int32_t *ids = AT(int32_t, 0, rows), *host = (int32_t *)(uintptr_t)U64(1);
    float *logits = AT(float, 4, (size_t)rows * stride);
    uint32_t *part = AT(uint32_t, 2, 4ull * chunks * rows), *draws = AT(uint32_t, 7, 8 * rows);
    for (int r = 0; r < rows; r++, logits += stride, draws += 8) {
        float best = -INFINITY, v, temperature;
        int id = 0, bad = 0;
        for (int c = 0; c < chunks; c++, part += 4) {
            memcpy(&v, part, 4);
            bad |= part[2];
            if (v > best) { best = v; id = part[1]; }
        }
        memcpy(&temperature, draws, 4);
        ids[r] = host[(draws[6] >> 31 ? I32(8) : 0) + r] = bad ? -1 : temperature > 0 ? draw_one(logits, vocab, best, draws) : id;
    }
    return 0;
}

static int run_sampling(struct node *k, CUresult *code) {
    const char *name = k->f->name;
    if (!strcmp(name, "adjust")) *code = run_adjust(k);
    else if (!strcmp(name, "best_of_chunk")) *code = run_best_of_chunk(k);
    else if (!strcmp(name, "draw")) *code = run_draw(k);
    else return 0;
    return 1;
}
