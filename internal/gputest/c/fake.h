// What the fake libraries share: the data file beside the library (its own path and ".data", lines of key=value), the log of
// calls, and faults to order.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct pair { char *key, *value; };
static struct pair *pairs;
static int pair_count;

__attribute__((constructor)) static void load_data(void) {
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)load_data, &self)) return;
    snprintf(path, sizeof path, "%s.data", self.dli_fname);
    FILE *f = fopen(path, "r");
    if (!f) return;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    while ((n = getline(&line, &size, f)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        char *eq = strchr(line, '=');
        if (!eq) continue;
        *eq = 0;
        pairs = realloc(pairs, (pair_count + 1) * sizeof *pairs);
        pairs[pair_count].key = strdup(line);
        pairs[pair_count++].value = strdup(eq + 1);
    }
    free(line);
    fclose(f);
}

static const char *text(const char *format, ...) {
    char key[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(key, sizeof key, format, ap);
    va_end(ap);
    for (int i = 0; i < pair_count; i++)
        if (!strcmp(pairs[i].key, key)) return pairs[i].value;
    return NULL;
}

#define NUMBER(fallback, ...) number_of(text(__VA_ARGS__), fallback)

static long long number_of(const char *value, long long fallback) {
    if (!value) return fallback;
    // Twice: memory sizes and all-ones exceed a signed number.
    return value[0] == '-' ? strtoll(value, NULL, 10) : (long long)strtoull(value, NULL, 10);
}

static void note(const char *format, ...) {
    const char *path = text("log");
    if (!path) return;
    char line[512];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line - 1, format, ap);
    va_end(ap);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (fd < 0) return;
    if (write(fd, line, n) < 0) {}
    close(fd);
}

static void hang(void) {
    // Ends when the machine's folder goes, so that no process outlives its test for long.
    const char *alive = text("alive");
    while (!alive || !access(alive, F_OK)) usleep(50000);
    _exit(1);
}

static struct { const char *symbol; int calls; } counters[256];

static int count_call(const char *symbol) {
    for (int i = 0; i < 256; i++) {
        if (!counters[i].symbol) counters[i].symbol = symbol;
        if (!strcmp(counters[i].symbol, symbol)) return ++counters[i].calls;
    }
    return 0;
}

// enter logs a call and applies the fault that was ordered for it. It returns 1 where the call must return *code at once.
static int enter(const char *symbol, const char *scope, int index, int *code) {
    note("%s", symbol);
    int call = count_call(symbol);
    for (int i = 0; text("fault.%d.symbol", i); i++) {
        long long at = NUMBER(0, "fault.%d.call", i);
        if (strcmp(text("fault.%d.symbol", i), symbol) || (at && at != call)) continue;
        const char *action = text("fault.%d.action", i);
        *code = (int)NUMBER(0, "fault.%d.code", i);
        if (!action) return 1;
        if (!strcmp(action, "hang")) hang();
        if (!strcmp(action, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
        if (!strcmp(action, "exit")) _exit(3);
        if (!strcmp(action, "lie")) { *code = 0; return 1; }
        if (!strcmp(action, "noise")) {
            fprintf(stderr, "noise of %s on stderr\n", symbol);
            printf("noise of %s on stdout", symbol);
            fflush(stdout);
        }
    }
    const char *forced = scope ? text("%s.%d.code.%s", scope, index, symbol) : NULL;
    if (forced) { *code = atoi(forced); return 1; }
    return 0;
}

// A driver may be called by several threads: one call is made at a time, and one may be made of another.
static pthread_mutex_t calls = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int take_turn(void) { return pthread_mutex_lock(&calls); }
static void end_turn(int *turn) { (void)turn; pthread_mutex_unlock(&calls); }

#define ENTER_AT(scope, index) \
    int turn_ __attribute__((cleanup(end_turn), unused)) = take_turn(); \
    do { int code_; if (enter(__func__, scope, index, &code_)) return code_; } while (0)
#define ENTER() ENTER_AT(NULL, 0)

// A function that changes something: it exists, so that its presence is seen, and says so if it is called.
#define MUTATING(name) \
    EXPORT int name(void) { note("MUTATING " #name); return 0; }

static void put_text(char *out, unsigned length, const char *value) { snprintf(out, length, "%s", value ? value : ""); }
