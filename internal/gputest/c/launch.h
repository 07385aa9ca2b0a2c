// Launches: scalar C for the kernels that are known by name. Any other kernel fills the allocations that it was given with ones,
// which as floating point is NaN. Included by create.h.

#define FAST __attribute__((optimize("O2")))

FAST static uint32_t witness_value(uint32_t seed, uint32_t rounds, uint32_t block, uint32_t threads) {
    uint32_t sum = 0;
    for (uint32_t t = 0; t < threads; t++) {
        uint32_t x = seed ^ ((block * threads + t) * 2654435761u);
        for (uint32_t i = 0; i < rounds; i++) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; x += 0x9e3779b9u; }
        sum += x;
    }
    return sum;
}

static CUresult run_witness(const mask *sms, uint32_t blocks, uint32_t threads, void **p) {
    int id[MAX_SMS], n = 0;
    for (int i = 0; i < MAX_SMS; i++) if (has(sms, i)) id[n++] = i;
    uint32_t *smid = (uint32_t *)within(*(uint64_t *)p[0], 4ull * blocks);
    uint32_t *value = (uint32_t *)within(*(uint64_t *)p[1], 4ull * blocks);
    uint64_t *times = (uint64_t *)within(*(uint64_t *)p[2], 16ull * blocks);
    uint32_t seed = *(uint32_t *)p[3], rounds = *(uint32_t *)p[4];
    uint64_t spin = *(uint64_t *)p[5], begin;
    if (!launched_ns) launched_ns = now_ns();
    begin = launched_ns;
    if (!smid || !value || !times || !n) return ILLEGAL_ADDRESS;
    // Two blocks of 1,024 threads are resident on an SM at a time.
    for (uint32_t b = 0; b < blocks; b++) {
        smid[b] = (uint32_t)id[(b / (text("witness.same") ? blocks : 1)) % n];
        value[b] = witness_value(seed, rounds, b, threads);
        times[2 * b] = begin + b / (2 * n) * spin;
        times[2 * b + 1] = times[2 * b] + spin;
        if (times[2 * b + 1] > busy_until_ns) busy_until_ns = times[2 * b + 1];
    }
    return 0;
}

static CUresult run_fill(void **p) {
    uint64_t n = *(uint64_t *)p[1];
    uint32_t *out = (uint32_t *)within(*(uint64_t *)p[0], n > 16 * MIB ? 4 : 4 * n);
    if (!out) return ILLEGAL_ADDRESS;
    for (uint64_t i = 0; i < n && n <= 16 * MIB; i++) out[i] = *(uint32_t *)p[2];
    return 0;
}

// node is one piece of work: a kernel with its own copy of the parameters, or a copy or fill of memory.
struct node {
    struct function *f;
    unsigned grid[3], block[3];
    void *p[MAX_PARAMETERS];
    void *to;
    const void *from; // NULL: filled with value
    size_t n;
    unsigned char value;
    struct node *next;
};

#include "ptx_matrix.h"
#include "engine.h"
#include "interfere.h"

static CUresult run_kernel(struct stream *s, struct node *k) {
    struct function *f = k->f;
    unsigned long long blocks = (unsigned long long)k->grid[0] * k->grid[1] * k->grid[2];
    mask sms = all_sms(context_device);
    CUgreen g = s ? s->green : current->green;
    if (g) sms = g->sms;
    // Measured: in a client with a percentage, two Green Contexts granted 8 SMs each ran on SMs 0 to 5, both of them.
    if (g && mps_share >= 0 && !mps_static) {
        memset(&sms, 0, sizeof sms);
        for (int i = 0; i < 6; i++) put(&sms, i);
    }
    if (!strcmp(f->name, "witness") && f->parameters == 6)
        return run_witness(&sms, (uint32_t)blocks, k->block[0] * k->block[1] * k->block[2], k->p);
    if (!strcmp(f->name, "fill") && f->parameters == 3) return run_fill(k->p);
    CUresult code = 0;
    if (run_engine(k, &code)) return code;
    if (run_interfere(k, &code)) return code;
    for (int i = 0; i < f->parameters; i++)
        for (struct allocation *a = allocations; a && f->size[i] == 8; a = a->next)
            if ((uint64_t)(uintptr_t)a->p == *(uint64_t *)k->p[i]) memset(a->p, 0xff, a->n > 64 * MIB ? 64 * MIB : a->n);
    return 0;
}

// sticky is a context that a kernel's fault has spoiled: every call that works in it fails with the same code from then on.
static CUresult sticky;

static CUresult run_node(struct stream *s, struct node *k) {
    if (sticky) return sticky;
    if (k->f) return sticky = run_kernel(s, k);
    if (k->from) memmove(k->to, k->from, k->n);
    else memset(k->to, k->value, k->n > 64 * MIB ? 64 * MIB : k->n);
    return 0;
}

static CUresult submit(struct stream *s, struct node *k);

static CUresult launch(struct stream *s, struct function *f, const unsigned *grid, const unsigned *block, unsigned shared, void **p) {
    USABLE(s);
    if (!FIND(functions, f) || !f->module->alive) return INVALID_HANDLE;
    unsigned long long blocks = (unsigned long long)grid[0] * grid[1] * grid[2], threads = (unsigned long long)block[0] * block[1] * block[2];
    if (!blocks || !threads || threads > 1024 || grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    if (shared > 48 * 1024 && shared > (unsigned)f->shared) return INVALID_VALUE;
    struct node k = {.f = f, .grid = {grid[0], grid[1], grid[2]}, .block = {block[0], block[1], block[2]}};
    memcpy(k.p, p, f->parameters * sizeof *p);
    return submit(s, &k);
}

EXPORT CUresult cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                               unsigned shared, struct stream *s, void **p, void **extra) {
    CHANGE(); IN_CONTEXT();
    (void)extra;
    return launch(s, f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, p);
}

struct launch_attribute { int id; char pad[4]; unsigned value[16]; };
struct launch_config { unsigned grid[3], block[3], shared; struct stream *s; struct launch_attribute *attributes; unsigned count; };

EXPORT CUresult cuLaunchKernelEx(const struct launch_config *c, struct function *f, void **p, void **extra) {
    CHANGE(); IN_CONTEXT();
    (void)extra;
    for (unsigned i = 0; i < c->count; i++) {
        const struct launch_attribute *a = &c->attributes[i];
        if (a->id == 4)
            for (int j = 0; j < 3; j++) if (!a->value[j] || c->grid[j] % a->value[j]) return INVALID_VALUE;
        if (a->id != 4 && a->id != 6) return INVALID_VALUE;
    }
    return launch(c->s, f, c->grid, c->block, c->shared, p);
}
