// A client of the fake MPS daemon (mpsd.c). Included by create.h.

static int mps_on, mps_static, mps_first, mps_share = -1; // SMs from first; -1: all
// What a client's limit leaves, in bytes; 0: no limit. The context counts towards it: 513 MiB on an H200 with driver 580.
static unsigned long long mps_limit;
enum { MPS_CONTEXT_BYTES = 538339472 };
static int mps_bound;

static const char *mps_folder(void) { return getenv("CUDA_MPS_PIPE_DIRECTORY"); }

static int mps_file(const char *name, int wait_ms) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", mps_folder(), name);
    for (int i = 0; i <= wait_ms; i += 5) {
        if (!access(path, F_OK)) return 1;
        usleep(5000);
    }
    return 0;
}

// mps_connect makes the daemon in reach start its server, and takes its share of the first device.
static int mps_connect(void) {
    char path[4096], line[512], id[256];
    double percentage = 100;
    int first, count, d = visible >= 0 ? visible : 0, total = (int)NUMBER(0, "cuda.%d.sm", d);
    if (!mps_folder() || !mps_file(".state", 0)) return 0;
    snprintf(path, sizeof path, "%s/.want", mps_folder());
    close(open(path, O_WRONLY | O_CREAT, 0600));
    if (!mps_file(".server", 3000)) return 807;
    mps_on = 1;
    const char *own = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *bind = getenv("CUDA_MPS_SM_PARTITION"), *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    snprintf(path, sizeof path, "%s/.state", mps_folder());
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "percentage=%lf", &percentage);
        sscanf(line, "static=%d", &mps_static);
        if (sscanf(line, "part=%255s %d %d", id, &first, &count) == 3 && bind && strchr(bind, '/') && !strcmp(strchr(bind, '/') + 1, id)) {
            mps_bound = 1;
            mps_first = first;
            mps_share = count;
        }
    }
    if (f) fclose(f);
    if (own && atof(own) < percentage) percentage = atof(own); // a client can only tighten
    if (!mps_static && percentage < 100) mps_share = (int)(total * percentage / 100) / 2 * 2;
    if (limit && strchr(limit, '=')) {
        char unit = 0;
        sscanf(strchr(limit, '=') + 1, "%llu%c", &mps_limit, &unit);
        mps_limit <<= unit == 'G' ? 30 : unit == 'M' ? 20 : 0;
        mps_limit = mps_limit > MPS_CONTEXT_BYTES ? mps_limit - MPS_CONTEXT_BYTES : 1;
    }
    return 0;
}
