/* Ends every descendant of this process, however it forked, whatever session it is in.

   We are its subreaper, so whoever is orphaned becomes our child, and nobody can leave the tree. First everyone is killed.
   Whoever forks faster than that is stopped first: a stopped process makes no children and keeps its place in the limit of
   processes, so passes of stopping come to an end; then all of them are killed while none can act. */

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

enum { MOST = 1 << 15, PATIENCE_MS = 3000 };
#define FIFTEEN " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s" /* what stands between parent and threads */

static struct process {
    pid_t pid, parent;
    char state, ours;
} table[MOST];
static int known;

long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int look(const char *name, struct process *process) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return -1;
    text[size] = 0;
    char *at = strrchr(text, ')'); /* a process may be named ")" */
    process->pid = atoi(name);
    process->ours = 0;
    int threads;
    if (!at || sscanf(at + 1, " %c %d" FIFTEEN " %d", &process->state, &process->parent, &threads) != 3)
        return -1;
    if (process->state == 'Z' && threads > 1)
        process->state = 'R'; /* only its first thread has ended */
    return 0;
}

static void mark(void) {
    pid_t self = getpid();
    for (int changed = 1; changed;) {
        changed = 0;
        for (int i = 0; i < known; i++) {
            int ours = table[i].parent == self;
            for (int j = 0; !ours && !table[i].ours && j < known; j++)
                ours = table[j].ours && table[j].pid == table[i].parent;
            if (ours && !table[i].ours)
                table[i].ours = changed = 1;
        }
    }
}

/* Fills the table with all that runs in this sandbox, our descendants marked. */
static void scan(void) {
    known = 0;
    DIR *folder = opendir("/proc");
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) && known < MOST;)
        if (isdigit((unsigned char)*entry->d_name) && look(entry->d_name, &table[known]) == 0)
            known++;
    closedir(folder);
    mark();
}

/* Signals our descendants, except those in one of `states`. Returns how many. */
static int signal_all(int number, const char *states) {
    int count = 0;
    scan();
    for (int i = 0; i < known; i++)
        if (table[i].ours && !strchr(states, table[i].state) && kill(table[i].pid, number) == 0)
            count++;
    return count;
}

static void stop_all(long long until) {
    for (int pass = 0; now_ms() < until && signal_all(SIGSTOP, "TtZXx") > 0; pass++)
        if (pass < 4)
            sched_yield();
        else
            usleep(200);
}

/* Waits a moment for children to end. Returns 0 when there are none left. */
static int settle(int signals, int (*reap)(void), int ms) {
    long long until = now_ms() + ms;
    do {
        if (reap() == 0)
            return 0;
        struct pollfd ended = {.fd = signals, .events = POLLIN};
        struct signalfd_siginfo ignored;
        if (poll(&ended, 1, 1) > 0 && read(signals, &ignored, sizeof ignored) < 0)
            break;
    } while (now_ms() < until);
    return reap();
}

/* 0 when all are dead and collected, -1 when some outlasted us. `reap` collects, and returns 0 when no child is left. */
int end_descendants(int signals, int (*reap)(void)) {
    if (reap() == 0)
        return 0;
    signal_all(SIGKILL, "ZXx");
    if (settle(signals, reap, 5) == 0)
        return 0;
    long long until = now_ms() + PATIENCE_MS;
    while (now_ms() < until) {
        stop_all(now_ms() + PATIENCE_MS / 3);
        signal_all(SIGKILL, "ZXx");
        if (settle(signals, reap, 50) == 0)
            return 0;
    }
    return -1;
}
