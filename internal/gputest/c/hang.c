// A program that doesn't answer. "vfork FILE": stays in uninterruptible sleep, as the parent of vfork(2), until FILE goes.
// "grandchild FILE": ignores SIGTERM, while a descendant in a session of its own keeps stdout and stderr open.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void wait_for(const char *file) {
    while (!access(file, F_OK)) usleep(50000);
    _exit(1);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    signal(SIGTERM, SIG_IGN);
    if (!strcmp(argv[1], "vfork")) {
        if (!vfork()) { setsid(); wait_for(argv[2]); }
        return 1;
    }
    if (!fork()) { setsid(); wait_for(argv[2]); }
    wait_for(argv[2]);
}
