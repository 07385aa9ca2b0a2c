// Splits and Green Contexts, as measured on driver 580 and documented for later ones. Included by create.h.

static unsigned split_count;

EXPORT CUresult cuDevSmResourceSplitByCount(struct resource *result, unsigned *groups, struct resource *in, struct resource *rest,
                                            unsigned flags, unsigned minimum) {
    ASK();
    if (!groups || !is_sm(in) || flags > 3) return INVALID_VALUE;
    // What came out of a split has to become a Green Context before it is split again.
    if (own(in)->split) return INVALID_CONFIGURATION;
    int d = visible >= 0 ? visible : 0;
    if (mps_share >= 0 && !mps_static && !(flags & 1)) return INVALID_CONFIGURATION; // measured in a client with a percentage
    unsigned total = in->u.sm.count, least = (unsigned)NUMBER(8, "cuda.%d.min", d), step = (unsigned)NUMBER(8, "cuda.%d.alignment", d);
    if (flags & 1) least = step = NUMBER(90, "cuda.%d.attr.75", d) >= 7 ? 2 : 1;
    unsigned size = minimum < least ? least : (minimum + step - 1) / step * step;
    if (minimum > total) return INVALID_CONFIGURATION;
    if (size > total) size = total;
    unsigned fit = total / size, n = result ? (*groups < fit ? *groups : fit) : fit;
    *groups = n;
    if (!result) return 0;
    mask left = own(in)->sms;
    split_count++;
    for (unsigned g = 0; g < n; g++) {
        mask part = {0};
        unsigned have = 0;
        for (int i = 0; i < MAX_SMS && have < size; i++)
            if (has(&left, i)) { put(&part, i); left.bit[i / 8] &= (unsigned char)~(1 << (i % 8)); have++; }
        make_sm(&result[g], d, &part, split_count);
    }
    if (rest) {
        make_sm(rest, d, &left, split_count);
        if (!size_of(&left)) memset(rest, 0, 144);
    }
    return 0;
}

#if FAKE_CUDA >= 13010
struct group { unsigned sms, coscheduled, preferred, flags, reserved[12]; };

EXPORT CUresult cuDevSmResourceSplit(struct resource *result, unsigned groups, struct resource *in, struct resource *rest, unsigned flags,
                                     struct group *params) {
    ASK();
    if (!groups || !is_sm(in) || flags) return INVALID_VALUE;
    if (own(in)->split) return INVALID_CONFIGURATION;
    int d = visible >= 0 ? visible : 0;
    mask left = own(in)->sms;
    split_count++;
    for (unsigned g = 0; g < groups; g++) {
        for (int i = 0; i < 12; i++) if (params[g].reserved[i]) return INVALID_VALUE;
        if (!params[g].coscheduled) params[g].coscheduled = (unsigned)NUMBER(8, "cuda.%d.alignment", d);
        unsigned want = params[g].sms, have = 0, free_sms = (unsigned)size_of(&left);
        if (!want) want = params[g].sms = free_sms / params[g].coscheduled * params[g].coscheduled;
        if (want > free_sms || (!(params[g].flags & 1) && want % params[g].coscheduled)) return INVALID_CONFIGURATION;
        mask part = {0};
        for (int i = 0; i < MAX_SMS && have < want; i++)
            if (has(&left, i)) { put(&part, i); left.bit[i / 8] &= (unsigned char)~(1 << (i % 8)); have++; }
        if (result) make_sm(&result[g], d, &part, split_count);
    }
    if (rest) {
        make_sm(rest, d, &left, split_count);
        if (!size_of(&left)) memset(rest, 0, 144);
    }
    return 0;
}
#endif

EXPORT CUresult cuDevResourceGenerateDesc(struct descriptor **out, struct resource *r, unsigned n) {
    CHANGE();
    struct descriptor *d = calloc(1, sizeof *d);
    for (unsigned i = 0; i < n; i++) {
        struct resource *x = (struct resource *)((char *)r + 144 * i);
        if (x->type == 1000) { d->limit = x->u.wq.limit; d->scope = x->u.wq.scope; continue; }
        if (!is_sm(x)) return INVALID_VALUE;
        for (int k = 0; k < MAX_SMS; k++) if (has(&own(x)->sms, k)) put(&d->sms, k);
    }
    d->count = size_of(&d->sms);
    if (!d->count) return INVALID_CONFIGURATION;
    *out = d;
    return 0;
}

EXPORT CUresult cuGreenCtxCreate(CUgreen *out, struct descriptor *desc, CUdevice d, unsigned flags) {
    CHANGE();
    if (!desc || d < 0 || d >= NUMBER(0, "cuda.count")) return INVALID_VALUE;
    if (NUMBER(0, "version") < 13030 && flags != 1) return INVALID_VALUE;
    if (!primary_count) { primary.device = context_device = d; }
    if (taken() + GREEN_BYTES > (unsigned long long)NUMBER(0, "cuda.%d.memory", d)) return OUT_OF_MEMORY;
    struct green *g = calloc(1, sizeof *g);
    static unsigned long long ids;
    *g = (struct green){0, 1, ++ids, desc->sms, desc->count, {d, NULL}, greens};
    g->as_context.green = g;
    greens = g;
    greens_made++;
    primary_count++; // each retains the primary context
    tell_usage();
    *out = g;
    return 0;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreen g) {
    CHANGE();
    if (!FIND(greens, g) || !g->alive) return INVALID_HANDLE;
    g->alive = 0;
    if (current == &g->as_context) current = NULL;
    if (!--primary_count) allocated = greens_made = 0;
    tell_usage();
    return 0;
}

#define GREEN(g) if (!FIND(greens, g) || !g->alive) return INVALID_HANDLE

EXPORT CUresult cuGreenCtxGetDevResource(CUgreen g, struct resource *r, int type) {
    ASK(); GREEN(g);
    if (type != 1) return INVALID_RESOURCE_TYPE;
    make_sm(r, g->as_context.device, &g->sms, 0);
    return 0;
}

EXPORT CUresult cuCtxFromGreenCtx(struct context **out, CUgreen g) { ASK(); GREEN(g); *out = &g->as_context; return 0; }

EXPORT CUresult cuCtxGetDevResource(struct context *c, struct resource *r, int type) {
    ASK();
    if (!c) return INVALID_CONTEXT;
    if (type != 1) return INVALID_RESOURCE_TYPE;
    if (c != &primary) { GREEN(c->green); }
    mask m = c->green ? c->green->sms : all_sms(c->device);
    make_sm(r, c->device, &m, 0);
    return 0;
}

EXPORT CUresult cuGreenCtxRecordEvent(CUgreen g, struct event *e) {
    CHANGE(); GREEN(g);
    e->recorded = 1;
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return 0;
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreen g, struct event *e) { CHANGE(); GREEN(g); (void)e; return 0; }

EXPORT CUresult cuStreamGetGreenCtx(struct stream *s, CUgreen *g) { ASK(); USABLE(s); *g = s ? s->green : NULL; return 0; }

#if FAKE_CUDA >= 12050
EXPORT CUresult cuGreenCtxStreamCreate(struct stream **out, CUgreen g, unsigned flags, int priority) {
    CHANGE(); GREEN(g);
    if (!(flags & 1)) return INVALID_VALUE;
    return new_stream(out, g, priority);
}

EXPORT CUresult cuStreamGetCtx_v2(struct stream *s, struct context **c, CUgreen *g) {
    ASK(); USABLE(s);
    *g = s ? s->green : NULL;
    *c = *g ? NULL : &primary;
    return 0;
}
#endif

#if FAKE_CUDA >= 13000
EXPORT CUresult cuGreenCtxGetId(CUgreen g, unsigned long long *id) { ASK(); GREEN(g); *id = g->id; return 0; }
#endif

#if FAKE_CUDA >= 13010
EXPORT CUresult cuStreamGetDevResource(struct stream *s, struct resource *r, int type) {
    ASK(); USABLE(s);
    if (type != 1) return INVALID_RESOURCE_TYPE;
    mask m = s && s->green ? s->green->sms : all_sms(context_device);
    make_sm(r, context_device, &m, 0);
    return 0;
}
#endif
