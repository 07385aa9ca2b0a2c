// What PTX computes by warps, warp groups and the tensor memory accelerator, as functions of plain memory: matrix products and their
// operands' layouts, copies by tensor maps, and barriers in shared memory. A shared address is an offset into the block's shared
// memory. What returns int returns 0, or -1 for an access or a state that is an error on a GPU. Layouts: PTX ISA, "Matrix Fragments
// for mma.m16n8k16", "ldmatrix", "Register Fragments and Shared Memory Matrix Layouts" of wgmma, and "Tensors". Each function is as
// good alone as under one lock: none keeps state.
#ifndef PTX_MATRIX_H
#define PTX_MATRIX_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma GCC push_options
#pragma GCC optimize("O3")

static float ptx_bf16(uint32_t b) {
    union { uint32_t u; float f; } x = {(b & 0xffff) << 16};
    return x.f;
}

// d[n] += sum over k of a[k]·b[k][n], added up in double and rounded once. A GPU cuts the terms to a common exponent instead, in a way
// that isn't written down, so that its last bits differ; like a GPU's they are the same for mma and wgmma. NaN is the GPU's, 0x7fffffff.
static void ptx_add_products(float *d, int n, const double a[16], const double b[16][256]) {
    double sum[256] = {0};
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < n; i++) sum[i] += a[k] * b[k][i];
    union { uint32_t u; float f; } nan = {0x7fffffff};
    for (int i = 0; i < n; i++) {
        float v = (float)(d[i] + sum[i]);
        d[i] = v == v ? v : nan.f;
    }
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 of a warp: [lane][register].
static void ptx_mma_m16n8k16_bf16(float d[32][4], const uint32_t a[32][4], const uint32_t b[32][2], const float c[32][4]) {
    double left[16][16], right[16][256];
    float sum[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 8; i++) left[g + (i >> 1 & 1) * 8][t * 2 + (i & 1) + (i >> 2) * 8] = ptx_bf16(a[lane][i >> 1] >> (i & 1) * 16);
        for (int i = 0; i < 4; i++) right[t * 2 + (i & 1) + (i >> 1) * 8][g] = ptx_bf16(b[lane][i >> 1] >> (i & 1) * 16);
        for (int i = 0; i < 4; i++) sum[g + (i >> 1) * 8][t * 2 + (i & 1)] = c[lane][i];
    }
    for (int r = 0; r < 16; r++) ptx_add_products(sum[r], 8, left[r], right);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) d[lane][i] = sum[(lane >> 2) + (i >> 1) * 8][(lane & 3) * 2 + (i & 1)];
}

// ldmatrix.sync.aligned.m8n8.x1, .x2 and .x4 (n matrices), with .trans or not, .b16: d[lane·n + matrix] from row[matrix·8 + i], where row i
// of 16 bytes of a matrix lies; the other rows aren't read.
static void ptx_ldmatrix(uint32_t *d, const uint8_t *const row[32], int n, int trans) {
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < n; m++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int r = lane >> 2, c = (lane & 3) * 2 + i;
                memcpy(&pair[i], row[m * 8 + (trans ? c : r)] + 2 * (trans ? r : c), 2);
            }
            d[lane * n + m] = pair[0] | (uint32_t)pair[1] << 16;
        }
}

// The 128-, 64- and 32-byte swizzles put a 16-byte chunk where the bits of its address from 7 on say; a span of 16 is none.
static uint32_t ptx_swizzled(uint32_t at, uint32_t span) { return at ^ (at >> 7 & (span / 16 - 1)) << 4; }

// Reads 16 along K of rows of an operand that a matrix descriptor tells of, K beside K in memory ("K-major").
static int ptx_wgmma_operand(double *to, int row_step, int k_step, int rows, uint64_t descriptor, const uint8_t *shared, uint32_t size) {
    static const uint16_t spans[4] = {16, 128, 64, 32};
    uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    uint32_t span = spans[descriptor >> 62];
    if (descriptor >> 49 & 7) return -1; // a pattern that doesn't begin where its address is a multiple of its size: nobody uses it here
    for (int r = 0; r < rows; r++)
        for (int chunk = 0; chunk < 2; chunk++) {
            uint32_t at = ptx_swizzled(start + r / 8 * stride + r % 8 * span + chunk * (span == 16 ? leading : 16), span);
            uint16_t v[8];
            if (size < 16 || at > size - 16) return -1;
            memcpy(v, shared + at, 16);
            for (int i = 0; i < 8; i++) to[r * row_step + (chunk * 8 + i) * k_step] = ptx_bf16(v[i]);
        }
    return 0;
}

// The same where K's rows lie beside each other ("MN-major") with the 128-byte swizzle: 64 of a row are 128 bytes, 8 rows of them lie in
// a row, stride leads to the next 8 and leading to the next 64 of each row.
static int ptx_wgmma_columns(double to[16][256], int columns, uint64_t descriptor, const uint8_t *shared, uint32_t size) {
    uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1 || descriptor >> 49 & 7) return -1; // others aren't played
    for (int k = 0; k < 16; k++)
        for (int c = 0; c < columns; c += 8) {
            uint32_t at = ptx_swizzled(start + c / 64 * leading + k / 8 * stride + k % 8 * 128 + c % 64 * 2, 128);
            uint16_t v[8];
            if (size < 16 || at > size - 16) return -1;
            memcpy(v, shared + at, 16);
            for (int i = 0; i < 8; i++) to[k][c + i] = ptx_bf16(v[i]);
        }
    return 0;
}

// d of a warp group, [thread·N/2 + register], gets a·b added, or is a·b where scale_d is 0.
static void ptx_wgmma_add(float *d, int n, const double left[64][16], const double right[16][256], int scale_d) {
    for (int r = 0; r < 64; r++) {
        float sum[256];
        float *mine = d + (r / 16 * 32 + r % 8 * 4) * (n / 2) + r / 8 % 2 * 2; // of the first of the four threads that share the row
        for (int i = 0; i < n; i++) sum[i] = scale_d ? mine[i / 2 % 4 * (n / 2) + i / 8 * 4 + i % 2] : 0;
        ptx_add_products(sum, n, left[r], right);
        for (int i = 0; i < n; i++) mine[i / 2 % 4 * (n / 2) + i / 8 * 4 + i % 2] = sum[i];
    }
}

// wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16 of a warp group with both operands in shared memory and neither transposed:
// d[thread·N/2 + register], N a multiple of 8 up to 256; scale_d 0 forgets d, scale_a and scale_b are 1 or -1.
static int ptx_wgmma_m64k16_bf16(float *d, int n, uint64_t a, uint64_t b, int scale_d, int scale_a, int scale_b, const uint8_t *shared, uint32_t size) {
    double left[64][16], right[16][256];
    if (n < 8 || n > 256 || n % 8) return -1;
    if (ptx_wgmma_operand(left[0], 16, 1, 64, a, shared, size) || ptx_wgmma_operand(right[0], 1, 256, n, b, shared, size)) return -1;
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 16; k++) left[r][k] *= scale_a * scale_b;
    ptx_wgmma_add(d, n, left, right, scale_d);
    return 0;
}

// The same with a in registers, a[thread][register], and b transposed.
static int ptx_wgmma_registers_m64k16_bf16(float *d, int n, const uint32_t a[128][4], uint64_t b, int scale_d, const uint8_t *shared, uint32_t size) {
    double left[64][16], right[16][256];
    if (n < 8 || n > 256 || n % 8) return -1;
    if (ptx_wgmma_columns(right, n, b, shared, size)) return -1;
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < 8; i++) left[t / 32 * 16 + t % 32 / 4 + (i >> 1 & 1) * 8][t % 4 * 2 + (i & 1) + (i >> 2) * 8] = ptx_bf16(a[t][i >> 1] >> (i & 1) * 16);
    ptx_wgmma_add(d, n, left, right, scale_d);
    return 0;
}

// A tensor map here is what it was made of. Dimension 0 is the one whose elements lie beside each other; pitch[i] is the bytes from one
// of dimension i + 1 to the next; span is the bytes of the swizzle, 16 for none.
struct tensor_map {
    uint64_t magic, base, size[5], pitch[4];
    uint16_t box[5];
    uint8_t rank, bytes, span;
};
#define TENSOR_MAP 0x70616d726f736e74ull
_Static_assert(sizeof(struct tensor_map) <= 128, "a CUtensorMap has 128 bytes");

// Makes a map of what cuTensorMapEncodeTiled is given (enums of cuda.h: type CU_TENSOR_MAP_DATA_TYPE_…, swizzle 0 to 3 for none, 32, 64 and 128
// bytes). Steps other than 1 and interleaved layouts aren't played.
static int ptx_make_map(struct tensor_map *map, int type, unsigned rank, uint64_t base, const uint64_t *size, const uint64_t *pitch, const uint32_t *box,
                        const uint32_t *step, int interleave, int swizzle, int fill) {
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    if (type < 0 || type > 9 || rank < 1 || rank > 5 || base % 16 || interleave || swizzle < 0 || swizzle > 3 || fill) return -1;
    struct tensor_map m = {.magic = TENSOR_MAP, .base = base, .rank = (uint8_t)rank, .bytes = bytes[type], .span = (uint8_t)(16 << swizzle)};
    for (unsigned i = 0; i < rank; i++) {
        if (!size[i] || size[i] > 1ull << 32 || !box[i] || box[i] > 256 || step[i] != 1) return -1;
        m.size[i] = size[i];
        m.box[i] = box[i];
        if (i + 1 == rank) break;
        if (!pitch[i] || pitch[i] % 16 || pitch[i] >> 40) return -1;
        m.pitch[i] = pitch[i];
    }
    if (box[0] * m.bytes % 16 || (swizzle && box[0] * m.bytes > m.span)) return -1;
    memcpy(map, &m, sizeof m);
    return 0;
}

// Whether n bytes at a global address may be read.
typedef int ptx_readable(uint64_t at, uint64_t n);

// cp.async.bulk.tensor.{1d to 5d}.shared::cluster.global of the box at a coordinate (dimension 0 first; it may lie outside, where it is zero) to a
// shared address. Returns the bytes that it counts on its barrier, which are the whole box's, or -1.
static int ptx_tensor_load(uint8_t *shared, uint32_t size, uint32_t to, const struct tensor_map *m, int rank, const int32_t *at, ptx_readable *readable) {
    if (m->magic != TENSOR_MAP || m->rank != rank || to % 128) return -1;
    uint32_t row = m->box[0] * m->bytes, rows = 1;
    if (m->span != 16 && row != m->span) return -1; // how shorter rows lie under a swizzle isn't played
    for (int i = 1; i < rank; i++) rows *= m->box[i];
    if ((uint64_t)row * rows > size || to > size - row * rows) return -1;
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t from = m->base;
        int outside = 0;
        for (uint32_t i = 1, rest = r; i < m->rank; rest /= m->box[i++]) {
            int64_t c = (int64_t)at[i] + rest % m->box[i];
            if (c < 0 || c >= (int64_t)m->size[i]) outside = 1;
            from += c * m->pitch[i - 1];
        }
        int64_t first = at[0] < 0 ? -(int64_t)at[0] : 0, end = (int64_t)m->size[0] - at[0];
        if (end > m->box[0]) end = m->box[0];
        uint8_t line[256 * 8] = {0};
        if (!outside && first < end) {
            from += (at[0] + first) * m->bytes;
            if (!readable(from, (end - first) * m->bytes)) return -1;
            memcpy(line + first * m->bytes, (const void *)(uintptr_t)from, (end - first) * m->bytes);
        }
        for (uint32_t i = 0; i < row; i += 16) memcpy(shared + ptx_swizzled(to + r * row + i, m->span), line + i, 16);
    }
    return row * rows;
}

// The 64 bits of an mbarrier: the arrivals that a phase takes (20 bits), those that are due (20), the bytes that are due (22, signed),
// the phase's parity (1). Not what a GPU has there, which is nobody's business but mbarrier's.
struct ptx_barrier { uint64_t count : 20, due : 20, parity : 1; int64_t bytes : 22; };
_Static_assert(sizeof(struct ptx_barrier) == 8, "an mbarrier has 8 bytes");

static int ptx_barrier_store(uint8_t *at, struct ptx_barrier b) {
    if (!b.due && !b.bytes) {
        b.due = b.count;
        b.parity ^= 1;
    }
    memcpy(at, &b, 8);
    return 0;
}
static int ptx_barrier_init(uint8_t *at, uint32_t count) {
    if (!count || count >> 20) return -1;
    return ptx_barrier_store(at, (struct ptx_barrier){.count = count, .due = count});
}
// mbarrier.arrive, and with bytes mbarrier.arrive.expect_tx.
static int ptx_barrier_arrive(uint8_t *at, uint32_t bytes) {
    struct ptx_barrier b;
    memcpy(&b, at, 8);
    if (!b.due || bytes >> 20 || b.bytes + (int64_t)bytes >= 1 << 20) return -1;
    b.due--;
    b.bytes += bytes;
    return ptx_barrier_store(at, b);
}
// mbarrier.complete_tx, as a copy does when its bytes are there. They may come before they are expected.
static int ptx_barrier_complete(uint8_t *at, uint32_t bytes) {
    struct ptx_barrier b;
    memcpy(&b, at, 8);
    if (!b.due && !b.bytes) return -1; // was never one
    if (bytes >> 20 || b.bytes - (int64_t)bytes < -(1 << 20)) return -1;
    b.bytes -= bytes;
    return ptx_barrier_store(at, b);
}
// mbarrier.test_wait.parity and try_wait.parity: whether the phase of this parity has ended, the one under way being of the other.
static int ptx_barrier_ended(const uint8_t *at, uint32_t parity) {
    struct ptx_barrier b;
    memcpy(&b, at, 8);
    return b.parity != (parity & 1);
}
#pragma GCC pop_options
#endif
