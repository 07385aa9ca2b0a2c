// What changes a GPU, as far as a driver without one can play it: contexts, Green Contexts, memory, modules, streams, events and
// launches of the kernels that it knows by name. Included by cuda.c. A process's device memory is told to the fake NVML by a
// file named after its pid, so that it is given back when the process ends, however it ends.
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

enum {
    OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_PTX = 218, INVALID_HANDLE = 400, NO_FUNCTION = 500, NOT_READY = 600,
    ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, INVALID_CONFIGURATION = 915, STREAM_DETACHED = 917
};

#define MIB (1ull << 20)
#define CONTEXT_BYTES (508 * MIB)
#define GREEN_BYTES (4 * MIB) // measured on driver 580: kept after the context was destroyed, until the process ends
#define MAX_SMS 640

typedef struct { unsigned char bit[MAX_SMS / 8]; } mask;

static int has(const mask *m, int i) { return m->bit[i / 8] >> (i % 8) & 1; }
static void put(mask *m, int i) { m->bit[i / 8] |= 1 << (i % 8); }
static int size_of(const mask *m) { int n = 0; for (int i = 0; i < MAX_SMS; i++) n += has(m, i); return n; }

// The driver's own 92 bytes in this fake: which SMs, and where they come from.
struct own { uint32_t magic, split; mask sms; };
#define OWN_MAGIC 0x534d5321u

static struct own *own(struct resource *r) { return (struct own *)r->internal; }

static int is_sm(struct resource *r) {
    return r && r->type == 1 && own(r)->magic == OWN_MAGIC && (unsigned)size_of(&own(r)->sms) == r->u.sm.count;
}

// visible is what CUDA_VISIBLE_DEVICES leaves: -1 all, -2 none, else one device.
static int visible = -1;

static void read_visible(void) {
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    char bare[64];
    int n = 0;
    if (!v) return;
    visible = -2;
    for (const char *p = v + (!strncmp(v, "GPU-", 4) || !strncmp(v, "MIG-", 4) ? 4 : 0); *p && n < 63; p++)
        if (*p != '-') bare[n++] = *p | 0x20 * (*p >= 'A' && *p <= 'F');
    bare[n] = 0;
    for (int d = 0; d < NUMBER(0, "cuda.count"); d++)
        if (text("cuda.%d.uuid", d) && !strcmp(text("cuda.%d.uuid", d), bare)) visible = d;
}

#include "mps.h"

// One device a process is enough for what is played.
static int primary_count, context_device = -1;
static unsigned long long allocated, greens_made;
typedef struct green *CUgreen;
struct context { int device; CUgreen green; } primary;
static __thread struct context *current;

struct allocation { char *p; size_t n; struct allocation *next; };
static struct allocation *allocations;

struct green { uint32_t magic; int alive; unsigned long long id; mask sms; int sm_count; struct context as_context; struct green *next; };
static struct green *greens __attribute__((unused));
struct graph;
struct stream { uint32_t magic; int alive, priority; CUgreen green; struct stream *next; struct graph *capture; };
static struct stream *streams;
struct event { int alive, recorded; struct timespec at; struct event *next; };
static struct event *events;
struct module { int alive; char *text; struct module *next; };
static struct module *modules;
#define MAX_PARAMETERS 32
struct function { struct module *module; char name[64]; int parameters, size[MAX_PARAMETERS], shared; struct function *next; };
static struct function *functions;
struct descriptor { mask sms; int count; unsigned split, limit, scope; };

static unsigned long long taken(void) { return primary_count ? CONTEXT_BYTES + allocated + greens_made * GREEN_BYTES : 0; }

static void tell_usage(void) {
    const char *dir = text("usage");
    char path[4096], line[128];
    if (!dir) return;
    snprintf(path, sizeof path, "%s/%d", dir, (int)getpid());
    if (!primary_count) {
        if (!text("usage.sticky")) unlink(path);
        return;
    }
    int n = snprintf(line, sizeof line, "%s %llu\n", text("cuda.%d.uuid", context_device), taken());
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0) return;
    if (pwrite(fd, line, n, 0) < 0 || ftruncate(fd, n) < 0) {}
    close(fd);
}

// others is what other processes with a fake libcuda hold of the device.
static unsigned long long others(void) {
    const char *dir = text("usage"), *uuid = text("cuda.%d.uuid", context_device);
    unsigned long long sum = 0, bytes;
    char path[4400], held[64];
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        int pid = atoi(e->d_name);
        if (pid <= 0 || pid == (int)getpid() || (kill(pid, 0) && errno == ESRCH)) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%63s %llu", held, &bytes) == 2 && uuid && !strcmp(held, uuid)) sum += bytes;
        if (f) fclose(f);
    }
    if (d) closedir(d);
    return sum;
}

#define CHANGE() \
    note("MUTATING %s", __func__); \
    ENTER(); \
    READY()
#define ASK() \
    ENTER(); \
    READY()
#define IN_CONTEXT() if (!current) return INVALID_CONTEXT
#define FIND(list, x) ({ __typeof__(list) p_ = list; while (p_ && (void *)p_ != (void *)(x)) p_ = p_->next; p_; })

static int device_sms(int d) {
    int n = (int)NUMBER(0, "cuda.%d.sm", d);
    return n > MAX_SMS ? MAX_SMS : n;
}

static void limits_of(struct resource *r, int d) {
    int version = (int)NUMBER(0, "version");
    if (version >= 13000) {
        r->u.sm.min = (unsigned)NUMBER(0, "cuda.%d.min", d);
        r->u.sm.alignment = (unsigned)NUMBER(0, "cuda.%d.alignment", d);
    }
    if (version >= 13010) { r->u.sm.flags = 0; r->next = NULL; }
    if (version >= 13040) r->u.sm.domain = 0;
}

// make_sm fills a resource with these SMs; what a version doesn't fill must not be read, so it isn't zero.
static void make_sm(struct resource *r, int d, const mask *sms, unsigned split) {
    memset(r, 0xa5, 144);
    r->type = 1;
    own(r)->magic = OWN_MAGIC;
    own(r)->split = split;
    own(r)->sms = *sms;
    r->u.sm.count = (unsigned)size_of(sms);
    limits_of(r, d);
}

static mask all_sms(int d) {
    mask m = {0};
    for (int i = 0; i < device_sms(d); i++)
        if (mps_share < 0 || (i >= mps_first && i < mps_first + mps_share)) put(&m, i);
    return m;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct context **out, CUdevice d) {
    CHANGE();
    if (d < 0 || d >= NUMBER(0, "cuda.count")) return INVALID_DEVICE;
    if (mps_on && mps_static && !mps_bound) return INVALID_CONFIGURATION;
    primary_count++;
    primary.device = context_device = d;
    tell_usage();
    *out = &primary;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
    CHANGE();
    if (!primary_count || d != context_device) return INVALID_CONTEXT;
    if (!--primary_count) { allocated = greens_made = 0; if (current == &primary) current = NULL; }
    tell_usage();
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
    ASK();
    *flags = 0;
    *active = primary_count > 0 && d == context_device;
    return 0;
}

EXPORT CUresult cuCtxSetCurrent(struct context *c) { CHANGE(); current = c; return 0; }
EXPORT CUresult cuCtxSynchronize(void) { ASK(); IN_CONTEXT(); return 0; }

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ASK(); IN_CONTEXT();
    *least = 0;
    *greatest = -5;
    return 0;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ASK(); IN_CONTEXT();
    *total = (size_t)NUMBER(0, "cuda.%d.memory", context_device);
    unsigned long long used = taken() + others();
    *free_bytes = used < *total ? *total - used : 0;
    if (mps_limit && *free_bytes > mps_limit - allocated) *free_bytes = mps_limit - allocated;
    return 0;
}

EXPORT CUresult cuMemAlloc_v2(uint64_t *out, size_t n) {
    CHANGE(); IN_CONTEXT();
    if (!n) return INVALID_VALUE;
    if (taken() + others() + n > (size_t)NUMBER(0, "cuda.%d.memory", context_device)) return OUT_OF_MEMORY;
    if (mps_limit && allocated + n > mps_limit) return OUT_OF_MEMORY;
    // Large memory takes room as it is written to.
    struct allocation *a = malloc(sizeof *a);
    *a = (struct allocation){n > 64 * MIB ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : aligned_alloc(256, (n + 255) & ~255ull), n, allocations};
    if (!a->p || a->p == MAP_FAILED) { free(a); return OUT_OF_MEMORY; }
    allocations = a;
    allocated += n;
    tell_usage();
    *out = (uint64_t)(uintptr_t)a->p;
    return 0;
}

EXPORT CUresult cuMemFree_v2(uint64_t p) {
    CHANGE(); IN_CONTEXT();
    for (struct allocation **a = &allocations; *a; a = &(*a)->next)
        if ((uint64_t)(uintptr_t)(*a)->p == p) {
            struct allocation *gone = *a;
            *a = gone->next;
            allocated -= gone->n;
            if (gone->n > 64 * MIB) munmap(gone->p, gone->n); else free(gone->p);
            free(gone);
            tell_usage();
            return 0;
        }
    return INVALID_VALUE;
}

// within returns the address where n bytes lie in one allocation, else NULL.
static char *within(uint64_t p, size_t n) {
    for (struct allocation *a = allocations; a; a = a->next) {
        uint64_t base = (uint64_t)(uintptr_t)a->p;
        if (p >= base && p - base <= a->n && n <= a->n - (p - base)) return (char *)(uintptr_t)p;
    }
    return NULL;
}

EXPORT CUresult cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t n) {
    CHANGE(); IN_CONTEXT();
    char *p = within(dst, n);
    if (!p) return INVALID_VALUE;
    memcpy(p, src, n);
    return 0;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t n) {
    CHANGE(); IN_CONTEXT();
    char *p = within(src, n);
    if (!p) return INVALID_VALUE;
    memcpy(dst, p, n);
    return 0;
}

EXPORT CUresult cuMemsetD8_v2(uint64_t dst, unsigned char value, size_t n) {
    CHANGE(); IN_CONTEXT();
    char *p = within(dst, n);
    if (!p) return INVALID_VALUE;
    memset(p, value, n > 64 * MIB ? 64 * MIB : n); // beyond what a test looks at, memory is only counted
    return 0;
}

EXPORT CUresult cuModuleLoadDataEx(struct module **out, const char *image, unsigned count, unsigned *options, void **values) {
    CHANGE(); IN_CONTEXT();
    if (strncmp(image, "//", 2) && !strstr(image, ".version")) {
        for (unsigned i = 0; i < count; i++)
            if (options[i] == 5) snprintf(values[i], 64, "ptxas fatal   : no .version");
        return INVALID_PTX;
    }
    struct module *m = malloc(sizeof *m);
    *m = (struct module){1, strdup(image), modules};
    *out = modules = m;
    return 0;
}

EXPORT CUresult cuModuleUnload(struct module *m) {
    CHANGE(); IN_CONTEXT();
    if (!FIND(modules, m) || !m->alive) return INVALID_HANDLE;
    m->alive = 0;
    return 0;
}

EXPORT CUresult cuModuleGetFunction(struct function **out, struct module *m, const char *name) {
    ASK(); IN_CONTEXT();
    char head[128];
    if (!FIND(modules, m) || !m->alive) return INVALID_HANDLE;
    snprintf(head, sizeof head, ".entry %s(", name);
    char *p = strstr(m->text, head);
    if (!p) return NO_FUNCTION;
    struct function *f = calloc(1, sizeof *f);
    f->module = m;
    snprintf(f->name, sizeof f->name, "%s", name);
    char *end = strchr(p, ')');
    for (p = strstr(p, ".param"); p && p < end && f->parameters < MAX_PARAMETERS; p = strstr(p + 6, ".param")) {
        // ".param .u64 .ptr .global .align 1 name", ".param .f32 name", ".param .align 64 .b8 name[128]"
        int size = 4;
        if (!strncmp(p + 6, " .align", 7)) size = atoi(strchr(strstr(p, ".b8"), '[') + 1);
        else if (!strncmp(p + 9, "64", 2)) size = 8;
        f->size[f->parameters++] = size;
    }
    f->next = functions;
    *out = functions = f;
    return 0;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, struct function *f) {
    ASK();
    if (!FIND(functions, f)) return INVALID_HANDLE;
    *value = attribute == 4 ? 32 : 0;
    return 0;
}

// A block has 48 KiB of shared memory, and up to 227 where a kernel was allowed them.
EXPORT CUresult cuFuncSetAttribute(struct function *f, int attribute, int value) {
    CHANGE(); IN_CONTEXT();
    if (!FIND(functions, f)) return INVALID_HANDLE;
    if (attribute != 8 || value < 0 || value > 227 * 1024) return INVALID_VALUE;
    f->shared = value;
    return 0;
}

// launched_ns is when the first kernel since somebody waited was launched: kernels of several streams begin together. What spins is
// done at busy_until_ns.
static uint64_t launched_ns, busy_until_ns;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static CUresult new_stream(struct stream **out, CUgreen g, int priority) {
    struct stream *s = malloc(sizeof *s);
    *s = (struct stream){0, 1, priority > 0 ? 0 : priority < -5 ? -5 : priority, g, streams, NULL};
    *out = streams = s;
    return 0;
}

EXPORT CUresult cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) {
    CHANGE(); IN_CONTEXT();
    (void)flags;
    return new_stream(out, current->green, priority);
}

static CUresult usable(struct stream *s) {
    if (!s) return 0;
    if (!FIND(streams, s) || !s->alive) return INVALID_HANDLE;
    if (s->green && !s->green->alive) return STREAM_DETACHED;
    return 0;
}

#define USABLE(s) do { CUresult code_ = usable(s); if (code_) return code_; } while (0)

EXPORT CUresult cuStreamDestroy_v2(struct stream *s) {
    CHANGE();
    if (!s || !FIND(streams, s) || !s->alive) return INVALID_HANDLE;
    s->alive = 0;
    return 0;
}

EXPORT CUresult cuStreamSynchronize(struct stream *s) {
    ASK(); USABLE(s);
    if (s && s->capture) return CAPTURE_UNSUPPORTED;
    while (now_ns() < busy_until_ns) usleep(100);
    launched_ns = 0;
    return 0;
}

EXPORT CUresult cuStreamQuery(struct stream *s) {
    ASK(); USABLE(s);
    if (now_ns() < busy_until_ns) return NOT_READY;
    launched_ns = 0;
    return 0;
}
EXPORT CUresult cuStreamGetPriority(struct stream *s, int *p) { ASK(); USABLE(s); *p = s ? s->priority : 0; return 0; }
EXPORT CUresult cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags) { CHANGE(); (void)e; (void)flags; USABLE(s); return 0; }

EXPORT CUresult cuEventCreate(struct event **out, unsigned flags) {
    CHANGE(); IN_CONTEXT();
    (void)flags;
    struct event *e = calloc(1, sizeof *e);
    e->alive = 1;
    e->next = events;
    *out = events = e;
    return 0;
}

EXPORT CUresult cuEventDestroy_v2(struct event *e) {
    CHANGE();
    if (!FIND(events, e) || !e->alive) return INVALID_HANDLE;
    e->alive = 0;
    return 0;
}

EXPORT CUresult cuEventRecord(struct event *e, struct stream *s) {
    CHANGE(); USABLE(s);
    if (s && s->capture) return CAPTURE_UNSUPPORTED;
    if (!FIND(events, e) || !e->alive) return INVALID_HANDLE;
    e->recorded = 1;
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return 0;
}

EXPORT CUresult cuEventQuery(struct event *e) { ASK(); return FIND(events, e) && e->alive ? 0 : INVALID_HANDLE; }
EXPORT CUresult cuEventSynchronize(struct event *e) { ASK(); return FIND(events, e) && e->alive ? 0 : INVALID_HANDLE; }

EXPORT CUresult cuEventElapsedTime(float *ms, struct event *a, struct event *b) {
    ASK();
    if (!FIND(events, a) || !FIND(events, b) || !a->recorded || !b->recorded) return INVALID_HANDLE;
    *ms = (float)((b->at.tv_sec - a->at.tv_sec) * 1e3 + (b->at.tv_nsec - a->at.tv_nsec) / 1e6);
    return 0;
}

#include "launch.h"
#include "graph.h"
#if FAKE_CUDA >= 12040
#include "green.h"
#endif
