// Device memory that processes with a fake libcuda hold, as create.h tells it: a file named after the pid, "<uuid> <bytes>". A
// process that ended holds none, unless "usage.sticky" plays a driver that doesn't give it back. Included by nvml.c.
#include <dirent.h>
#include <errno.h>

// gone reports whether a process has ended, waited for or not.
static int gone(int pid) {
    char path[64], line[512], *end;
    if (kill(pid, 0) && errno == ESRCH) return 1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    return (end = strrchr(line, ')')) && (end[2] == 'Z' || end[2] == 'X');
}

struct holder { unsigned pid; unsigned long long bytes; };

// holders fills at most room entries for a GPU and returns how many processes hold memory of it.
static unsigned holders(int gpu, struct holder *out, unsigned room) {
    const char *dir = text("usage"), *uuid = text("nvml.%d.uuid", gpu);
    char bare[64], path[4400], held[64];
    unsigned n = 0;
    int k = 0;
    if (!dir || !uuid) return 0;
    for (const char *p = uuid + (!strncmp(uuid, "GPU-", 4) ? 4 : 0); *p && k < 63; p++) if (*p != '-') bare[k++] = *p;
    bare[k] = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        int pid = atoi(e->d_name);
        struct holder h = {(unsigned)pid, 0};
        if (pid <= 0) continue;
        if (gone(pid) && !text("usage.sticky")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fscanf(f, "%63s %llu", held, &h.bytes) == 2 && !strcmp(held, bare)) {
            if (n < room) out[n] = h;
            n++;
        }
        fclose(f);
    }
    closedir(d);
    return n;
}

static unsigned long long held_bytes(int gpu) {
    struct holder h[64];
    unsigned n = holders(gpu, h, 64);
    unsigned long long sum = 0;
    for (unsigned i = 0; i < n && i < 64; i++) sum += h[i].bytes;
    return sum;
}

// live_holders are those whose process still runs.
static unsigned live_holders(int gpu, struct holder *out, unsigned room) {
    unsigned n = holders(gpu, out, room), kept = 0;
    for (unsigned i = 0; i < n && i < room; i++)
        if (!gone((int)out[i].pid)) out[kept++] = out[i];
    return kept;
}
