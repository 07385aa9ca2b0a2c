// A control daemon of MPS in the foreground, as a program started with -f is. Started as: mpsd FOLDER VERSION SMS ALIVE [options].
// What it answers is, where known, what control binary 13000 said on an H200 and what NVIDIA's documentation shows for 13010.
// Inputs come as files .in.N, answers go to .out.N; its state, for the fake libcuda of its clients, is in .state.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir, *alive;
static int version, sms, is_static;
static double percentage = 100, server_percentage = -1;
static int priority;
static pid_t server;
static struct { char id[64], uuid[64]; int chunks, first; } part[16];
static int parts;

static void path_of(char *out, const char *name) { snprintf(out, 4096, "%s/%s", dir, name); }

static void write_file(const char *name, const char *text) {
    char path[4096], temp[4200];
    path_of(path, name);
    snprintf(temp, sizeof temp, "%s.new", path);
    FILE *f = fopen(temp, "w");
    if (!f) return;
    fputs(text, f);
    fclose(f);
    rename(temp, path);
}

static void tell_state(void) {
    char text[4096];
    int n = snprintf(text, sizeof text, "percentage=%g\nstatic=%d\n", server_percentage >= 0 ? server_percentage : percentage, is_static);
    for (int i = 0; i < parts; i++) n += snprintf(text + n, sizeof text - n, "part=%s %d %d\n", part[i].id, part[i].first, part[i].chunks * 8);
    write_file(".state", text);
}

static void start_server(void) {
    if (server) return;
    server = fork();
    if (!server) {
        char *argv[] = {"nvidia-cuda-mps-server", (char *)alive, NULL};
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    server_percentage = percentage;
    char text[32];
    snprintf(text, sizeof text, "%d\n", (int)server);
    tell_state();
    write_file(".server", text);
}

static void stop_server(void) {
    if (!server) return;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
}

static void list(FILE *out) {
    int used = 0;
    for (int i = 0; i < parts; i++) used += part[i].chunks;
    fprintf(out, "GPU           Partition                             free  used  free  used  clients\n"
                 "                                                    chunk chunk SM    SM\n"
                 "GPU-11111111  -                                     %-5d %-5d %-5d %-5d -\n", sms * 15 / 132 - used, used, sms - 8 * used, 8 * used);
    for (int i = 0; i < parts; i++)
        fprintf(out, "GPU-11111111  %-37s -     %-5d -     %-5d -\n", part[i].id, part[i].chunks, part[i].chunks * 8);
}

static void partition(const char *line, FILE *out) {
    char verb[16], uuid[128], rest[64];
    if (sscanf(line, "sm_partition %15s %127s %63s", verb, uuid, rest) != 3) { fprintf(out, "Invalid command\n"); return; }
    int used = 0;
    for (int i = 0; i < parts; i++) used += part[i].chunks;
    if (!strcmp(verb, "add")) {
        int chunks = atoi(rest);
        if (chunks < 1 || used + chunks > sms * 15 / 132 || parts == 16) {
            fprintf(out, "Failed to fulfill the requested SM partition of %d chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n", chunks);
            return;
        }
        static int made;
        snprintf(part[parts].id, 64, "D/79e/DgwYMDAA+%d=", ++made); // the id itself may hold slashes
        snprintf(part[parts].uuid, 64, "%.63s", uuid);
        part[parts].chunks = chunks;
        part[parts].first = 8 * used;
        fprintf(out, "%s/%s\n", uuid, part[parts].id);
        parts++;
    } else {
        for (int i = 0; i < parts; i++)
            if (!strcmp(part[i].id, rest)) {
                memmove(&part[i], &part[i + 1], sizeof part[0] * (size_t)(parts - i - 1));
                parts--;
                tell_state();
                return;
            }
        fprintf(out, "Failed to find the partition\n");
    }
    tell_state();
}

// answer returns 1 where the daemon must end.
static int answer(char *line, FILE *out) {
    double x;
    int pid;
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "quit")) return 1;
    if (!strcmp(line, "get_server_list")) { if (server) fprintf(out, "%d\n", (int)server); }
    else if (sscanf(line, "get_server_status %d", &pid) == 1) fprintf(out, "ACTIVE\n");
    else if (!strcmp(line, "get_default_active_thread_percentage")) fprintf(out, "%.1f\n", percentage);
    else if (sscanf(line, "set_default_active_thread_percentage %lf", &x) == 1) { percentage = x; fprintf(out, "%.1f\n", x); tell_state(); }
    else if (sscanf(line, "get_active_thread_percentage %d", &pid) == 1) fprintf(out, "%.1f\n", server_percentage);
    else if (sscanf(line, "set_active_thread_percentage %d %lf", &pid, &x) == 2) { server_percentage = x; fprintf(out, "%.1f\n", x); tell_state(); }
    else if (sscanf(line, "set_default_client_priority %d", &pid) == 1) priority = pid;
    else if (!strcmp(line, "get_default_client_priority")) fprintf(out, "%d\n", priority);
    else if (!strcmp(line, "ps")) fprintf(out, server ? "PID       ID    SERVER    DEVICE             NAMESPACE      COMMAND\n" : "Server not found\n");
    else if (version >= 13010 && !strcmp(line, "lspart")) { if (is_static) list(out); else fprintf(out, "Failed to list partitions, static partitioning is not enabled\n"); }
    else if (version >= 13010 && is_static && !strncmp(line, "sm_partition ", 13)) partition(line, out);
    else fprintf(out, "Unknown command \"%.*s\"\n", (int)strcspn(line, " "), line);
    return 0;
}

static int serve(const char *name) {
    char in[4096], out[4200], line[512];
    path_of(in, name);
    snprintf(out, sizeof out, "%s/.out%s", dir, name + 3);
    FILE *f = fopen(in, "r");
    if (!f) return 0;
    char temp[4300];
    snprintf(temp, sizeof temp, "%s.new", out);
    FILE *g = fopen(temp, "w");
    int end = 0;
    while (g && fgets(line, sizeof line, f)) end |= answer(line, g);
    fclose(f);
    if (g) fclose(g);
    unlink(in);
    rename(temp, out);
    return end;
}

static void loop(void) {
    for (;;) {
        DIR *d = opendir(dir);
        if (!d || access(alive, F_OK)) _exit(1);
        int end = 0;
        for (struct dirent *e; (e = readdir(d));) {
            if (!strcmp(e->d_name, ".want")) { start_server(); }
            size_t n = strlen(e->d_name);
            if (!strncmp(e->d_name, ".in.", 4) && strcmp(e->d_name + n - 4, ".new")) end |= serve(e->d_name);
        }
        closedir(d);
        if (end) return;
        usleep(5000);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[0], "nvidia-cuda-mps-server")) {
        alive = argv[1];
        while (!access(alive, F_OK)) usleep(50000);
        return 1;
    }
    if (argc < 5) return 2;
    dir = argv[1]; version = atoi(argv[2]); sms = atoi(argv[3]); alive = argv[4];
    for (int i = 5; i < argc; i++) {
        if (!strcmp(argv[i], "-f")) continue;
        if (!strcmp(argv[i], "-S") && version >= 13010) { is_static = 1; continue; }
        printf("Unrecognized option '%s'\nUsage: nvidia-cuda-mps-control [-d|-f|-v]\n", argv[i]);
        return 0; // as measured: usage, and success
    }
    if (!getenv("MPSD_NAMED")) { // so that its command line is a daemon's
        setenv("MPSD_NAMED", "1", 1);
        argv[0] = "nvidia-cuda-mps-control";
        execv("/proc/self/exe", argv);
    }
    char text[32];
    snprintf(text, sizeof text, "%d\n", (int)getpid());
    write_file("nvidia-cuda-mps-control.pid", text);
    tell_state();
    write_file("control", "");
    loop();
    stop_server();
    const char *files[] = {"control", "nvidia-cuda-mps-control.pid", ".state", ".server", ".want"};
    for (int i = 0; i < 5; i++) { char path[4096]; path_of(path, files[i]); unlink(path); }
    return 0;
}
