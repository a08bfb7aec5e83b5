/* PID 1 of a sandbox: one static program that needs nothing of the image.

   It connects to the node's socket at its start, and the node removes that socket then: nothing inside can be connected to.
   Over this one connection the node hands it commands with their streams, and asks for its folders and for listeners. Its
   end is the end of the node or of the sandbox: PID 1 exits, and the kernel kills whatever still runs. Each command has a
   supervisor (supervise.c), started here; how it ended is told from here, so that also the end of a killed one is told.

       agent SOCKET WORKSPACE [FOLDER...] */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

enum { COMMANDS = 256, ABOVE = 1000, FOLDERS = 64 };

static struct command {
    pid_t supervisor; /* 0: free */
    int channel;
} commands[COMMANDS];
static struct report *reports; /* one a command, shared with the supervisors */
static int control;
static int folders[FOLDERS]; /* the workspace, then those beside it: opened before anybody could have moved them */
static uint32_t folder_count;

static void answer(uint32_t op, uint32_t id, int32_t error, int descriptor) {
    struct reply reply = {op, id, error};
    struct iovec part = {&reply, sizeof reply};
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
        beside->cmsg_level = SOL_SOCKET;
        beside->cmsg_type = SCM_RIGHTS;
        beside->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(beside), &descriptor, sizeof descriptor);
    }
    if (sendmsg(control, &message, MSG_NOSIGNAL) < 0)
        _exit(1); /* the node is gone */
    if (descriptor >= 0)
        close(descriptor);
}

static void report_end(int slot, uint32_t otherwise) {
    struct report *report = &reports[slot];
    if (!report->kind) {
        report->kind = otherwise;
        report->cpu_us = -1;
    }
    send(commands[slot].channel, report, sizeof *report, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(commands[slot].channel);
    commands[slot].supervisor = 0;
}

static int slot_of(pid_t pid) {
    for (int slot = 0; slot < COMMANDS; slot++)
        if (commands[slot].supervisor == pid)
            return slot;
    return -1;
}

/* Kills everyone but PID 1 in one system call that no fork can slip through, and collects them. */
static void kill_everyone(uint32_t otherwise) {
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    for (int slot = 0; slot < COMMANDS; slot++)
        if (commands[slot].supervisor)
            report_end(slot, otherwise);
}

static void reap(void) {
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;) {
        int slot = slot_of(pid);
        if (slot < 0)
            continue;
        if (!reports[slot].kind || reports[slot].survivors)
            kill_everyone(LOST); /* its tree is without a supervisor, and may be a bomb */
        else
            report_end(slot, LOST);
    }
}

/* Everything PID 1 has open stays behind; the supervisor keeps its channel and the command's streams. */
_Noreturn static void become_supervisor(const int given[4], struct report *report) {
    int kept[4];
    for (int each = 0; each < 4; each++)
        kept[each] = fcntl(given[each], F_DUPFD_CLOEXEC, ABOVE);
    close_range_of(3, ABOVE - 1);
    supervise(kept[0], kept + 1, report);
}

static void start_command(const int given[4]) {
    int slot = slot_of(0);
    struct report *report = slot < 0 ? &(struct report){0} : &reports[slot];
    memset(report, 0, sizeof *report);
    pid_t pid = slot < 0 ? -1 : fork();
    if (pid == 0)
        become_supervisor(given, report);
    if (pid < 0) {
        *report = (struct report){.kind = EXITED, .status = 126 << 8, .cpu_us = 0};
        dprintf(given[3], "The sandbox could not start the command: it has too many processes.\n");
        send(given[0], report, sizeof *report, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
        commands[slot].supervisor = pid;
        commands[slot].channel = fcntl(given[0], F_DUPFD_CLOEXEC, 3);
    }
    for (int each = 0; each < 4; each++)
        close(given[each]);
}

static int raise_loopback(int any) {
    struct ifreq lo = {.ifr_name = "lo"};
    if (ioctl(any, SIOCGIFFLAGS, &lo) != 0)
        return -1;
    if (lo.ifr_flags & IFF_UP)
        return 0;
    lo.ifr_flags |= IFF_UP;
    return ioctl(any, SIOCSIFFLAGS, &lo);
}

/* A listener on the sandbox's own loopback, or -1. */
static int open_listener(uint16_t port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1;
    if (listener >= 0 && raise_loopback(listener) == 0 &&
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 128) == 0)
        return listener;
    int error = errno;
    if (listener >= 0)
        close(listener);
    errno = error;
    return -1;
}

static void serve(const struct request *request, const int *given, int count) {
    int descriptor = -1;
    switch (request->op) {
    case OP_EXEC:
        if (count == 4)
            start_command(given);
        return;
    case OP_ROOT:
        errno = EINVAL;
        if (request->value < folder_count)
            descriptor = fcntl(folders[request->value], F_DUPFD_CLOEXEC, 3);
        answer(request->op, request->id, descriptor < 0 ? errno : 0, descriptor);
        return;
    case OP_LISTEN:
        descriptor = open_listener((uint16_t)request->value);
        answer(request->op, request->id, descriptor < 0 ? errno : 0, descriptor);
        return;
    case OP_KILL:
    case OP_END:
        kill_everyone(KILLED);
        answer(request->op, request->id, 0, -1);
        if (request->op == OP_END)
            _exit(0);
        return;
    default:
        answer(request->op, request->id, ENOSYS, -1);
    }
}

static void take_request(void) {
    struct request request;
    struct iovec part = {&request, sizeof request};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } beside;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
    ssize_t size = recvmsg(control, &message, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR)
        return;
    if (size != sizeof request)
        _exit(0); /* the node is gone: so are we, and all that runs here */
    int given[4], count = 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first && first->cmsg_type == SCM_RIGHTS) {
        count = (int)((first->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(given, CMSG_DATA(first), count * sizeof(int));
    }
    serve(&request, given, count);
}

static int connect_to_node(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
        return -1;
    return connection;
}

static int take_signals(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigset_t wanted;
    sigemptyset(&wanted);
    int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGQUIT, SIGHUP};
    for (size_t each = 0; each < sizeof numbers / sizeof *numbers; each++)
        sigaddset(&wanted, numbers[each]);
    return signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int open_folders(char **paths, int count) {
    for (int each = 0; each < count; each++) {
        folders[each] = open(paths[each], O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (folders[each] < 0) {
            fprintf(stderr, "The agent cannot open %s: %s\n", paths[each], strerror(errno));
            return -1;
        }
    }
    folder_count = (uint32_t)count;
    return 0;
}

/* Not dumpable: no other process may trace us or look at our memory and descriptors, whatever its user. */
static int prepare(const char *socket_path) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 2 * ABOVE) {
        files.rlim_cur = files.rlim_max < 2 * ABOVE ? files.rlim_max : 2 * ABOVE;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    reports = mmap(NULL, COMMANDS * sizeof *reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    control = connect_to_node(socket_path);
    if (reports == MAP_FAILED || control < 0) {
        fprintf(stderr, "The agent cannot reach the node at %s: %s\n", socket_path, strerror(errno));
        return -1;
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3 || count > 2 + FOLDERS || getpid() != 1) { /* anywhere else, killing everyone would mean just that */
        fprintf(stderr, "usage: agent SOCKET WORKSPACE [FOLDER...], as process 1 of a container\n");
        return 2;
    }
    int signals = take_signals();
    if (signals < 0 || open_folders(arguments + 2, count - 2) != 0 || prepare(arguments[1]) != 0)
        return 1;
    answer(OP_HELLO, 0, VERSION, -1);
    for (;;) {
        struct pollfd events[] = {{.fd = control, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        if (poll(events, 2, -1) < 0)
            continue;
        struct signalfd_siginfo one;
        while (events[1].revents && read(signals, &one, sizeof one) == sizeof one)
            if (one.ssi_signo != SIGCHLD && one.ssi_pid == 0) /* from outside: who sends it has no number in here */
                return 0;
        reap();
        if (events[0].revents)
            take_request();
    }
}
