// Graphs, copies in streams and page-locked memory. What is submitted to a stream runs at once, unless the stream is captured: then
// it becomes a node of a graph, with the parameters that it had. Included by create.h.

struct graph { struct node *first, *last; struct graph *next; int alive, executable, spoilt; };
static struct graph *graphs;

static struct graph *new_graph(void) {
    struct graph *g = calloc(1, sizeof *g);
    g->alive = 1;
    g->next = graphs;
    return graphs = g;
}

static void add_node(struct graph *g, const struct node *k) {
    struct node *n = malloc(sizeof *n);
    *n = *k;
    n->next = NULL;
    for (int i = 0; k->f && i < k->f->parameters; i++) {
        n->p[i] = aligned_alloc(64, (k->f->size[i] + 63) / 64 * 64);
        memcpy(n->p[i], k->p[i], k->f->size[i]);
    }
    if (g->last) g->last->next = n; else g->first = n;
    g->last = n;
}

static void drop_nodes(struct graph *g) {
    for (struct node *n = g->first; n;) {
        struct node *gone = n;
        n = n->next;
        for (int i = 0; gone->f && i < gone->f->parameters; i++) free(gone->p[i]);
        free(gone);
    }
    g->first = g->last = NULL;
}

static CUresult submit(struct stream *s, struct node *k) {
    if (!s || !s->capture) return run_node(s, k);
    add_node(s->capture, k);
    return 0;
}

EXPORT CUresult cuStreamBeginCapture_v2(struct stream *s, int mode) {
    CHANGE(); IN_CONTEXT(); USABLE(s);
    if (!s || s->capture || mode < 0 || mode > 2) return CAPTURE_UNSUPPORTED;
    s->capture = new_graph();
    return 0;
}

EXPORT CUresult cuStreamEndCapture(struct stream *s, struct graph **out) {
    CHANGE(); IN_CONTEXT(); USABLE(s);
    if (!s || !s->capture) return INVALID_VALUE;
    *out = s->capture;
    s->capture = NULL;
    return 0;
}

#define GRAPH_BYTES (64 << 10) // what a launchable graph takes of the device here; a driver's own share varies

EXPORT CUresult cuGraphInstantiateWithFlags(struct graph **out, struct graph *g, unsigned long long flags) {
    CHANGE(); IN_CONTEXT();
    if (flags || !FIND(graphs, g) || !g->alive || g->executable) return INVALID_VALUE;
    struct graph *e = new_graph();
    e->executable = 1;
    for (struct node *n = g->first; n; n = n->next) add_node(e, n);
    allocated += GRAPH_BYTES;
    tell_usage();
    *out = e;
    return 0;
}

EXPORT CUresult cuGraphExecUpdate_v2(struct graph *e, struct graph *g, uint64_t *result) {
    CHANGE(); IN_CONTEXT();
    if (!FIND(graphs, e) || !FIND(graphs, g) || !e->alive || !g->alive || !e->executable || g->executable) return INVALID_VALUE;
    struct node *a = e->first, *b = g->first;
    for (; a && b && !!a->f == !!b->f && (!a->f || !strcmp(a->f->name, b->f->name)); a = a->next) b = b->next;
    result[0] = a || b;
    if (a || b) return 910; // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    drop_nodes(e);
    for (b = g->first; b; b = b->next) add_node(e, b);
    return 0;
}

EXPORT CUresult cuGraphLaunch(struct graph *e, struct stream *s) {
    CHANGE(); IN_CONTEXT(); USABLE(s);
    if (!FIND(graphs, e) || !e->alive || !e->executable) return INVALID_VALUE;
    for (struct node *n = e->first; n; n = n->next) {
        CUresult code = submit(s, n);
        if (code) return code;
    }
    return 0;
}

static CUresult destroy_graph(struct graph *g, int executable) {
    if (!FIND(graphs, g) || !g->alive || g->executable != executable) return INVALID_VALUE;
    g->alive = 0;
    drop_nodes(g);
    if (executable) allocated -= GRAPH_BYTES;
    tell_usage();
    return 0;
}

EXPORT CUresult cuGraphDestroy(struct graph *g) { CHANGE(); IN_CONTEXT(); return destroy_graph(g, 0); }
EXPORT CUresult cuGraphExecDestroy(struct graph *g) { CHANGE(); IN_CONTEXT(); return destroy_graph(g, 1); }

EXPORT CUresult cuMemHostAlloc(void **out, size_t n, unsigned flags) {
    CHANGE(); IN_CONTEXT();
    if (!n || flags > 7) return INVALID_VALUE;
    *out = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    return *out ? 0 : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *p) { CHANGE(); IN_CONTEXT(); free(p); return 0; }
EXPORT CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { CHANGE(); IN_CONTEXT(); (void)flags; return p && n ? 0 : INVALID_VALUE; }
EXPORT CUresult cuMemHostUnregister(void *p) { CHANGE(); IN_CONTEXT(); return p ? 0 : INVALID_VALUE; }

static CUresult transfer(struct stream *s, void *to, const void *from, unsigned char value, size_t n) {
    USABLE(s);
    if (!to) return INVALID_VALUE;
    struct node k = {.to = to, .from = from, .n = n, .value = value};
    return submit(s, &k);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t n, struct stream *s) {
    CHANGE(); IN_CONTEXT();
    return src ? transfer(s, within(dst, n), src, 0, n) : INVALID_VALUE;
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t n, struct stream *s) {
    CHANGE(); IN_CONTEXT();
    const void *from = within(src, n);
    return from ? transfer(s, dst, from, 0, n) : INVALID_VALUE;
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t n, struct stream *s) {
    CHANGE(); IN_CONTEXT();
    const void *from = within(src, n);
    return from ? transfer(s, within(dst, n), from, 0, n) : INVALID_VALUE;
}

EXPORT CUresult cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, struct stream *s) {
    CHANGE(); IN_CONTEXT();
    return transfer(s, within(dst, n), NULL, value, n);
}

EXPORT CUresult cuTensorMapEncodeTiled(struct tensor_map *map, int type, unsigned rank, uint64_t base, const uint64_t *size, const uint64_t *pitch,
                                       const uint32_t *box, const uint32_t *step, int interleave, int swizzle, int promotion, int fill) {
    ASK();
    if ((uintptr_t)map % 64 || promotion < 0 || promotion > 3) return INVALID_VALUE;
    memset(map, 0, 128);
    return ptx_make_map(map, type, rank, base, size, pitch, box, step, interleave, swizzle, fill) ? INVALID_VALUE : 0;
}
