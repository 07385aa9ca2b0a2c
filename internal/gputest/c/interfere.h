// The kernels of `cotenant interfere` but for matrix products, by name, in plain C. Included by launch.h.
#include <math.h>

FAST static uint32_t scatter_half(uint64_t i) {
    uint32_t h = (uint32_t)i * 2654435761u, bits;
    h ^= h >> 15;
    float f = (float)((int)(h % 17u) - 8) * 0.015625f;
    memcpy(&bits, &f, 4);
    return bits >> 16; // exact
}

FAST static uint32_t arithmetic_value(uint32_t block, uint32_t threads, uint32_t rounds) {
    uint32_t sum = 0;
    for (uint32_t t = 0; t < threads; t++)
        for (int i = 0; i < 4; i++) {
            float x = 1.0f + (float)(t & 31) * 0.03125f + (float)i, y = (float)(block & 63) * 0.015625f - (float)i;
            uint32_t a, b;
            for (uint32_t r = 0; r < rounds; r++) { x = fmaf(y, 0.015625f, x); y = fmaf(x, -0.015625f, y); }
            memcpy(&a, &x, 4);
            memcpy(&b, &y, 4);
            sum += a ^ b;
        }
    return sum;
}

#define P64(i) (*(uint64_t *)k->p[i])
#define P32(i) (*(uint32_t *)k->p[i])
#define ROOM(type, i, bytes) ((type *)((bytes) > 64 * MIB ? NULL : within(P64(i), bytes))) // beyond what a test looks at nothing is done

// run_interfere returns 1 where it knows the kernel. A launch that would take a test long does nothing.
FAST static int run_interfere(struct node *k, CUresult *code) {
    const char *name = k->f->name;
    int n = k->f->parameters;
    uint32_t threads = k->block[0], blocks = k->grid[0];
    *code = 0;
    if (!strcmp(name, "scatter") && n == 2) {
        uint16_t *p = ROOM(uint16_t, 0, 2 * P64(1));
        if (p) for (uint64_t i = 0; i < P64(1); i++) p[i] = (uint16_t)scatter_half(i);
        return 1;
    }
    if (!strcmp(name, "arithmetic") && n == 2) {
        uint32_t *out = ROOM(uint32_t, 0, 4ull * blocks);
        if (!out) *code = ILLEGAL_ADDRESS;
        // A block's number depends on the low 6 bits of its place alone.
        uint32_t value[64];
        for (uint32_t b = 0; out && b < blocks; b++) {
            if (b < 64) value[b] = arithmetic_value(b, threads, P32(1));
            out[b] += value[b % 64];
        }
        return 1;
    }
    if (!strcmp(name, "stream") && n == 3) {
        uint32_t *from = ROOM(uint32_t, 0, 16 * P64(2)), *to = ROOM(uint32_t, 1, 16 * P64(2));
        if (from && to) for (uint64_t i = 0; i < 4 * P64(2); i++) to[i] = from[i] + 1;
        return 1;
    }
    if (!strcmp(name, "reread") && n == 4) {
        uint32_t *from = ROOM(uint32_t, 0, 16 * P64(1)), *out = ROOM(uint32_t, 3, 4), sum = 0;
        if (!from || !out) *code = ILLEGAL_ADDRESS;
        else {
            for (uint64_t i = 0; i < 4 * P64(1); i++) sum += from[i];
            *out += sum * P32(2);
        }
        return 1;
    }
    if (!strcmp(name, "tiny") && n == 1) {
        uint32_t *out = ROOM(uint32_t, 0, 4);
        if (!out) *code = ILLEGAL_ADDRESS; else ++*out;
        return 1;
    }
    if (!strcmp(name, "tickets") && n == 4) {
        uint32_t *out = ROOM(uint32_t, 1, 4);
        if (!out || !ROOM(uint32_t, 0, 8)) *code = ILLEGAL_ADDRESS; else *out += P32(2);
        return 1;
    }
    return 0;
}
