/* Rings of io_uring. */
#include "asynchronous.h"
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { PIECE = 64 * 1024, PIECES = 64 };

/* A file is written from memory that is away, and read into memory that is away, many pieces at a time. */
static void file_through(struct ring *ring, int fd, unsigned char *from, unsigned char *to)
{
    int wrong = 0;
    for (int write = 1; write >= 0; write--) {
        for (int first = 0; first < PIECES; first += 16) {
            make_absent();
            for (int i = first; i < first + 16; i++) {
                ring_next(ring, write ? IORING_OP_WRITE : IORING_OP_READ, fd, (write ? from : to) + (size_t)i * PIECE, PIECE, (uint64_t)i * PIECE, (uint64_t)i + 1);
            }
            CHECK(ring_submit(ring, 0) == 16);
            make_absent();
            for (int i = 0; i < 16; i++) wrong += ring_take(ring, NULL) != PIECE;
        }
    }
    make_absent();
    say("wrong results: %d, bytes: %d", wrong, holds(to, (size_t)PIECE * PIECES, 7));
}

void section_files(void)
{
    const unsigned flags[] = { 0, IORING_SETUP_CLAMP, 1U << 8, 1U << 8 | 1U << 9, 1U << 12 | 1U << 13, 1U << 16 };
    unsigned char *from = filled((size_t)PIECE * PIECES, 7), *to = fresh((size_t)PIECE * PIECES);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct ring ring;
        int fd = file_with(PIECE, 1);
        memset(to, 0, (size_t)PIECE * PIECES);
        ring_make(&ring, 16, flags[i]);
        file_through(&ring, fd, from, to);
        ring_end(&ring);
        close(fd);
    }
}

/* Around the page cache, the device itself writes to the memory. */
void section_direct(void)
{
    struct ring ring;
    unsigned char *from = filled((size_t)PIECE * PIECES, 7), *to = fresh((size_t)PIECE * PIECES);
    int fd = file_with(PIECE, 1);
    if (fcntl(fd, F_SETFL, O_DIRECT) != 0) say("no O_DIRECT here");
    ring_make(&ring, 16, 0);
    churn_start();
    for (int i = 0; i < 4; i++) file_through(&ring, fd, from, to);
    churn_stop();
    ring_end(&ring);
}

void section_vectors(void)
{
    enum { PARTS = 40 };
    struct ring ring;
    const size_t length = 2 * MIB;
    int fd = file_with(length, 3);
    unsigned char *to = fresh(length), *from = filled(length, 4);
    struct iovec *parts = fresh(PARTS * sizeof *parts);
    ring_make(&ring, 8, 0);
    for (int write = 0; write < 2; write++) {
        for (int i = 0; i < PARTS; i++) parts[i] = (struct iovec){ (write ? from : to) + (size_t)i * 9 * PAGE + 100, 5000 };
        make_absent();
        ring_next(&ring, write ? IORING_OP_WRITEV : IORING_OP_READV, fd, parts, PARTS, 0, 1)->flags = IOSQE_ASYNC;
        int result = ring_one(&ring);
        make_absent();
        int same = 1;
        unsigned char *bytes = malloc((size_t)PARTS * 5000), *place = bytes;
        CHECK(pread(fd, bytes, (size_t)PARTS * 5000, 0) == PARTS * 5000);
        for (int i = 0; i < PARTS; i++, place += 5000) same &= memcmp(parts[i].iov_base, place, 5000) == 0;
        say("%s: %d, the same: %d", write ? "written" : "read", result, same);
        free(bytes);
    }
    ring_end(&ring);
}

/* Reads wait for long, while everything leaves; then the bytes come. */
void section_late(void)
{
    enum { WAITING = 48 };
    struct ring ring;
    int pipes[WAITING][2], wrong = 0;
    unsigned char *to = fresh((size_t)WAITING * 3 * PAGE);
    ring_make(&ring, 64, 0);
    for (int round = 0; round < 3; round++) {
        memset(to, 0x11 * (round + 1), (size_t)WAITING * 3 * PAGE);
        for (int i = 0; i < WAITING; i++) {
            CHECK(pipe(pipes[i]) == 0);
            ring_next(&ring, IORING_OP_READ, pipes[i][0], to + (size_t)i * 3 * PAGE + 4000, 300, (uint64_t)-1, (uint64_t)i);
        }
        CHECK(ring_submit(&ring, 0) == WAITING);
        make_absent();
        make_absent();
        for (int i = 0; i < WAITING; i++) {
            unsigned char bytes[300];
            memset(bytes, i + round, sizeof bytes);
            CHECK(write(pipes[i][1], bytes, sizeof bytes) == sizeof bytes);
        }
        for (int i = 0; i < WAITING; i++) wrong += ring_take(&ring, NULL) != 300;
        make_absent();
        for (int i = 0; i < WAITING; i++) {
            unsigned char *at = to + (size_t)i * 3 * PAGE;
            wrong += at[3999] != 0x11 * (round + 1) || at[4000] != i + round || at[4299] != i + round || at[4300] != 0x11 * (round + 1);
            close(pipes[i][0]);
            close(pipes[i][1]);
        }
    }
    say("wrong: %d", wrong);
    ring_end(&ring);
}

void section_sockets(void)
{
    struct ring ring;
    ring_make(&ring, 16, 0);
    struct sockaddr_in *address = fresh(4096), *peer = fresh(4096);
    socklen_t *length = fresh(4096);
    unsigned char *out = filled(MIB, 9), *in = fresh(MIB);
    *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    *length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)address, sizeof *address) == 0 && listen(listener, 5) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)address, length) == 0);
    *length = 4096;
    make_absent();
    ring_next(&ring, IORING_OP_ACCEPT, listener, peer, 0, (uint64_t)(uintptr_t)length, 1);
    CHECK(ring_submit(&ring, 0) == 1);
    make_absent();
    ring_next(&ring, IORING_OP_CONNECT, client, address, 0, sizeof *address, 2);
    CHECK(ring_submit(&ring, 0) == 1);
    uint64_t name;
    int server = -1, connected = -1;
    for (int i = 0; i < 2; i++) {
        int result = ring_take(&ring, &name);
        if (name == 1) server = result;
        else connected = result;
    }
    make_absent();
    say("accepted: %d, connected: %d, family: %d, length: %u", server >= 0, connected, peer->sin_family, *length);
    size_t sent = 0, got = 0;
    while (got < MIB) {
        ring_next(&ring, IORING_OP_RECV, server, in + got, (unsigned)(MIB - got), 0, 1);
        CHECK(ring_submit(&ring, 0) == 1);
        make_absent();
        if (sent < MIB) {
            ring_next(&ring, IORING_OP_SEND, client, out + sent, (unsigned)(MIB - sent), 0, 2);
            CHECK(ring_submit(&ring, 0) == 1);
        }
        for (;;) {
            int result = ring_take(&ring, &name);
            CHECK(result > 0);
            if (name == 2) {
                sent += (size_t)result;
                continue;
            }
            got += (size_t)result;
            break;
        }
    }
    make_absent();
    say("bytes: %d", holds(in, MIB, 9));
    ring_end(&ring);
}

void section_messages(void)
{
    struct ring ring;
    int pair[2], status = 0;
    ring_make(&ring, 8, 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    struct msghdr *in = fresh(4096), *out = fresh(4096);
    struct iovec *parts = fresh(4096), *sent = fresh(4096);
    unsigned char *bytes = fresh(64 * PAGE), *from = filled(64 * PAGE, 5), *control = fresh(4096), *rights = fresh(4096);
    parts[0] = (struct iovec){ bytes + 50, 3000 };
    parts[1] = (struct iovec){ bytes + 20 * PAGE + 50, 9000 };
    *in = (struct msghdr){ .msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = 64 };
    sent[0] = (struct iovec){ from, 10000 };
    *out = (struct msghdr){ .msg_iov = sent, .msg_iovlen = 1, .msg_control = rights, .msg_controllen = CMSG_SPACE(sizeof(int)) };
    struct cmsghdr *head = CMSG_FIRSTHDR(out);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    int null = open("/dev/null", O_RDWR);
    memcpy(CMSG_DATA(head), &null, sizeof null);
    make_absent();
    ring_next(&ring, IORING_OP_RECVMSG, pair[0], in, 1, 0, 1);
    CHECK(ring_submit(&ring, 0) == 1);
    make_absent();
    ring_next(&ring, IORING_OP_SENDMSG, pair[1], out, 1, 0, 2);
    CHECK(ring_submit(&ring, 0) == 1);
    for (int i = 0; i < 2; i++) status += ring_take(&ring, NULL);
    make_absent();
    head = CMSG_FIRSTHDR(in);
    int got;
    memcpy(&got, CMSG_DATA(head), sizeof got);
    struct stat stat;
    say("bytes: %d, flags: %#x, control: %zu, type: %d, a device: %d", status, in->msg_flags, in->msg_controllen, head->cmsg_type, fstat(got, &stat) == 0 && S_ISCHR(stat.st_mode));
    say("the same: %d %d", memcmp(bytes + 50, from, 3000) == 0, memcmp(bytes + 20 * PAGE + 50, from + 3000, 7000) == 0);
    ring_end(&ring);
}

/* Registered buffers, descriptors and an eventfd. */
void section_registered(void)
{
    struct ring ring;
    const size_t length = 16 * PAGE;
    ring_make(&ring, 8, 0);
    int fd = file_with(length, 8);
    unsigned char *to = fresh(length);
    memset(to, 1, length);
    struct iovec *buffers = fresh(4096);
    int *files = fresh(4096);
    buffers[0] = (struct iovec){ to, length };
    files[0] = fd;
    make_absent();
    int answer = (int)syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, 1);
    say("buffers: %d", answer);
    make_absent();
    say("files: %ld", syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, files, 1));
    make_absent();
    struct io_uring_sqe *entry = ring_next(&ring, IORING_OP_READ_FIXED, 0, to, (unsigned)length, 0, 1);
    entry->flags = IOSQE_FIXED_FILE;
    int result = ring_one(&ring);
    say("read: %d, bytes: %d", result, holds(to, length, 8));
    fill(to, length, 6);
    make_absent();
    entry = ring_next(&ring, IORING_OP_WRITE_FIXED, 0, to, (unsigned)length, 0, 1);
    entry->flags = IOSQE_FIXED_FILE;
    result = ring_one(&ring);
    memset(to, 0, length);
    CHECK(pread(fd, to, length, 0) == (ssize_t)length);
    say("written: %d, bytes: %d", result, holds(to, length, 6));
    say("again: %ld", syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, 1));
    say("ended: %ld %ld", syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0), syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_FILES, NULL, 0));
    make_absent();
    say("bytes: %d", holds(to, length, 6));
    ring_end(&ring);
}

/* More in flight than may be in memory. */
void section_deep(void)
{
    struct ring ring;
    const size_t length = 32 * MIB;
    int fd = file_with(length, 2), wrong = 0;
    unsigned char *to = fresh(length);
    ring_make(&ring, 128, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 128; i++) ring_next(&ring, IORING_OP_READ, fd, to + (size_t)i * (length / 128), (unsigned)(length / 128), (uint64_t)i * (length / 128), (uint64_t)i)->flags = round ? IOSQE_ASYNC : 0;
        int left = 128;
        while (left > 0) {
            int answer = ring_submit(&ring, 1);
            CHECK(answer > 0 || answer == -EAGAIN);
            uint64_t name;
            int result;
            while (ring_peek(&ring, &name, &result)) {
                wrong += result != (int)(length / 128);
                left--;
            }
            if (ring.pending == 0) {
                while (left > 0) wrong += ring_take(&ring, NULL) != (int)(length / 128), left--;
            }
        }
        say("wrong: %d, bytes: %d", wrong, holds(to, length, 2));
        CHECK(madvise(to, length, MADV_DONTNEED) == 0);
    }
    ring_end(&ring);
}

/* One request of more than may be pinned, but not more than may be kept. */
void section_large(void)
{
    struct ring ring;
    const size_t length = 5 * MIB;
    int fd = file_with(length, 2);
    unsigned char *to = fresh(length);
    memset(to, 1, length);
    ring_make(&ring, 4, 0);
    make_absent();
    ring_next(&ring, IORING_OP_READ, fd, to, (unsigned)length, 0, 1);
    int result = ring_one(&ring);
    make_absent();
    say("read: %d, bytes: %d", result, holds(to, length, 2));
    ring_end(&ring);
}

/* What is in flight is unmapped, thrown away, moved. */
void section_changed(void)
{
    enum { WAYS = 4 };
    struct ring ring;
    int pipes[WAYS][2], results[WAYS];
    unsigned char *to[WAYS];
    ring_make(&ring, 8, 0);
    for (int i = 0; i < WAYS; i++) {
        CHECK(pipe(pipes[i]) == 0);
        to[i] = fresh(64 * PAGE);
        memset(to[i], 1, 64 * PAGE);
        ring_next(&ring, IORING_OP_READ, pipes[i][0], to[i] + 100, 8000, (uint64_t)-1, (uint64_t)i);
    }
    CHECK(ring_submit(&ring, 0) == WAYS);
    make_absent();
    CHECK(munmap(to[0], 64 * PAGE) == 0);
    CHECK(madvise(to[1], 64 * PAGE, MADV_DONTNEED) == 0);
    unsigned char *moved = mremap(to[2], 64 * PAGE, 32 * PAGE, 0);
    CHECK(moved == to[2]);
    void *same = mmap(to[3], 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(same == to[3]);
    make_absent();
    unsigned char bytes[8000];
    memset(bytes, 7, sizeof bytes);
    for (int i = 0; i < WAYS; i++) CHECK(write(pipes[i][1], bytes, sizeof bytes) == sizeof bytes);
    uint64_t name;
    for (int i = 0; i < WAYS; i++) {
        int result = ring_take(&ring, &name);
        results[name] = result;
    }
    make_absent();
    say("unmapped: %d", results[0]);
    say("thrown away: %d, %d %d %d", results[1], to[1][99], to[1][100], to[1][8099]);
    say("cut: %d, %d %d %d", results[2], moved[99], moved[100], moved[8099]);
    say("replaced: %d", results[3] == 8000 || results[3] == -EFAULT);
    ring_end(&ring);
}

void section_forked(void)
{
    struct ring ring;
    int pipes[8][2], status = 0, wrong = 0;
    unsigned char *to = fresh(64 * PAGE);
    ring_make(&ring, 8, 0);
    memset(to, 1, 64 * PAGE);
    for (int i = 0; i < 8; i++) {
        CHECK(pipe(pipes[i]) == 0);
        ring_next(&ring, IORING_OP_READ, pipes[i][0], to + (size_t)i * 8 * PAGE, 4096, (uint64_t)-1, 1);
    }
    CHECK(ring_submit(&ring, 0) == 8);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        make_absent();
        for (size_t i = 0; i < 64 * PAGE; i++) wrong += to[i] != 1;
        memset(to, 2, 64 * PAGE);
        make_absent();
        for (size_t i = 0; i < 64 * PAGE; i++) wrong += to[i] != 2;
        struct ring own;
        int fd = file_with(PIECE, 4);
        ring_make(&own, 4, 0);
        ring_next(&own, IORING_OP_READ, fd, to, PIECE, 0, 1);
        wrong += ring_one(&own) != PIECE || !holds(to, PIECE, 4);
        ring_end(&own);
        _exit(wrong != 0);
    }
    make_absent();
    for (int i = 0; i < 8; i++) {
        unsigned char bytes[4096];
        memset(bytes, i + 10, sizeof bytes);
        CHECK(write(pipes[i][1], bytes, sizeof bytes) == sizeof bytes);
    }
    for (int i = 0; i < 8; i++) wrong += ring_take(&ring, NULL) != 4096;
    CHECK(waitpid(child, &status, 0) == child);
    make_absent();
    for (size_t i = 0; i < 64 * PAGE; i++) wrong += to[i] != (i % (8 * PAGE) < 4096 ? i / (8 * PAGE) + 10 : 1);
    say("child: %d, wrong: %d", status, wrong);
    ring_end(&ring);
}

static int failures;

static void *one_thread(void *argument)
{
    struct ring ring;
    const uint64_t salt = (uint64_t)(uintptr_t)argument;
    const size_t length = MIB;
    int fd = file_with(length, salt);
    unsigned char *to = fresh(length);
    ring_make(&ring, 16, salt % 2 ? 1U << 12 | 1U << 13 : 0);
    for (int round = 0; round < 30; round++) {
        memset(to, round, length);
        for (int i = 0; i < 16; i++) ring_next(&ring, IORING_OP_READ, fd, to + (size_t)i * PIECE, PIECE, (uint64_t)i * PIECE, 5)->flags = i % 3 ? IOSQE_ASYNC : 0;
        CHECK(ring_submit(&ring, 16) == 16);
        for (int i = 0; i < 16; i++) {
            if (ring_take(&ring, NULL) != PIECE) __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
        }
        if (!holds(to, length, salt)) __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    }
    ring_end(&ring);
    close(fd);
    return NULL;
}

void section_threads(void)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    churn_start();
    for (uintptr_t i = 0; i < THREADS; i++) threads[i] = start(one_thread, (void *)(i + 100));
    for (int i = 0; i < THREADS; i++) join(threads[i]);
    churn_stop();
    say("failures: %d", failures);
}

/* Paths, structures and descriptors. */
void section_names(void)
{
    struct ring ring;
    ring_make(&ring, 8, 0);
    const char *folder = getenv("TMPDIR");
    char *path = fresh(4096), *other = fresh(4096);
    snprintf(path, 4096, "%s/asynchronous-%d", folder ? folder : "/tmp", getpid());
    snprintf(other, 4096, "%s-renamed", path);
    make_absent();
    struct io_uring_sqe *entry = ring_next(&ring, IORING_OP_OPENAT, AT_FDCWD, path, 0600, 0, 1);
    entry->open_flags = O_CREAT | O_RDWR;
    int fd = ring_one(&ring);
    CHECK(fd >= 0);
    CHECK(write(fd, "hello", 5) == 5);
    struct statx *stat = fresh(4096);
    make_absent();
    entry = ring_next(&ring, IORING_OP_STATX, AT_FDCWD, path, STATX_SIZE, (uint64_t)(uintptr_t)stat, 1);
    int result = ring_one(&ring);
    make_absent();
    say("size: %d, %llu", result, stat->stx_size);
    make_absent();
    ring_next(&ring, IORING_OP_RENAMEAT, AT_FDCWD, path, (unsigned)AT_FDCWD, (uint64_t)(uintptr_t)other, 1);
    say("renamed: %d", ring_one(&ring));
    make_absent();
    ring_next(&ring, IORING_OP_UNLINKAT, AT_FDCWD, other, 0, 0, 1);
    say("unlinked: %d", ring_one(&ring));
    ring_next(&ring, IORING_OP_CLOSE, fd, NULL, 0, 0, 1);
    result = ring_one(&ring);
    say("closed: %d, open: %d", result, fcntl(fd, F_GETFD) >= 0);
    ring_next(&ring, IORING_OP_FALLOCATE, file_with(PAGE, 1), (void *)(uintptr_t)MIB, 0, 0, 1);
    say("allocated: %d", ring_one(&ring));
    ring_end(&ring);
}

/* Chains, times, polls; all that is refused by the kernel itself. */
void section_linked(void)
{
    struct ring ring;
    ring_make(&ring, 16, 0);
    int fd = file_with(16 * PAGE, 3);
    unsigned char *buffer = filled(16 * PAGE, 12), *to = fresh(16 * PAGE);
    struct __kernel_timespec *time = fresh(4096);
    *time = (struct __kernel_timespec){ 0, 1000000 };
    make_absent();
    ring_next(&ring, IORING_OP_WRITE, fd, buffer, 16 * PAGE, 0, 1)->flags = IOSQE_IO_LINK;
    ring_next(&ring, IORING_OP_FSYNC, fd, NULL, 0, 0, 2)->flags = IOSQE_IO_LINK;
    ring_next(&ring, IORING_OP_READ, fd, to, 16 * PAGE, 0, 3);
    CHECK(ring_submit(&ring, 3) == 3);
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += ring_take(&ring, NULL);
    make_absent();
    say("chain: %d, bytes: %d", sum, holds(to, 16 * PAGE, 12));
    make_absent();
    ring_next(&ring, IORING_OP_TIMEOUT, -1, time, 1, 0, 1);
    say("time: %d", ring_one(&ring));
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    ring_next(&ring, IORING_OP_READ, pipes[0], to, 100, (uint64_t)-1, 1)->flags = IOSQE_IO_LINK;
    ring_next(&ring, IORING_OP_LINK_TIMEOUT, -1, time, 1, 0, 2);
    CHECK(ring_submit(&ring, 2) == 2);
    uint64_t name;
    int results[3] = { 0 };
    for (int i = 0; i < 2; i++) {
        int result = ring_take(&ring, &name);
        results[name] = result;
    }
    say("in vain: %d %d", results[1], results[2]);
    ring_next(&ring, IORING_OP_READ, pipes[0], to, 100, (uint64_t)-1, 77);
    CHECK(ring_submit(&ring, 0) == 1);
    ring_next(&ring, IORING_OP_ASYNC_CANCEL, -1, (void *)77, 0, 0, 1);
    CHECK(ring_submit(&ring, 2) == 1);
    for (int i = 0; i < 2; i++) {
        int result = ring_take(&ring, &name);
        results[name == 77] = result;
    }
    say("cancelled: %d %d", results[0], results[1]);
    ring_next(&ring, 200, -1, NULL, 0, 0, 9);
    int code = ring_one(&ring);
    say("unknown: %d, the code stays: %d", code, ring.entries[(*ring.sq_tail - 1) & ring.sq_mask].opcode);
    ring_end(&ring);
}

void section_multishot(void)
{
    struct ring ring;
    int pipes[2], reads = 0;
    ring_make(&ring, 8, 0);
    CHECK(pipe(pipes) == 0);
    struct io_uring_sqe *entry = ring_next(&ring, IORING_OP_POLL_ADD, pipes[0], NULL, IORING_POLL_ADD_MULTI, 0, 5);
    entry->poll32_events = POLLIN;
    CHECK(ring_submit(&ring, 0) == 1);
    int fd = file_with(PIECE, 4);
    unsigned char *to = fresh(PIECE);
    for (int i = 0; i < 40; i++) {
        CHECK(write(pipes[1], "x", 1) == 1);
        int events = ring_take(&ring, NULL);
        char byte;
        CHECK(events & POLLIN && read(pipes[0], &byte, 1) == 1);
        make_absent();
        ring_next(&ring, IORING_OP_READ, fd, to, PIECE, 0, 5);
        reads += ring_one(&ring) == PIECE && holds(to, PIECE, 4);
        memset(to, 0, PIECE);
    }
    say("reads: %d", reads);
    ring_end(&ring);
}

/* A ring that goes while requests are in flight. */
void section_closed(void)
{
    int pipes[2];
    unsigned char *to = fresh(64 * PAGE);
    for (int i = 0; i < 50; i++) {
        struct ring ring;
        ring_make(&ring, 8, 0);
        CHECK(pipe(pipes) == 0);
        memset(to, 3, 64 * PAGE);
        ring_next(&ring, IORING_OP_READ, pipes[0], to + (size_t)(i % 8) * 8 * PAGE, 4096, (uint64_t)-1, 1);
        CHECK(ring_submit(&ring, 0) == 1);
        ring_end(&ring);
        close(pipes[0]);
        close(pipes[1]);
    }
    make_absent();
    int wrong = 0;
    for (size_t i = 0; i < 64 * PAGE; i++) wrong += to[i] != 3;
    say("wrong: %d", wrong);
}

/* By a copy of its descriptor. */
void section_copied(void)
{
    struct ring ring;
    ring_make(&ring, 8, 0);
    int fd = file_with(PIECE, 4), copy = dup(ring.fd);
    unsigned char *to = fresh(PIECE);
    close(ring.fd);
    ring.fd = copy;
    make_absent();
    ring_next(&ring, IORING_OP_READ, fd, to, PIECE, 0, 5);
    int result = ring_one(&ring);
    say("read: %d, bytes: %d", result, holds(to, PIECE, 4));
    ring_end(&ring);
}

void section_errors(void)
{
    struct ring ring;
    struct io_uring_params params = { .flags = 1U << 30 };
    TELL("flags", syscall(SYS_io_uring_setup, 8, &params));
    params.flags = 0;
    TELL("entries", syscall(SYS_io_uring_setup, 0, &params));
    TELL("nowhere", syscall(SYS_io_uring_setup, 8, (void *)16));
    TELL("no ring", syscall(SYS_io_uring_enter, 0, 1, 0, 0, NULL, 0));
    TELL("not open", syscall(SYS_io_uring_enter, 12345, 1, 0, 0, NULL, 0));
    TELL("flags", syscall(SYS_io_uring_enter, 0, 1, 0, 1 << 20, NULL, 0));
    TELL("register", syscall(SYS_io_uring_register, 12345, 0, NULL, 0));
    ring_make(&ring, 8, 0);
    say("nothing there: %ld", syscall(SYS_io_uring_enter, ring.fd, 5, 0, 0, NULL, 0));
    int fd = file_with(PAGE, 1);
    ring_next(&ring, IORING_OP_READ, fd, (void *)8, 100, 0, 1);
    say("a wild buffer: %d", ring_one(&ring));
    ring_next(&ring, IORING_OP_READV, fd, (void *)8, 2, 0, 1);
    say("a wild array: %d", ring_one(&ring));
    ring_next(&ring, IORING_OP_READ, 999, NULL, 100, 0, 1);
    say("a wild descriptor: %d", ring_one(&ring));
    ring_next(&ring, IORING_OP_READ, -1, NULL, 100, 0, 1);
    ring_next(&ring, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    int answer = ring_submit(&ring, 0);
    say("both: %d %d", answer, ring_take(&ring, NULL));
    ring_end(&ring);
    ring_make(&ring, 8, IORING_SETUP_R_DISABLED);
    ring_next(&ring, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    say("disabled: %d", ring_submit(&ring, 0));
    say("enabled: %ld", syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    say("then: %d", ring_submit(&ring, 0));
    ring_end(&ring);
}

/* A long run with everything leaving all the time: each read is checked. */
void section_churned(void)
{
    enum { DEPTH = 32, BLOCK = 16 * 1024, BLOCKS = 512 };
    struct ring ring;
    int fd = file_with((size_t)BLOCK * BLOCKS, 77), wrong = 0;
    unsigned char *expected = filled((size_t)BLOCK * BLOCKS, 77), *to = fresh((size_t)DEPTH * BLOCK);
    int block[DEPTH];
    uint64_t state = 1, name;
    ring_make(&ring, DEPTH, 0);
    churn_start();
    int submitted = 0, done = 0;
    for (; submitted < DEPTH; submitted++) {
        block[submitted] = (int)(mix(state++) % BLOCKS);
        ring_next(&ring, IORING_OP_READ, fd, to + (size_t)submitted * BLOCK, BLOCK, (uint64_t)block[submitted] * BLOCK, (uint64_t)submitted)->flags = submitted % 2 ? IOSQE_ASYNC : 0;
    }
    CHECK(ring_submit(&ring, 0) == DEPTH);
    while (done < 6000) {
        int result = ring_take(&ring, &name);
        wrong += result != BLOCK || memcmp(to + name * BLOCK, expected + (size_t)block[name] * BLOCK, BLOCK) != 0;
        if (done % 3 == 0) memset(to + name * BLOCK, done, BLOCK);
        done++;
        block[name] = (int)(mix(state++) % BLOCKS);
        ring_next(&ring, IORING_OP_READ, fd, to + name * BLOCK, BLOCK, (uint64_t)block[name] * BLOCK, name)->flags = done % 2 ? IOSQE_ASYNC : 0;
        CHECK(ring_submit(&ring, 0) == 1);
    }
    for (int i = 0; i < DEPTH; i++) ring_take(&ring, NULL);
    churn_stop();
    say("wrong: %d", wrong);
    ring_end(&ring);
}

static void *sums_up(void *argument)
{
    unsigned char *bytes = argument;
    uint64_t sum = 0;
    for (size_t i = 0; i < 40 * MIB; i += 64) sum += bytes[i];
    return (void *)(uintptr_t)sum;
}

/* A ring with much in flight of which no call comes by any more: others still find frames. */
void section_idle(void)
{
    struct ring ring;
    int pipes[64][2];
    ring_make(&ring, 64, 0);
    unsigned char *to = fresh(64 * 32 * PAGE), *more = fresh(40 * MIB);
    for (int i = 0; i < 64; i++) {
        CHECK(pipe(pipes[i]) == 0);
        ring_next(&ring, IORING_OP_READ, pipes[i][0], to + (size_t)i * 32 * PAGE, 16 * PAGE, (uint64_t)-1, 1);
    }
    int taken = ring_submit(&ring, 0);
    CHECK(taken > 0);
    memset(more, 1, 40 * MIB);
    uint64_t sum = (uint64_t)(uintptr_t)join(start(sums_up, more));
    say("sum: %llu", (unsigned long long)sum);
    ring_end(&ring);
}
