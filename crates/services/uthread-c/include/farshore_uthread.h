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

#ifdef __cplusplus
}
#endif
#endif
