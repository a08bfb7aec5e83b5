/* One command's supervisor: starts it, ends it at its timeout or when the node says so, and with it all that it started. */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

enum { SLICE_MS = 1000, LATE_MS = 500 };

static pid_t command;
static int status, over;

/* Collects who has ended; returns 0 when no child is left. */
static int reap(void) {
    for (;;) {
        int each;
        pid_t pid = waitpid(-1, &each, WNOHANG);
        if (pid == 0)
            return 1;
        if (pid < 0)
            return errno == ECHILD ? 0 : 1;
        if (pid == command) {
            status = each;
            over = 1;
        }
    }
}

/* Until the command ends, its time is over (1), or the node gives up (2). Time in which the sandbox was frozen is not counted:
   of a slice that took much longer than it should have, only its own length is. */
static int wait_for_command(int channel, int signals, uint64_t timeout_ms) {
    uint64_t used = 0;
    struct pollfd events[] = {{.fd = channel, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    while (reap(), !over) {
        if (timeout_ms && used >= timeout_ms)
            return 1;
        int slice = timeout_ms && timeout_ms - used < SLICE_MS ? (int)(timeout_ms - used) : SLICE_MS;
        long long before = now_ms();
        poll(events, 2, slice);
        long long took = now_ms() - before;
        used += took > slice + LATE_MS ? slice : took;
        struct signalfd_siginfo ignored;
        if (events[1].revents && read(signals, &ignored, sizeof ignored) < 0)
            return 2;
        if (events[0].revents)
            return 2;
    }
    return 0;
}

static int64_t used_cpu_us(void) {
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000LL + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

_Noreturn static void leave(struct report *report, uint32_t kind) {
    report->status = over ? status : SIGKILL;
    report->cpu_us = used_cpu_us();
    report->kind = kind;
    _exit(0);
}

_Noreturn void supervise(int channel, const int streams[3], struct report *report) {
    struct order order;
    prctl(PR_SET_NAME, "supervisor");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0 || receive_order(channel, &order) != 0)
        leave(report, CANCELLED);
    command = fork();
    if (command == 0)
        run_command(&order, streams);
    if (command < 0) {
        dprintf(streams[2], "The sandbox could not start the command: %s\n", strerror(errno));
        status = 126 << 8;
        over = 1;
        leave(report, EXITED);
    }
    for (int each = 0; each < 3; each++) /* only the command may hold its own pipes */
        close(streams[each]);
    report->timed_out = wait_for_command(channel, signals, order.head.timeout_ms) == 1;
    report->survivors = end_descendants(signals, reap) != 0;
    leave(report, EXITED);
}
