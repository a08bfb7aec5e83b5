/* What a command loses before it starts: its capabilities for good, its groups, and the system calls that lead around a
   network namespace (vsock reaches the host of a virtual machine from any of them) or a key ring (shared by user id). */

#define _GNU_SOURCE
#include <errno.h>
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

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1)
#define GIVE(verdict) BPF_STMT(BPF_RET | BPF_K, verdict)
#define DENY(call) UNLESS(__NR_##call), GIVE(SECCOMP_RET_ERRNO | ENOSYS)
#define PERMIT(family) UNLESS(family), GIVE(SECCOMP_RET_ALLOW)

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
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        refuse("system call filter");
#endif
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

void drop_privileges(uid_t uid, gid_t gid) {
    unsigned keep = uid == 0 ? ROOT_KEEPS : 0;
    bound_capabilities(keep);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        refuse("no new privileges");
    if (setgroups(0, NULL) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
        refuse("user and group");
    set_capabilities(keep);
    filter_system_calls();
}
