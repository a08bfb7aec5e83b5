/* What a command loses before it starts: its capabilities for good, its groups, and the system calls that lead around a
   network namespace (vsock reaches the host of a virtual machine from any of them) or a key ring (shared by user id).

   A command that judges others' code also loses, with all that it starts, the system calls that look into another process,
   and writing below /proc, where `/proc/PID/mem` is another way to the same. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"

/* What root keeps: rights over files, and becoming somebody else. */
static const unsigned ROOT_KEEPS = 1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_KILL |
                                   1u << CAP_SETUID | 1u << CAP_SETGID;

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

_Noreturn static void refuse(const char *what) {
    dprintf(2, "The sandbox could not confine the command: %s: %s\n", what, strerror(errno));
    _exit(125);
}

enum { PIDFD_GETFD = 438 }; /* in every architecture; the headers of an old C library lack it */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1)
#define GIVE(verdict) BPF_STMT(BPF_RET | BPF_K, verdict)
#define DENY(call) UNLESS(__NR_##call), GIVE(SECCOMP_RET_ERRNO | ENOSYS)
#define FORBID(call) UNLESS(__NR_##call), GIVE(SECCOMP_RET_ERRNO | EPERM)
#define PERMIT(family) UNLESS(family), GIVE(SECCOMP_RET_ALLOW)

static void install(struct sock_filter *rules, size_t count) {
    struct sock_fprog program = {.len = count, .filter = rules};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        refuse("system call filter");
}

static void filter_system_calls(void) {
#ifdef ARCHITECTURE
    struct sock_filter rules[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        GIVE(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* the x32 numbers */
        GIVE(SECCOMP_RET_ERRNO | ENOSYS),
        DENY(add_key), DENY(request_key), DENY(keyctl), DENY(bpf), DENY(userfaultfd), DENY(perf_event_open),
        DENY(io_uring_setup), DENY(io_uring_enter), DENY(io_uring_register),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 1, 0),
        GIVE(SECCOMP_RET_ALLOW),
        LOAD(args[0]),
        PERMIT(AF_UNIX), PERMIT(AF_INET), PERMIT(AF_INET6), PERMIT(AF_NETLINK),
        GIVE(SECCOMP_RET_ERRNO | EAFNOSUPPORT),
    };
    install(rules, sizeof rules / sizeof *rules);
#endif
}

/* A filter of its own: the kernel asks each, and the stricter answer counts. */
static void forbid_tracing(void) {
#ifdef ARCHITECTURE
    struct sock_filter rules[] = {
        LOAD(nr),
        FORBID(ptrace), FORBID(process_vm_readv), FORBID(process_vm_writev), FORBID(kcmp), FORBID(perf_event_open),
        FORBID(userfaultfd),
        UNLESS(PIDFD_GETFD), GIVE(SECCOMP_RET_ERRNO | EPERM),
        GIVE(SECCOMP_RET_ALLOW),
    };
    install(rules, sizeof rules / sizeof *rules);
#endif
}

/* Landlock's first calls and rights; the headers of an old C library lack them. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, ASK_VERSION = 1, BENEATH = 1 };
static const uint64_t WRITE_FILE = 1 << 1, REFER = 1 << 13;
struct beneath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

static void allow_beneath(int ruleset, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/%s", name);
    struct beneath rule = {WRITE_FILE | REFER, open(path, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC)};
    if (rule.parent < 0) /* a file or a link in the root, which nobody can write to */
        return;
    if (syscall(ADD_RULE, ruleset, BENEATH, &rule, 0) != 0)
        refuse("Landlock rule");
    close(rule.parent);
}

/* Everywhere but below /proc files may be written to as their modes say. Does nothing on a kernel without Landlock, or with
   its first version, which cannot leave renames alone. */
static void forbid_writing_to_proc(void) {
    if (syscall(CREATE_RULESET, NULL, 0, ASK_VERSION) < 2)
        return;
    uint64_t handled = WRITE_FILE | REFER;
    int ruleset = syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    DIR *root = ruleset < 0 ? NULL : opendir("/");
    if (!root)
        refuse("Landlock");
    for (struct dirent *entry; (entry = readdir(root));)
        if (*entry->d_name && strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "proc"))
            allow_beneath(ruleset, entry->d_name);
    closedir(root);
    if (syscall(RESTRICT_SELF, ruleset, 0) != 0)
        refuse("Landlock");
    close(ruleset);
}

static void bound_capabilities(unsigned keep) {
    for (unsigned long capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (capability >= 32 || !(keep & 1u << capability))
            if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
                refuse("bounding set");
}

static void set_capabilities(unsigned keep) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = keep, .permitted = keep}};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, data) != 0)
        refuse("capabilities");
}

void drop_privileges(uid_t uid, gid_t gid, int judges) {
    unsigned keep = uid == 0 ? ROOT_KEEPS : 0;
    bound_capabilities(keep);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        refuse("no new privileges");
    if (setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        refuse("user and group");
    set_capabilities(keep);
    if (judges) {
        forbid_writing_to_proc();
        forbid_tracing();
    }
    filter_system_calls();
}
