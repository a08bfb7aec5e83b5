/* Reads a command from its channel. The node wrote it, but a length is checked before it is believed. */

#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent.h"

enum { MOST = 64 << 20 };

static int receive(int channel, char *into, size_t size) {
    while (size > 0) {
        ssize_t got = recv(channel, into, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        into += got;
        size -= got;
    }
    return 0;
}

static char *string(char **at, const char *end) {
    uint32_t length;
    if (end - *at < (ptrdiff_t)sizeof length)
        return NULL;
    memcpy(&length, *at, sizeof length);
    *at += sizeof length;
    if (length == 0 || end - *at < (ptrdiff_t)length || (*at)[length - 1] != 0)
        return NULL;
    char *found = *at;
    *at += length;
    return found;
}

static char **strings(char **at, const char *end, uint32_t count) {
    if (count > MOST / sizeof(char *))
        return NULL;
    char **list = calloc(count + 1, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++)
        if (!(list[i] = string(at, end)))
            return NULL;
    return list;
}

/* 0, or -1 when the node gave up or wrote nonsense. What is allocated lives as long as the supervisor. */
int receive_order(int channel, struct order *order) {
    if (receive(channel, (char *)&order->head, sizeof order->head) || order->head.size > MOST)
        return -1;
    char *at = malloc(order->head.size + 1);
    if (!at || receive(channel, at, order->head.size))
        return -1;
    const char *end = at + order->head.size;
    order->cwd = string(&at, end);
    if (!order->cwd)
        return -1;
    order->candidates = strings(&at, end, order->head.candidates);
    order->arguments = order->candidates ? strings(&at, end, order->head.arguments) : NULL;
    order->variables = order->arguments ? strings(&at, end, order->head.variables) : NULL;
    return order->variables && order->head.candidates && order->head.arguments && at == end ? 0 : -1;
}
