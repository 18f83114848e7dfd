/* Policies that run beside a program under Farshore, in C (C11, Linux on x86-64). All is in this header.
 *
 *     struct farshore_policy policy;
 *     if (farshore_attach(&policy, pid)) { fprintf(stderr, "%s\n", policy.why); return 1; }
 *     farshore_want(&policy, FARSHORE_FAULT);
 *     struct farshore_event event;
 *     while (farshore_next(&policy, &event, -1)) farshore_ask(&policy, FARSHORE_PREFETCH, event.address + 4096, 8, 0);
 *     farshore_detach(&policy);
 *
 * A policy hears what happens to the program's memory, and says which pages it would like to come, to leave or to stay. It can be wrong, late or
 * killed: the program goes on, no byte is wrong, and the memory limit holds. One thread uses a `struct farshore_policy` at a time.
 *
 * The protocol is in crates/product/attach/src/lib.rs; this is version 1. Define _GNU_SOURCE before the first header of the file. */
#ifndef FARSHORE_POLICY_H
#define FARSHORE_POLICY_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* Kinds of events. What is in an event, by kind, is told in the guide. */
enum farshore_kind {
    FARSHORE_FAULT = 1, FARSHORE_FETCHED = 2, FARSHORE_EVICTED = 3, FARSHORE_RESCUED = 4, FARSHORE_LIMIT = 5,
    FARSHORE_MAPPED = 6, FARSHORE_UNMAPPED = 7, FARSHORE_PAGES = 8, FARSHORE_PARAMETER = 9,
    FARSHORE_SCANNED = 10 /* of each page a bit: `more[0]` was looked at, `more[1]` accessed, `more[2]` perhaps written; `detail` 1: refused */
};
/* Kinds of requests. */
enum farshore_wanted {
    FARSHORE_RECLAIM = 1, FARSHORE_PREFETCH = 2, FARSHORE_PIN = 3, FARSHORE_UNPIN = 4,
    FARSHORE_PROTECT = 5, /* `extra`: for how many ns */
    FARSHORE_LOOK = 6,    /* `extra`: a tag below 2^32, which comes back in `thread` of FARSHORE_PAGES */
    FARSHORE_SCAN = 7,    /* at most 512 pages; `extra`: a tag below 2^32, and above it for how many µs; answered by FARSHORE_SCANNED */
    FARSHORE_EXPECT = 8   /* `extra`: an enum farshore_reuse */
};
/* When pages are expected to be used again: late ones leave before others when memory is short; soon and next ones are passed over once and twice. */
enum farshore_reuse { FARSHORE_UNKNOWN, FARSHORE_LATE, FARSHORE_SOON, FARSHORE_NEXT };
/* States of pages: bits n of more[0], more[1], more[2] of FARSHORE_PAGES, lowest first. */
enum farshore_page { FARSHORE_FOREIGN, FARSHORE_UNTOUCHED, FARSHORE_DIRTY, FARSHORE_CLEAN, FARSHORE_LEAVING, FARSHORE_OUT, FARSHORE_BUSY };
/* Bits of `detail` of a fault. */
enum { FARSHORE_WRITE = 1, FARSHORE_PROTECTED = 2, FARSHORE_BY_CALL = 4 };

struct farshore_event {
    uint8_t kind, detail;
    uint32_t thread;
    uint64_t ns, address, pages, more[3]; /* of a fault more[0] is the instruction's address */
};

/* What the program says of itself, a few hundredths of a second old. */
struct farshore_state {
    uint64_t limit_bytes, resident_bytes, faults, events_lost, requests, requests_bad, pages_dropped;
};

struct farshore_policy {
    _Atomic uint64_t *words;
    int connection;
    uint64_t next_event, next_request;
    unsigned parameters;
    char why[256]; /* why farshore_attach has failed */
};

enum {
    FARSHORE_STATE_AT = 16, FARSHORE_FIRST_EVENT_AT = 32, FARSHORE_EVENTS_TAKEN_AT = 40, FARSHORE_WAITING_AT = 48, FARSHORE_NEWS_AT = 56,
    FARSHORE_ASKED_AT = 64, FARSHORE_TAKEN_AT = 72, FARSHORE_BELL_AT = 80, FARSHORE_WANTED_AT = 88, FARSHORE_PARAMETERS_AT = 128
};
/* Where the rings are, in words, and how many entries they have. The memory says so too, but the program can write anything there: nothing that is read there is
 * an index, or says how much there is. */
enum {
    FARSHORE_EVENTS_AT = 512, FARSHORE_EVENTS = 4096, FARSHORE_REQUESTS_AT = FARSHORE_EVENTS_AT + FARSHORE_EVENTS * 8, FARSHORE_REQUESTS = 1024,
    FARSHORE_BYTES = (FARSHORE_REQUESTS_AT + FARSHORE_REQUESTS * 4) * 8
};
/* How long one sleep is, ns: a policy that was just woken may not be woken again for the next event. */
#define FARSHORE_SLEEP_NS 10000000L
/* Most pages of one request. */
#define FARSHORE_PAGES_MAX (1u << 20)

static inline void farshore_futex(struct farshore_policy *p, int word, int operation, uint32_t value, const struct timespec *timeout)
{
    syscall(SYS_futex, (void *)&p->words[word], operation, value, timeout, NULL, 0);
}

/* Tells the program that there is something to read for it. Requests ring by themselves. */
static inline void farshore_ring(struct farshore_policy *p)
{
    atomic_fetch_add_explicit(&p->words[FARSHORE_BELL_AT], 1, memory_order_release);
    farshore_futex(p, FARSHORE_BELL_AT, FUTEX_WAKE, 1, NULL);
}

/* Leaves the program. */
static inline void farshore_detach(struct farshore_policy *p)
{
    if (p->words) munmap((void *)p->words, FARSHORE_BYTES);
    if (p->connection >= 0) close(p->connection);
    p->words = NULL;
    p->connection = -1;
}

static inline int farshore_connect(struct farshore_policy *p, int pid, unsigned user)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "farshore-%u-%d", user, pid);
    struct ucred peer;
    socklen_t size = sizeof peer;
    p->connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->connection < 0) return -1;
    /* Anybody may have taken the name. */
    if (!connect(p->connection, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) &&
        !getsockopt(p->connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid == pid)
        return 0;
    close(p->connection);
    p->connection = -1;
    return -1;
}

/* Attaches to a process. 0, or -1 with a line in `why`. (A program that is dormant still is woken by `farshore stat PID`.) */
static inline int farshore_attach(struct farshore_policy *p, int pid)
{
    static const char ask[] = "{\"op\":\"attach\",\"version\":1}\n";
    char path[64], line[256];
    unsigned users[4] = {0};
    memset(p, 0, sizeof *p);
    p->connection = -1;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "re");
    if (!status) return snprintf(p->why, sizeof p->why, "there is no process %d", pid), -1;
    int found = 0;
    while (!found && fgets(line, sizeof line, status)) found = sscanf(line, "Uid: %u %u %u %u", users, users + 1, users + 2, users + 3) == 4;
    fclose(status);
    int at = 0;
    while (at < 5 && farshore_connect(p, pid, at < 4 ? users[at] : 0)) at++;
    if (p->connection < 0)
        return snprintf(p->why, sizeof p->why, "process %d has no control socket: it was not started by 'farshore run', or sleeps ('farshore stat %d' wakes it)", pid, pid), -1;

    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr aligned; } more;
    memset(&more, 0, sizeof more);
    struct iovec into = {line, sizeof line - 1};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = more.bytes, .msg_controllen = sizeof more.bytes};
    /* A refusal may lie there already, with the connection closed behind it: an error is told by the answer that is missing. */
    ssize_t got = send(p->connection, ask, sizeof ask - 1, MSG_NOSIGNAL);
    got = recvmsg(p->connection, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *with = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!with || with->cmsg_type != SCM_RIGHTS) {
        line[got > 0 ? got : 0] = 0;
        line[strcspn(line, "\n")] = 0;
        snprintf(p->why, sizeof p->why, "process %d: %.200s", pid, got > 0 ? line : "it did not answer");
        return farshore_detach(p), -1;
    }
    int file;
    memcpy(&file, CMSG_DATA(with), sizeof file);
    /* A file that ends before, or that the program can make shorter, would be a SIGBUS. */
    struct stat size;
    int seals = fcntl(file, F_GET_SEALS);
    int fits = seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(file, &size) && size.st_size >= FARSHORE_BYTES;
    void *memory = fits ? mmap(NULL, FARSHORE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : NULL;
    if (memory == MAP_FAILED) {
        snprintf(p->why, sizeof p->why, "mapping %d bytes: %s", FARSHORE_BYTES, strerror(errno));
        return close(file), farshore_detach(p), -1;
    }
    close(file);
    p->words = memory;
    if (!fits || p->words[0] != 0x6c6f706873726166 || p->words[1] != 1) {
        snprintf(p->why, sizeof p->why, "process %d shares memory that is not version 1 of the protocol", pid);
        return farshore_detach(p), -1;
    }
    p->next_event = p->words[FARSHORE_FIRST_EVENT_AT];
    p->next_request = p->words[FARSHORE_TAKEN_AT];
    return 0;
}

/* Chooses one more kind of events that come from now on. */
static inline void farshore_want(struct farshore_policy *p, enum farshore_kind kind)
{
    atomic_fetch_or_explicit(&p->words[FARSHORE_WANTED_AT], UINT64_C(1) << kind, memory_order_relaxed);
    farshore_ring(p);
}

/* Takes the next event. 0: there is none. */
static inline int farshore_take(struct farshore_policy *p, struct farshore_event *event)
{
    _Atomic uint64_t *words = &p->words[FARSHORE_EVENTS_AT + p->next_event % FARSHORE_EVENTS * 8];
    if (atomic_load_explicit(words, memory_order_acquire) != p->next_event + 1) return 0;
    uint64_t copy[7];
    for (int n = 0; n < 7; n++) copy[n] = atomic_load_explicit(&words[n + 1], memory_order_relaxed);
    event->kind = (uint8_t)copy[0], event->detail = (uint8_t)(copy[0] >> 8), event->thread = (uint32_t)(copy[0] >> 32);
    event->ns = copy[1], event->address = copy[2], event->pages = copy[3];
    /* There are no more than that, whatever is written there: a policy may go over them one by one. */
    const int is_mapping = event->kind == FARSHORE_MAPPED || event->kind == FARSHORE_UNMAPPED;
    const uint64_t most = is_mapping ? UINT64_C(1) << 35 : 512;
    if (event->pages > most && event->kind != FARSHORE_LIMIT && event->kind != FARSHORE_PARAMETER) event->pages = most;
    memcpy(event->more, copy + 4, sizeof event->more);
    p->next_event++;
    atomic_store_explicit(&p->words[FARSHORE_EVENTS_TAKEN_AT], p->next_event, memory_order_release);
    return 1;
}

/* Waits for the next event and takes it. 0: none came within `ms` (-1: for ever), or the program is gone. */
static inline int farshore_next(struct farshore_policy *p, struct farshore_event *event, int ms)
{
    for (long slept = 0;;) {
        if (farshore_take(p, event)) return 1;
        uint32_t news = (uint32_t)atomic_load_explicit(&p->words[FARSHORE_NEWS_AT], memory_order_acquire);
        atomic_store_explicit(&p->words[FARSHORE_WAITING_AT], 1, memory_order_seq_cst);
        struct pollfd gone = {p->connection, POLLIN, 0};
        if (farshore_take(p, event)) {
            atomic_store_explicit(&p->words[FARSHORE_WAITING_AT], 0, memory_order_relaxed);
            return 1;
        }
        /* The program says nothing more on the connection: what can be read is its end. */
        if ((ms >= 0 && slept >= ms) || poll(&gone, 1, 0) != 0) return 0;
        struct timespec slice = {0, FARSHORE_SLEEP_NS};
        farshore_futex(p, FARSHORE_NEWS_AT, FUTEX_WAIT, news, &slice);
        slept += FARSHORE_SLEEP_NS / 1000000;
    }
}

/* Asks for something about pages. Whether there was room to ask: what was asked for is a wish. */
static inline int farshore_ask(struct farshore_policy *p, enum farshore_wanted what, uint64_t address, uint64_t pages, uint64_t extra)
{
    if (p->next_request - atomic_load_explicit(&p->words[FARSHORE_TAKEN_AT], memory_order_acquire) >= FARSHORE_REQUESTS) return 0;
    _Atomic uint64_t *words = &p->words[FARSHORE_REQUESTS_AT + p->next_request % FARSHORE_REQUESTS * 4];
    const uint64_t copy[4] = {what, address, pages < FARSHORE_PAGES_MAX ? pages : FARSHORE_PAGES_MAX, extra};
    for (int n = 0; n < 4; n++) atomic_store_explicit(&words[n], copy[n], memory_order_relaxed);
    p->next_request++;
    atomic_store_explicit(&p->words[FARSHORE_ASKED_AT], p->next_request, memory_order_release);
    farshore_ring(p);
    return 1;
}

/* Registers a parameter, which `farshore stat` shows and `farshore set` changes. Its index, or -1: there is no room, or the name is too long. */
static inline int farshore_register(struct farshore_policy *p, const char *name, int64_t value)
{
    char bytes[33] = {0};
    if (p->parameters == 16 || !*name || strlen(name) > 32) return -1;
    memcpy(bytes, name, strlen(name));
    _Atomic uint64_t *words = &p->words[FARSHORE_PARAMETERS_AT + 8 * p->parameters];
    atomic_store_explicit(&words[4], (uint64_t)value, memory_order_relaxed);
    for (int n = 0; n < 4; n++) {
        uint64_t part;
        memcpy(&part, bytes + 8 * n, 8);
        atomic_store_explicit(&words[n], part, memory_order_release);
    }
    return (int)p->parameters++;
}

/* The value of a parameter now. */
static inline int64_t farshore_parameter(struct farshore_policy *p, int index)
{
    return (int64_t)atomic_load_explicit(&p->words[FARSHORE_PARAMETERS_AT + 8 * index + 4], memory_order_acquire);
}

static inline struct farshore_state farshore_read_state(struct farshore_policy *p)
{
    uint64_t copy[7];
    for (int n = 0; n < 7; n++) copy[n] = atomic_load_explicit(&p->words[FARSHORE_STATE_AT + n], memory_order_relaxed);
    return (struct farshore_state){copy[0], copy[1], copy[2], copy[3], copy[4], copy[5], copy[6]};
}

#endif
