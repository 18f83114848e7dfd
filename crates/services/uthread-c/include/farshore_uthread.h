/* Unithreads: user-level threads that can be switched away from inside a signal handler.
 *
 * Functions that return int give 0, or a negative errno. Times are nanoseconds. One runtime a process.
 * Link with -lfarshore_uthread. The Rust documentation of the crate farshore-uthread says more.
 *
 * A unithread stays on its worker thread, so thread-local storage (errno, __thread) keeps its address across a wait; but all unithreads of a
 * worker share it. errno itself is kept for each unithread, and so are C++ exceptions. Do not change the signal mask or the alternate stack in a
 * unithread.
 *
 * Where a unithread may be switched away from: in the functions of this header that wait, and at any access to far memory of the program's own code, or
 * of functions that only go through memory (memcpy, strlen, bsearch, ...).
 *   Not inside of libc: malloc, stdio, getaddrinfo, dlopen, qsort with what it calls back. Not inside of an allocator that is a library of its own, of the C++
 *   library, or of the unwinder. A unithread waits in place there, and its worker with it. The libraries are those that are loaded when the first
 *   runtime starts. This is seen by return addresses on the stack; old ones in large variables that were not written to count too, and cost speed. A program that
 *   holds around such calls by itself may set do_not_guard_libc.
 *   What is not seen: an allocator that is linked into the program; locks and thread-local data of the program's own and of its other libraries, and locks of
 *   libc's that the program holds itself (pthread_mutex_lock, flockfile). Do not touch far memory with such a lock held that another unithread
 *   may want, but between farshore_uthread_hold and farshore_uthread_release.
 *
 * A forked child has no workers. It has the signal mask and the cores of the thread that has started the runtime, and may exec or exit. When the function of its
 * unithread returns, its process ends with status 0, as after the last function of a thread. The functions below tell it -ESHUTDOWN, or that it
 * is no unithread. What is started otherwise (posix_spawn, system, popen, pthread_create) inherits the worker's: see farshore_uthread_as_before.
 */
#ifndef FARSHORE_UTHREAD_H
#define FARSHORE_UTHREAD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

enum farshore_uthread_policy { FARSHORE_UTHREAD_FEWEST_FETCHES = 0, FARSHORE_UTHREAD_ROUND_ROBIN = 1 };
enum farshore_uthread_wait { FARSHORE_UTHREAD_YIELD = 0, FARSHORE_UTHREAD_BLOCK = 1, FARSHORE_UTHREAD_BUSY = 2 };

/* Zero in a field is its default. */
struct farshore_uthread_config {
    uint32_t workers;      /* default: one for each core, at most 64 */
    uint32_t unithreads;   /* at a time; default 4096 */
    uint64_t stack_bytes;  /* addresses of one unithread; what it touches takes RAM; default 65536 */
    uint64_t guard_bytes;  /* addresses without memory below each stack; default 65536 */
    uint64_t buffer_bytes; /* request buffer; default 2048 */
    uint32_t policy;       /* enum farshore_uthread_policy */
    uint32_t wait;         /* enum farshore_uthread_wait */
    uint64_t poll;         /* how long workers look for completions before they sleep; default 0 */
    uint64_t slice;        /* see farshore_uthread_checkpoint; default 100000 */
    uint32_t do_not_pin;   /* 1: workers are not pinned to cores */
    uint32_t do_not_guard_libc; /* 1: the program holds around calls of libc that touch far memory */
};

/* The right to join a unithread: opaque, used up by join or detach. */
typedef struct farshore_uthread_handle *farshore_uthread_t;

/* Starts the workers. config may be NULL. -EBUSY: there is a runtime. Other errors are told on stderr, with the reason. */
int farshore_uthread_start(const struct farshore_uthread_config *config);
/* Waits until all unithreads have ended; their sleeps and their requests end early. -ETIME: not within `time` (0: no limit); they go on by themselves.
 * -EDEADLK: called by a unithread. */
int farshore_uthread_shutdown(uint64_t time);

/* Makes a unithread. -EAGAIN: all are in use; -ESHUTDOWN: the runtime is being shut down, was not started, or is the parent's. `thread` may be NULL: nobody joins it. */
int farshore_uthread_spawn(farshore_uthread_t *thread, void *(*function)(void *), void *argument);
/* Waits until it has ended. `result` may be NULL. */
int farshore_uthread_join(farshore_uthread_t thread, void **result);
void farshore_uthread_detach(farshore_uthread_t thread);

void farshore_uthread_yield(void);
/* -ECANCELED: the runtime is being shut down. */
int farshore_uthread_sleep(uint64_t time);
/* For long computations: yields if the caller has run for a slice and others want to run. */
void farshore_uthread_checkpoint(void);
/* 1: the runtime is being shut down. */
int farshore_uthread_stopping(void);
/* The caller's worker, or -1: the caller is no unithread. */
int farshore_uthread_worker(void);

/* Between the two the caller is not switched away from, and waits in place. For code that has a lock (above). They nest. */
void farshore_uthread_hold(void);
void farshore_uthread_release(void);

/* Calls function(argument) with the signal mask and the cores of the thread that has started the runtime, which children and threads inherit that are started in there. The
 * caller is not switched away from meanwhile, and signal handlers of the program may run on its stack. */
void farshore_uthread_as_before(void (*function)(void *), void *argument);

/* As pread and pwrite; the unithread waits, its worker does not. offset -1: a stream. A negative errno on error. */
int64_t farshore_uthread_read(int fd, void *into, size_t bytes, int64_t offset);
int64_t farshore_uthread_write(int fd, const void *from, size_t bytes, int64_t offset);

/* Servers of requests. Each request is served in a unithread of its own: datagrams each, or the requests of a connection one after another. Beyond a limit something is
 * refused and counted; nothing queues up. */

/* Zero in a field is its default. */
struct farshore_uthread_limits {
    uint32_t connections;   /* at a time; one more is closed at once. Default 1024 */
    uint32_t requests;      /* that are served at a time. Of datagrams, more wait in the socket; a connection with one more is closed. Default 1024 */
    uint64_t request_bytes; /* at most; not above buffer_bytes of the configuration. Default 2048, or that */
    uint64_t idle;          /* how long a connection may take to bring a whole request, and to take any bytes of a reply. Default 60 s */
};

/* What a server has counted since it began. */
struct farshore_uthread_counts {
    uint64_t accepted;       /* connections that were served */
    uint64_t refused;        /* connections that were closed at once */
    uint64_t accept_failed;  /* connections that could not be accepted, for example because no descriptor was free */
    uint64_t open;           /* connections that are open now */
    uint64_t received;       /* whole requests that came, also those that were dropped; all datagrams */
    uint64_t dropped;        /* requests that were not served: too many under way, or no unithread was free */
    uint64_t overflowed;     /* datagrams that the kernel dropped, since the socket's buffer was full, in the life of the socket */
    uint64_t too_long;       /* requests above request_bytes */
    uint64_t malformed;      /* requests that were not understood */
    uint64_t timed_out;      /* connections that brought no request, or took no reply, for too long */
    uint64_t send_failed;    /* replies that could not be sent, as a whole or in part */
    uint64_t receive_failed; /* receives of datagrams that failed and were tried again */
};

typedef struct farshore_uthread_server *farshore_uthread_server_t;
/* A request: it is there until the function that serves it returns, for the unithread that runs that function alone. Not for a child that is forked there. */
typedef struct farshore_uthread_request farshore_uthread_request_t;

/* How long the request is that `count` bytes of a connection begin with. More than `count`, or 0: more is to come, and it is asked again then. Negative: this will never be
 * a request, and the connection is closed. */
typedef int64_t (*farshore_uthread_frame)(const void *bytes, size_t count, void *argument);
typedef void (*farshore_uthread_serve)(farshore_uthread_request_t *request, void *argument);

/* Starts a server at a socket of IPv4 or IPv6 that is bound to its address, and, for connections, listens. The functions are called on any worker, many at a time. `limits`
 * may be NULL. The server has a descriptor of its own, so the program may close its one; O_NONBLOCK, which both have, is taken away. Connections have TCP_NODELAY. A C++
 * exception must not leave the functions. Forked children have the server's descriptors: nobody hears that a connection is closed before they end, or begin another program.
 * -EBADF, -ENOTSOCK: fd is no socket; -EINVAL: one of the other kind, or one that does not listen, no function, or a limit is wrong, which is told on stderr;
 * -EAFNOSUPPORT: of another family; -ESHUTDOWN: there is no runtime; -EIO: no unithread is free. */
int farshore_uthread_serve_datagrams(farshore_uthread_server_t *server, int fd, const struct farshore_uthread_limits *limits, farshore_uthread_serve serve, void *argument);
int farshore_uthread_serve_connections(farshore_uthread_server_t *server, int fd, const struct farshore_uthread_limits *limits, farshore_uthread_frame frame,
                                       farshore_uthread_serve serve, void *argument);
void farshore_uthread_server_counts(farshore_uthread_server_t server, struct farshore_uthread_counts *counts);
/* Receives no more, waits until the last request has been served and the last connection is closed, and frees the server. After a shutdown of the runtime too. `counts` may be
 * NULL. A listening socket listens no more, for all who have it. Not for a request of this server's, which would wait for itself, and not beside another call for this server.
 * -ESHUTDOWN: the server is the parent's. */
int farshore_uthread_server_stop(farshore_uthread_server_t server, struct farshore_uthread_counts *counts);

/* The bytes of a request. A reply to a datagram overwrites them. */
const void *farshore_uthread_request_bytes(farshore_uthread_request_t *request, size_t *count);
/* Who has sent it: an address of IPv4 or IPv6. `bytes` is the room there is, and afterwards how long the address is; what has no room is cut off. */
void farshore_uthread_request_peer(farshore_uthread_request_t *request, struct sockaddr *peer, socklen_t *bytes);
/* Sends a reply, from memory that may be far. A datagram has one at most, of buffer_bytes at most, which leaves when the function has returned (-EALREADY, -EMSGSIZE). A
 * reply to a request of a connection may be sent in parts, each of which is waited for (-ETIMEDOUT, -EPIPE, -ECONNRESET ...; the connection is closed then). */
int farshore_uthread_reply(farshore_uthread_request_t *request, const void *bytes, size_t count);
/* Counts the request as malformed. A datagram is not answered then; a connection is closed behind this request. */
void farshore_uthread_request_malformed(farshore_uthread_request_t *request);
/* This is the last request of its connection: it is closed when the function has returned. What is replied until then is sent. */
void farshore_uthread_request_last(farshore_uthread_request_t *request);

#ifdef __cplusplus
}
#endif
#endif
