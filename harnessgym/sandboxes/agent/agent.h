/* What the parts of the in-sandbox agent share. `wire.py` is the node's half of every struct here. */

#ifndef HARNESSGYM_AGENT_H
#define HARNESSGYM_AGENT_H

#include <stdint.h>
#include <sys/types.h>

#define VERSION 2

/* Control packets: one request a packet, its descriptors beside it. All numbers are little-endian as the machine has them. */
enum { OP_HELLO = 'H', OP_EXEC = 'X', OP_ROOT = 'R', OP_LISTEN = 'L', OP_KILL = 'K', OP_END = 'E' };

struct request {
    uint32_t op, id, value; /* value: the port of OP_LISTEN, the folder's number of OP_ROOT */
};

struct reply {
    uint32_t op, id;
    int32_t error; /* errno, or the agent's version in OP_HELLO */
};

/* How a command ended, as it is written to its channel. */
enum { EXITED = 1, KILLED = 2, LOST = 3, CANCELLED = 4 };

struct report {
    uint32_t kind;      /* 0 while the supervisor has not said anything */
    int32_t status;     /* wait status, with EXITED */
    uint32_t timed_out;
    uint32_t survivors; /* the supervisor could not end them all: PID 1 must */
    int64_t cpu_us;     /* -1: unknown */
};

/* One command, as it comes over its channel: this head, then cwd, candidates, argv, environment as strings. */
struct head {
    uint32_t size; /* of what follows the head */
    uint32_t uid, gid;
    uint32_t candidates, arguments, variables; /* numbers of strings; a string is its length with its final NUL, then itself */
    uint64_t timeout_ms, file_bytes;           /* 0: unlimited */
    uint64_t judges;                           /* 1: the command runs code that it must be safe from */
};

struct order {
    struct head head;
    char *cwd;
    char **candidates, **arguments, **variables;
};

/* order.c */
int receive_order(int channel, struct order *order);

/* command.c */
_Noreturn void run_command(const struct order *order, const int streams[3]);
void close_range_of(int first, int last);

/* walls.c */
void drop_privileges(uid_t uid, gid_t gid, int judges);

/* tree.c */
int end_descendants(int signals, int (*reap)(void));
long long now_ms(void);

/* supervise.c */
_Noreturn void supervise(int channel, const int streams[3], struct report *report);

#endif
