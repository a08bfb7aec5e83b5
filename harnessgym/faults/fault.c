/* Preloaded into one command: a wall clock that is off (HARNESSGYM_FAULT_CLOCK, seconds) and a disk that is full
 * (HARNESSGYM_FAULT_DISK). It needs no C library of its own, so that it loads beside glibc and musl alike. Not reached are
 * programs that are linked statically, system calls made without the C library, and what C programs write through FILE. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long long jump_ns(void) {
    const char *text = getenv("HARNESSGYM_FAULT_CLOCK");
    return text ? (long long)(strtod(text, NULL) * 1e9) : 0;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    long long sum;
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (!is_wall(clock)) return 0;
    sum = (long long)now->tv_sec * 1000000000LL + now->tv_nsec + jump_ns();
    now->tv_sec = sum / 1000000000LL;
    now->tv_nsec = sum % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

static int is_full(void) { return getenv("HARNESSGYM_FAULT_DISK") != NULL; }

static int is_file(int descriptor) {
    struct stat about;
    return fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
}

static int refuse(int descriptor) {
    if (!is_full() || !is_file(descriptor)) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *data, size_t size) { return refuse(fd) ? -1 : syscall(SYS_write, fd, data, size); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return refuse(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return refuse(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return refuse(fd) ? -1 : syscall(SYS_writev, fd, parts, count);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    return refuse(out) ? -1 : syscall(SYS_copy_file_range, in, from, out, to, size, flags);
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    if (is_full() && (flags & O_CREAT) && syscall(SYS_faccessat, folder, path, F_OK) != 0) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_openat, folder, path, flags, mode);
}

#define OPEN(name, arguments, folder)                     \
    int name arguments {                                  \
        mode_t mode = 0;                                  \
        if (flags & (O_CREAT | O_TMPFILE)) {              \
            va_list rest;                                 \
            va_start(rest, flags);                        \
            mode = va_arg(rest, mode_t);                  \
            va_end(rest);                                 \
        }                                                 \
        return open_at(folder, path, flags, mode);        \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN(openat, (int folder, const char *path, int flags, ...), folder)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder)

int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int mkdirat(int folder, const char *path, mode_t mode) {
    if (is_full()) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_mkdirat, folder, path, mode);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
