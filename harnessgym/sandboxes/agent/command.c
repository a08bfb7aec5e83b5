/* The last steps of a command's process before it becomes the command. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

#define FALLBACK_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void close_range_of(int first, int last) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    for (int each = first; each <= last; each++)
        close(each);
}

static void limit(int kind, rlim_t value) {
    struct rlimit current;
    getrlimit(kind, &current);
    if (current.rlim_max != RLIM_INFINITY && current.rlim_max < value)
        value = current.rlim_max;
    setrlimit(kind, &(struct rlimit){value, value});
}

/* When memory runs out, the kernel takes a command before it takes its supervisor or PID 1. */
static void volunteer(void) {
    int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0) {
        if (write(file, "500", 3) != 3)
            dprintf(2, "The sandbox could not set the command's out-of-memory score.\n");
        close(file);
    }
}

static const char *search_path(char **variables) {
    for (; *variables; variables++)
        if (strncmp(*variables, "PATH=", 5) == 0)
            return *variables + 5;
    return FALLBACK_PATH;
}

/* Returns only when there is no such program, or it cannot be executed: errno says which. */
static void execute(char *name, char **arguments, char **variables) {
    arguments[0] = name;
    if (strchr(name, '/')) {
        execve(name, arguments, variables);
        return;
    }
    int error = ENOENT;
    char file[4096];
    for (const char *at = search_path(variables); *at;) {
        size_t length = strcspn(at, ":");
        if (length + strlen(name) + 3 <= sizeof file) {
            snprintf(file, sizeof file, "%.*s%s%s", (int)length, at, length ? "/" : "./", name);
            execve(file, arguments, variables);
            if (errno != ENOENT && errno != ENOTDIR)
                error = errno;
        }
        at += length + (at[length] == ':');
    }
    errno = error;
}

_Noreturn void run_command(const struct order *order, const int streams[3]) {
    setsid();
    for (int each = 0; each < 3; each++)
        dup2(streams[each], each);
    close_range_of(3, 65535);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 65536); /* some engines give a billion, and some programs close each */
    if (order->head.file_bytes)
        limit(RLIMIT_FSIZE, order->head.file_bytes);
    volunteer();
    drop_privileges(order->head.uid, order->head.gid, order->head.judges != 0);
    if (chdir(order->cwd) != 0) {
        dprintf(2, "The sandbox could not start the command in %s: %s\n", order->cwd, strerror(errno));
        _exit(125);
    }
    int error = ENOENT;
    for (char **candidate = order->candidates; *candidate && error == ENOENT; candidate++) {
        execute(*candidate, order->arguments, order->variables);
        error = errno;
    }
    dprintf(2, "%s: %s\n", order->candidates[0], strerror(error));
    _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}
