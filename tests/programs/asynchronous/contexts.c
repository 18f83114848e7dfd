/* Linux AIO. */
#include "asynchronous.h"
#include <linux/aio_abi.h>
#include <sys/wait.h>

enum { PIECE = 64 * 1024, PIECES = 32 };

static aio_context_t context_of(unsigned events)
{
    aio_context_t *context = fresh(4096);
    *context = 0;
    make_absent();
    CHECK(syscall(SYS_io_setup, events, context) == 0);
    make_absent();
    return *context;
}

static void prepare(struct iocb *request, int fd, int code, void *at, size_t length, off_t offset, uint64_t name)
{
    memset(request, 0, sizeof *request);
    request->aio_fildes = (unsigned)fd;
    request->aio_lio_opcode = (unsigned short)code;
    request->aio_buf = (uint64_t)(uintptr_t)at;
    request->aio_nbytes = length;
    request->aio_offset = offset;
    request->aio_data = name;
}

/* Takes events until `wanted` have come; how many had another result than `result`. */
static int take(aio_context_t context, struct io_event *events, int wanted, long long result)
{
    int wrong = 0;
    while (wanted > 0) {
        long got = syscall(SYS_io_getevents, context, 1, wanted, events, NULL);
        CHECK(got > 0);
        for (long i = 0; i < got; i++) wrong += events[i].res != result;
        wanted -= (int)got;
    }
    return wrong;
}

void section_contexts(void)
{
    aio_context_t context = context_of(64);
    unsigned char *from = filled((size_t)PIECE * PIECES, 7), *to = fresh((size_t)PIECE * PIECES);
    struct iocb *requests = fresh(PIECES * sizeof *requests), **list = fresh(PIECES * sizeof *list);
    struct io_event *events = fresh(PIECES * sizeof *events);
    for (int direct = 0; direct < 2; direct++) {
        int fd = file_with(PIECE, 1), wrong = 0;
        if (direct && fcntl(fd, F_SETFL, O_DIRECT) != 0) say("no O_DIRECT here");
        memset(to, 0, (size_t)PIECE * PIECES);
        for (int write = 1; write >= 0; write--) {
            for (int i = 0; i < PIECES; i++) {
                prepare(&requests[i], fd, write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD, (write ? from : to) + (size_t)i * PIECE, PIECE, (off_t)i * PIECE, (uint64_t)i);
                list[i] = &requests[i];
            }
            make_absent();
            int done = 0;
            while (done < PIECES) {
                long answer = syscall(SYS_io_submit, context, PIECES - done, list + done);
                if (answer < 0) die("io_submit");
                make_absent();
                wrong += take(context, events, (int)answer, PIECE);
                done += (int)answer;
            }
        }
        make_absent();
        say("wrong: %d, bytes: %d", wrong, holds(to, (size_t)PIECE * PIECES, 7));
    }
    struct iovec *parts = fresh(4096);
    int fd = file_with((size_t)PIECE * 2, 9);
    parts[0] = (struct iovec){ to, PIECE };
    parts[1] = (struct iovec){ to + PIECE, PIECE };
    prepare(&requests[0], fd, IOCB_CMD_PREADV, parts, 2, 0, 3);
    list[0] = &requests[0];
    make_absent();
    CHECK(syscall(SYS_io_submit, context, 1, list) == 1);
    int wrong = take(context, events, 1, 2 * PIECE);
    say("vectors: %d, bytes: %d", wrong, holds(to, (size_t)PIECE * 2, 9));
    say("ended: %ld", syscall(SYS_io_destroy, context));
}

/* A poll waits, and the events are taken from the queue itself, as libaio does. */
void section_contextlate(void)
{
    struct queue { unsigned id, places, head, tail, magic, compat, incompat, bytes; struct io_event events[]; };
    aio_context_t context = context_of(16);
    struct queue *queue = (struct queue *)context;
    struct iocb *request = fresh(4096), **list = fresh(4096);
    int fd = file_with((size_t)PIECE, 5), wrong = 0;
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) say("no O_DIRECT here");
    unsigned char *to = fresh(PIECE);
    list[0] = request;
    CHECK(queue->magic == 0xa10a10a1);
    for (int i = 0; i < 300; i++) {
        memset(to, i, PIECE);
        prepare(request, fd, IOCB_CMD_PREAD, to, PIECE, 0, (uint64_t)i);
        if (i % 50 == 0) make_absent();
        CHECK(syscall(SYS_io_submit, context, 1, list) == 1);
        while (__atomic_load_n(&queue->tail, __ATOMIC_ACQUIRE) == queue->head) sched_yield();
        wrong += queue->events[queue->head].data != (uint64_t)i || queue->events[queue->head].res != PIECE;
        __atomic_store_n(&queue->head, (queue->head + 1) % queue->places, __ATOMIC_RELEASE);
        wrong += !holds(to, PIECE, 5);
    }
    say("wrong: %d", wrong);
    say("ended: %ld", syscall(SYS_io_destroy, context));
}

void section_contextdeep(void)
{
    enum { DEPTH = 64, BLOCK = 256 * 1024 };
    aio_context_t context = context_of(DEPTH);
    const size_t length = (size_t)DEPTH * BLOCK;
    int fd = file_with(length, 6), wrong = 0;
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) say("no O_DIRECT here");
    unsigned char *to = fresh(length);
    struct iocb *requests = fresh(DEPTH * sizeof *requests), **list = fresh(DEPTH * sizeof *list);
    struct io_event *events = fresh(DEPTH * sizeof *events);
    churn_start();
    for (int round = 0; round < 4; round++) {
        memset(to, round, length);
        for (int i = 0; i < DEPTH; i++) {
            prepare(&requests[i], fd, IOCB_CMD_PREAD, to + (size_t)i * BLOCK, BLOCK, (off_t)i * BLOCK, (uint64_t)i);
            list[i] = &requests[i];
        }
        int done = 0, taken = 0;
        while (taken < DEPTH) {
            if (done < DEPTH) {
                long answer = syscall(SYS_io_submit, context, DEPTH - done, list + done);
                CHECK(answer > 0 || errno == EAGAIN);
                if (answer > 0) done += (int)answer;
            }
            wrong += take(context, events, done - taken > 0 ? 1 : 0, BLOCK);
            taken += done > taken;
        }
        wrong += !holds(to, length, 6);
    }
    churn_stop();
    say("wrong: %d", wrong);
    say("ended: %ld", syscall(SYS_io_destroy, context));
}

void section_contexterrors(void)
{
    aio_context_t context = context_of(4), other = 0;
    struct iocb *request = fresh(4096), **list = fresh(4096);
    list[0] = request;
    list[1] = (void *)8;
    TELL("no context", syscall(SYS_io_submit, other, 1, list));
    TELL("setup", syscall(SYS_io_setup, 4, (void *)8));
    prepare(request, 999, IOCB_CMD_PREAD, list, 100, 0, 1);
    TELL("descriptor", syscall(SYS_io_submit, context, 1, list));
    int fd = file_with(PAGE, 1);
    prepare(request, fd, IOCB_CMD_PREAD, request + 1, 100, 0, 1);
    say("the second is wild: %ld", syscall(SYS_io_submit, context, 2, list));
    TELL("wild", syscall(SYS_io_submit, context, 1, list + 1));
    say("nothing: %ld", syscall(SYS_io_submit, context, 0, list));
    TELL("negative", syscall(SYS_io_submit, context, -1, list));
    struct io_event *events = fresh(4096);
    struct timespec *time = fresh(4096);
    *time = (struct timespec){ 0, 1000000 };
    make_absent();
    say("event: %ld", syscall(SYS_io_getevents, context, 1, 4, events, time));
    say("no more: %ld", syscall(SYS_io_getevents, context, 1, 4, events, time));
    struct { const void *mask; size_t bytes; } signals = { NULL, 8 };
    say("no more: %ld", syscall(333, context, 1, 4, events, time, &signals));
    prepare(request, fd, 99, NULL, 100, 0, 1);
    TELL("code", syscall(SYS_io_submit, context, 1, list));
    say("ended: %ld", syscall(SYS_io_destroy, context));
    TELL("again", syscall(SYS_io_destroy, context));
}

void section_contextforked(void)
{
    aio_context_t context = context_of(64);
    unsigned char *to = fresh((size_t)PIECE * PIECES);
    struct iocb *requests = fresh(PIECES * sizeof *requests), **list = fresh(PIECES * sizeof *list);
    struct io_event *events = fresh(PIECES * sizeof *events);
    int fd = file_with((size_t)PIECE * PIECES, 3), wrong = 0;
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) say("no O_DIRECT here");
    for (int round = 0; round < 10; round++) {
        memset(to, round, (size_t)PIECE * PIECES);
        for (int i = 0; i < PIECES; i++) {
            prepare(&requests[i], fd, IOCB_CMD_PREAD, to + (size_t)i * PIECE, PIECE, (off_t)i * PIECE, (uint64_t)i);
            list[i] = &requests[i];
        }
        int done = 0;
        while (done < PIECES) {
            long answer = syscall(SYS_io_submit, context, PIECES - done, list + done);
            CHECK(answer > 0);
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                make_absent();
                _exit(syscall(SYS_io_submit, context, 1, list) != -1);
            }
            wrong += take(context, events, (int)answer, PIECE);
            int status;
            CHECK(waitpid(child, &status, 0) == child);
            wrong += status != 0;
            done += (int)answer;
        }
        make_absent();
        wrong += !holds(to, (size_t)PIECE * PIECES, 3);
    }
    say("wrong: %d", wrong);
    say("ended: %ld", syscall(SYS_io_destroy, context));
}
