// Holds ptx_matrix.h against plain loops. Prints what differs and ends with 1.
#include "ptx_matrix.h"
#include <stdio.h>
#include <stdlib.h>

static int failed;
#define CHECK(what, ...) do { if (!(what)) { printf("line %d: ", __LINE__); printf(__VA_ARGS__); printf("\n"); failed = 1; } } while (0)

static uint32_t seed = 1;
static uint32_t next(void) { return seed = seed * 1664525 + 1013904223, seed >> 8; }
// A bf16 of small size, of both signs, with all its bits in use.
static uint32_t some(void) { return (next() & 0x80ff) | (0x3f00 - (next() % 4 << 7)); }
static int near(float got, double want, double size) { return fabs(got - want) <= size * 1.2e-7; }

static void test_mma(void) {
    uint32_t a[16][16], b[16][8];
    float c[16][8];
    uint32_t fa[32][4], fb[32][2];
    float fc[32][4], fd[32][4];
    for (int i = 0; i < 256; i++) a[i / 16][i % 16] = some();
    for (int i = 0; i < 128; i++) b[i / 8][i % 8] = some(), c[i / 8][i % 8] = (int)(next() % 2000) - 1000;
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, k = lane % 4 * 2;
        fa[lane][0] = a[g][k] | a[g][k + 1] << 16;
        fa[lane][1] = a[g + 8][k] | a[g + 8][k + 1] << 16;
        fa[lane][2] = a[g][k + 8] | a[g][k + 9] << 16;
        fa[lane][3] = a[g + 8][k + 8] | a[g + 8][k + 9] << 16;
        fb[lane][0] = b[k][g] | b[k + 1][g] << 16;
        fb[lane][1] = b[k + 8][g] | b[k + 9][g] << 16;
        fc[lane][0] = c[g][k];
        fc[lane][1] = c[g][k + 1];
        fc[lane][2] = c[g + 8][k];
        fc[lane][3] = c[g + 8][k + 1];
    }
    ptx_mma_m16n8k16_bf16(fd, fa, fb, fc);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            double want = c[m][n], size = fabs(c[m][n]);
            for (int k = 0; k < 16; k++) want += (double)ptx_bf16(a[m][k]) * ptx_bf16(b[k][n]), size += fabs(ptx_bf16(a[m][k]) * ptx_bf16(b[k][n]));
            float got = fd[m % 8 * 4 + n / 2][m / 8 * 2 + n % 2];
            CHECK(near(got, want, size), "mma %d %d: %g, want %g", m, n, got, want);
        }
    fa[4 * 3 + 1][1] = 0x7f80; // row 11, k 2: infinity; times a row of b that holds 0 at column 5
    fb[4 * 5 + 1][0] &= 0xffff0000;
    ptx_mma_m16n8k16_bf16(fd, fa, fb, fc);
    uint32_t bits;
    memcpy(&bits, &fd[3 * 4 + 2][3], 4);
    CHECK(bits == 0x7fffffff, "infinity · 0 is %#x", bits);
    CHECK(isinf(fd[3 * 4 + 2][2]) && isfinite(fd[3 * 4 + 2][1]), "infinity leaves its row, or is lost");
}

static void test_ldmatrix(void) {
    uint16_t m[4][8][12]; // rows lie apart
    const uint8_t *row[32];
    for (int i = 0; i < 32; i++) {
        row[i] = (uint8_t *)m[i / 8][i % 8];
        for (int c = 0; c < 12; c++) m[i / 8][i % 8][c] = next();
    }
    for (int n = 1; n <= 4; n *= 2) {
        uint32_t d[128], e[128];
        ptx_ldmatrix(d, row, n, 0);
        ptx_ldmatrix(e, row, n, 1);
        for (int i = 0; i < n; i++)
            for (int r = 0; r < 8; r++)
                for (int c = 0; c < 8; c++) {
                    CHECK((uint16_t)(d[(r * 4 + c / 2) * n + i] >> c % 2 * 16) == m[i][r][c], "x%d matrix %d row %d column %d", n, i, r, c);
                    CHECK((uint16_t)(e[(c * 4 + r / 2) * n + i] >> r % 2 * 16) == m[i][r][c], "x%d.trans matrix %d row %d column %d", n, i, r, c);
                }
    }
}

// Memory that reads as a GPU's shared memory, and where an element of an operand lies in it by the pictures of the PTX ISA.
static uint8_t shared[96 << 10];
enum { A = 2048, B = 32 << 10 };
static uint32_t place(int r, int k, int span) {
    if (span == 16) return r / 8 * 256 + k / 8 * 128 + r % 8 * 16 + k % 8 * 2;          // core matrices of 8 × 16 bytes
    int chunk = k * 2 / 16, turn = span == 128 ? r % 8 : span == 64 ? r / 2 % 4 : r / 4 % 2; // rows of a span, chunks permuted
    return r * span + (chunk ^ turn) * 16 + k % 8 * 2;
}

static void test_wgmma(int n, int span, int swizzle) {
    static uint16_t a[64][64], b[256][64];
    static float d[128 * 128], old[64][256];
    int depth = span == 16 ? 16 : span / 2;
    for (int r = 0; r < 64; r++) for (int k = 0; k < depth; k++) a[r][k] = some(), memcpy(shared + A + place(r, k, span), &a[r][k], 2);
    for (int r = 0; r < n; r++) for (int k = 0; k < depth; k++) b[r][k] = some(), memcpy(shared + B + place(r, k, span), &b[r][k], 2);
    uint64_t shape = (uint64_t)swizzle << 62 | (uint64_t)(8 * (span == 16 ? 32 : span) >> 4) << 32 | (128 >> 4) << 16;
    for (int scale_d = 0; scale_d < 2; scale_d++)
        for (int k0 = 0; k0 < depth; k0 += 16) {
            for (int r = 0; r < 64; r++)
                for (int c = 0; c < n; c++)
                    d[(r / 16 * 32 + r % 8 * 4 + c % 8 / 2) * (n / 2) + c / 8 * 4 + r / 8 % 2 * 2 + c % 2] = old[r][c] = (int)(next() % 200) - 100;
            int sign = next() & 1 ? 1 : -1;
            CHECK(!ptx_wgmma_m64k16_bf16(d, n, shape | (A + k0 * 2) >> 4, shape | (B + k0 * 2) >> 4, scale_d, sign, 1, shared, sizeof shared), "wgmma refused");
            for (int r = 0; r < 64; r++)
                for (int c = 0; c < n; c++) {
                    double want = scale_d ? old[r][c] : 0, size = fabs(want);
                    for (int k = k0; k < k0 + 16; k++) {
                        double v = (double)ptx_bf16(a[r][k]) * ptx_bf16(b[c][k]);
                        want += sign * v, size += fabs(v);
                    }
                    float got = d[(r / 16 * 32 + r % 8 * 4 + c % 8 / 2) * (n / 2) + c / 8 * 4 + r / 8 % 2 * 2 + c % 2];
                    CHECK(near(got, want, size), "wgmma n%d span %d k %d: %d %d: %g, want %g", n, span, k0, r, c, got, want);
                }
        }
    CHECK(ptx_wgmma_m64k16_bf16(d, n, shape | A >> 4, shape | B >> 4, 1, 1, 1, shared, B), "an operand beyond shared memory");
    CHECK(ptx_wgmma_m64k16_bf16(d, n, shape | A >> 4 | 1ull << 49, shape | B >> 4, 1, 1, 1, shared, sizeof shared), "a base offset");
}

// Weights in registers, laid out as the pictures of "Register Fragments" say, times rows along K whose elements lie beside each other:
// columns of 64 are apart bytes apart.
static void test_wgmma_registers(int n, uint32_t apart) {
    static uint16_t a[64][16], b[64][256];
    static float d[128 * 128], old[64][256];
    uint32_t in[128][4];
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 16; k++) a[r][k] = some();
    for (int t = 0; t < 128; t++) {
        int r = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2;
        in[t][0] = a[r][k] | (uint32_t)a[r][k + 1] << 16;
        in[t][1] = a[r + 8][k] | (uint32_t)a[r + 8][k + 1] << 16;
        in[t][2] = a[r][k + 8] | (uint32_t)a[r][k + 9] << 16;
        in[t][3] = a[r + 8][k + 8] | (uint32_t)a[r + 8][k + 9] << 16;
    }
    for (int k = 0; k < 64; k++)
        for (int c = 0; c < n; c++) b[k][c] = some(), memcpy(shared + B + c / 64 * apart + place(k, c % 64, 128), &b[k][c], 2);
    uint64_t shape = 1ull << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(apart >> 4) << 16;
    for (int scale_d = 0; scale_d < 2; scale_d++)
        for (int k0 = 0; k0 < 64; k0 += 16) {
            for (int r = 0; r < 64; r++)
                for (int c = 0; c < n; c++)
                    d[(r / 16 * 32 + r % 8 * 4 + c % 8 / 2) * (n / 2) + c / 8 * 4 + r / 8 % 2 * 2 + c % 2] = old[r][c] = (int)(next() % 200) - 100;
            CHECK(!ptx_wgmma_registers_m64k16_bf16(d, n, in, shape | (B + k0 * 128) >> 4, scale_d, shared, sizeof shared), "wgmma refused");
            for (int r = 0; r < 64; r++)
                for (int c = 0; c < n; c++) {
                    double want = scale_d ? old[r][c] : 0, size = fabs(want);
                    for (int k = 0; k < 16; k++) {
                        double v = (double)ptx_bf16(a[r][k]) * ptx_bf16(b[k0 + k][c]);
                        want += v, size += fabs(v);
                    }
                    float got = d[(r / 16 * 32 + r % 8 * 4 + c % 8 / 2) * (n / 2) + c / 8 * 4 + r / 8 % 2 * 2 + c % 2];
                    CHECK(near(got, want, size), "wgmma of registers n%d k %d: %d %d: %g, want %g", n, k0, r, c, got, want);
                }
        }
    CHECK(ptx_wgmma_registers_m64k16_bf16(d, n, in, shape | B >> 4, 1, shared, B), "an operand beyond shared memory");
    CHECK(ptx_wgmma_registers_m64k16_bf16(d, n, in, (shape & ~(3ull << 62)) | B >> 4, 1, shared, sizeof shared), "no swizzle");
}

static uint16_t matrix[40][72]; // 64 columns in use and 8 of a stride
static int readable(uint64_t at, uint64_t n) {
    uint64_t from = (uint64_t)(uintptr_t)matrix;
    return at >= from && at + n <= from + sizeof matrix;
}
static uint16_t loaded(uint32_t at, int row, int column) {
    uint16_t v;
    memcpy(&v, shared + at + row * 128 + (column / 8 ^ row % 8) * 16 + column % 8 * 2, 2);
    return v;
}

static void test_tensor(void) {
    struct tensor_map m;
    uint64_t base = (uint64_t)(uintptr_t)matrix;
    for (int i = 0; i < 40 * 72; i++) matrix[i / 72][i % 72] = next() | 1;
    CHECK(!ptx_make_map(&m, 9, 2, base, (uint64_t[]){56, 37}, (uint64_t[]){144}, (uint32_t[]){64, 16}, (uint32_t[]){1, 1}, 0, 3, 0), "a map of rank 2");
    for (int c1 = -20; c1 < 60; c1 += 7)
        for (int c0 = -70; c0 < 70; c0 += 10) {
            memset(shared, 0xee, 8192);
            CHECK(ptx_tensor_load(shared, sizeof shared, 2048, &m, 2, (int32_t[]){c0, c1}, readable) == 2048, "bytes");
            for (int r = 0; r < 16; r++)
                for (int c = 0; c < 64; c++) {
                    int inside = c0 + c >= 0 && c0 + c < 56 && c1 + r >= 0 && c1 + r < 37;
                    CHECK(loaded(2048, r, c) == (inside ? matrix[c1 + r][c0 + c] : 0), "box at %d %d: %d %d", c0, c1, c, r);
                }
            CHECK(shared[2047] == 0xee && shared[4096] == 0xee, "written outside of the box");
        }
    CHECK(ptx_tensor_load(shared, 4000, 2048, &m, 2, (int32_t[]){0, 0}, readable) < 0, "beyond shared memory");
    CHECK(ptx_tensor_load(shared, sizeof shared, 2064, &m, 2, (int32_t[]){0, 0}, readable) < 0, "not at a multiple of 128");
    CHECK(ptx_tensor_load(shared, sizeof shared, 2048, &m, 4, (int32_t[]){0, 0, 0, 0}, readable) < 0, "of another rank");
    m.size[1] = 48; // more rows than there is memory
    CHECK(ptx_tensor_load(shared, sizeof shared, 2048, &m, 2, (int32_t[]){0, 32}, readable) < 0, "memory that isn't there");
    m.magic = 0;
    CHECK(ptx_tensor_load(shared, sizeof shared, 2048, &m, 2, (int32_t[]){0, 0}, readable) < 0, "no map");

    // Rows 0 to 15 are a gate's and 16 to 31 an up's: a box is 8 of each in turns, twice.
    uint32_t box[4] = {64, 8, 2, 4}, step[4] = {1, 1, 1, 1};
    uint64_t size[4] = {64, 8, 2, 2}, pitch[3] = {144, 16 * 144, 8 * 144};
    CHECK(!ptx_make_map(&m, 9, 4, base, size, pitch, box, step, 0, 3, 0), "a map of rank 4");
    CHECK(ptx_tensor_load(shared, sizeof shared, 1024, &m, 4, (int32_t[]){0, 0, 0, 1}, readable) == 8192, "bytes");
    for (int r = 0; r < 64; r++)
        for (int c = 0; c < 64; c++) CHECK(loaded(1024, r, c) == (r < 16 ? matrix[8 + r / 8 * 16 + r % 8][c] : 0), "gate and up: %d %d", r, c);

    CHECK(!ptx_make_map(&m, 7, 3, base, (uint64_t[]){36, 4, 10}, (uint64_t[]){144, 576}, (uint32_t[]){4, 3, 2}, step, 0, 0, 0), "a map without swizzle");
    CHECK(ptx_tensor_load(shared, sizeof shared, 0, &m, 3, (int32_t[]){8, 2, 5}, readable) == 96, "bytes");
    for (int i = 0; i < 6; i++) {
        uint8_t none[16] = {0};
        CHECK(!memcmp(shared + 16 * i, i % 3 < 2 ? (uint8_t *)matrix[(5 + i / 3) * 4 + 2 + i % 3] + 32 : none, 16), "row %d without swizzle", i);
    }
    step[0] = 2;
    CHECK(ptx_make_map(&m, 9, 4, base, size, pitch, box, step, 0, 3, 0), "a step of 2");
    step[0] = 1, box[0] = 128;
    CHECK(ptx_make_map(&m, 9, 4, base, size, pitch, box, step, 0, 3, 0), "256 bytes under a swizzle of 128");
    box[0] = 64, pitch[1] = 8;
    CHECK(ptx_make_map(&m, 9, 4, base, size, pitch, box, step, 0, 3, 0), "a stride of 8");
}

static void test_barrier(void) {
    uint8_t b[8] = {0};
    CHECK(ptx_barrier_arrive(b, 0) && ptx_barrier_complete(b, 16), "no barrier");
    CHECK(ptx_barrier_init(b, 0) && ptx_barrier_init(b, 1 << 20), "counts");
    CHECK(!ptx_barrier_init(b, 2) && !ptx_barrier_ended(b, 0) && ptx_barrier_ended(b, 1), "after init the phase of parity 1 has ended");
    for (int phase = 0; phase < 5; phase++) {
        uint32_t now = phase & 1;
        CHECK(!ptx_barrier_arrive(b, 0) && !ptx_barrier_ended(b, now), "one of two arrived");
        if (phase & 2) CHECK(!ptx_barrier_complete(b, 100), "bytes before they are expected");
        CHECK(!ptx_barrier_arrive(b, 300) && !ptx_barrier_ended(b, now), "300 bytes are due");
        CHECK(ptx_barrier_arrive(b, 0), "a third arrived");
        CHECK(!ptx_barrier_complete(b, phase & 2 ? 100 : 200) && !ptx_barrier_ended(b, now), "100 bytes are due");
        CHECK(!ptx_barrier_complete(b, 100) && ptx_barrier_ended(b, now) && !ptx_barrier_ended(b, !now), "the phase ends");
    }
    CHECK(!ptx_barrier_init(b, 1) && !ptx_barrier_arrive(b, (1 << 20) - 1) && !ptx_barrier_complete(b, (1 << 20) - 1) && ptx_barrier_ended(b, 0), "most bytes");
}

int main(void) {
    test_mma();
    test_ldmatrix();
    for (int n = 8; n <= 256; n += 8) test_wgmma(n, 128, 1);
    for (int n = 8; n <= 256; n += 248) test_wgmma(n, 16, 0), test_wgmma(n, 64, 2), test_wgmma(n, 32, 3);
    for (int n = 8; n <= 256; n += 8) test_wgmma_registers(n, 8192), test_wgmma_registers(n, 16384);
    test_tensor();
    test_barrier();
    return failed;
}
