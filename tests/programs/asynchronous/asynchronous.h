/* Asynchronous I/O into memory that leaves and comes back: what the sections share. The rings are made by hand, by calls of libc, so that a process
 * may be dormant when it makes its first. */
#ifndef FARSHORE_TESTS_ASYNCHRONOUS_H
#define FARSHORE_TESTS_ASYNCHRONOUS_H

#include "absent/absent.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* Says what a call answers, and its error. */
#define TELL(text, call) \
    do { \
        long answer_ = (call); \
        int error_ = errno; \
        say("%s: %ld, %d", text, answer_, answer_ < 0 ? error_ : 0); \
    } while (0)

struct ring {
    int fd;
    unsigned *sq_head, *sq_tail, sq_mask, *array, *cq_head, *cq_tail, cq_mask, pending;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
    void *queues, *submissions;
    size_t queues_bytes, submissions_bytes;
};

/* Makes a ring with these flags. */
void ring_make(struct ring *ring, unsigned entries, unsigned flags);
void ring_end(struct ring *ring);
/* The next entry: empty, with these values. */
struct io_uring_sqe *ring_next(struct ring *ring, unsigned code, int fd, const void *addr, unsigned length, uint64_t offset, uint64_t name);
/* Submits what is pending; how many the kernel took, or a negative errno. `wait`: for so many completions. */
int ring_submit(struct ring *ring, unsigned wait);
/* Takes the next completion, and waits for it; its result and name. */
int ring_take(struct ring *ring, uint64_t *name);
/* Submits, and takes one completion; its result. */
int ring_one(struct ring *ring);
/* A completion that is there already. */
int ring_peek(struct ring *ring, uint64_t *name, int *result);

/* A file of this length with the pattern of `salt`, open for reading and writing and without a name. */
int file_with(size_t length, uint64_t salt);

void section_files(void);
void section_vectors(void);
void section_late(void);
void section_sockets(void);
void section_messages(void);
void section_registered(void);
void section_deep(void);
void section_large(void);
void section_changed(void);
void section_forked(void);
void section_threads(void);
void section_names(void);
void section_linked(void);
void section_multishot(void);
void section_closed(void);
void section_copied(void);
void section_errors(void);
void section_direct(void);
void section_churned(void);
void section_idle(void);

void section_contexts(void);
void section_contextlate(void);
void section_contextdeep(void);
void section_contexterrors(void);
void section_contextforked(void);

#endif
