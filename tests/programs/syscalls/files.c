/* read, write and their kin on files and pipes. */
#include "check.h"
#include <fcntl.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static const size_t sizes[] = { 1, 7, 4095, 4096, 4097, 65536, 65537, MIB, 3 * MIB + 13 };
#define SIZES (sizeof sizes / sizeof *sizes)

static void plain(void)
{
    void *out[SIZES], *used[SIZES], *untouched[SIZES];
    int fd = file_of("plain", 0, 0);
    for (size_t i = 0; i < SIZES; i++) {
        out[i] = filled(sizes[i], i);
        used[i] = filled(sizes[i], 99);
        untouched[i] = fresh(sizes[i]);
    }
    make_absent();
    for (size_t i = 0; i < SIZES; i++) CHECK(write(fd, out[i], sizes[i]) == (ssize_t)sizes[i]);
    off_t at = 0;
    for (size_t i = 0; i < SIZES; i++) {
        CHECK(pread(fd, used[i], sizes[i], at) == (ssize_t)sizes[i] && holds(used[i], sizes[i], i));
        CHECK(pread(fd, untouched[i], sizes[i], at) == (ssize_t)sizes[i] && holds(untouched[i], sizes[i], i));
        at += (off_t)sizes[i];
    }
    /* The end of the file comes before the end of the buffer: what lies behind it keeps its bytes. */
    fill(used[SIZES - 1], sizes[SIZES - 1], 5);
    make_absent();
    CHECK(pread(fd, used[SIZES - 1], sizes[SIZES - 1], at - 5000) == 5000);
    unsigned char *expected = filled(sizes[SIZES - 1], 5);
    CHECK(memcmp((unsigned char *)used[SIZES - 1] + 5000, expected + 5000, sizes[SIZES - 1] - 5000) == 0);
    CHECK(pread(fd, used[0], 1, at) == 0);
    say("plain ok, %lld bytes", (long long)at);
    close(fd);
}

static void vectors(void)
{
    enum { PARTS = 64, PART = 5000, STEP = 7001 };
    unsigned char *data = filled(PARTS * STEP, 3), *back = fresh(PARTS * STEP);
    struct iovec local[PARTS], local_back[PARTS];
    for (int i = 0; i < PARTS; i++) {
        local[i] = (struct iovec){ data + i * STEP, PART };
        local_back[i] = (struct iovec){ back + (PARTS - 1 - i) * STEP, PART };
    }
    struct iovec *out = placed(local, sizeof local), *in = placed(local_back, sizeof local_back);
    int fd = file_of("vectors", 0, 0);
    make_absent();
    CHECK(writev(fd, out, PARTS) == PARTS * PART);
    CHECK(pwritev(fd, out, PARTS, PARTS * PART) == PARTS * PART);
    make_absent();
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, in, PARTS) == PARTS * PART);
    for (int i = 0; i < PARTS; i++) CHECK(memcmp(in[i].iov_base, out[i].iov_base, PART) == 0);
    memset(back, 0, PARTS * STEP);
    make_absent();
    CHECK(preadv(fd, in, PARTS, PARTS * PART) == PARTS * PART);
    CHECK(preadv2(fd, in, 2, -1, 0) == 2 * PART);
    for (int i = 2; i < PARTS; i++) CHECK(memcmp(in[i].iov_base, out[i].iov_base, PART) == 0);
    CHECK(writev(fd, out, 0) == 0);
    volatile int negative = -1;
    CHECK(writev(fd, out, negative) == -1 && errno == EINVAL);
    say("vectors ok");
    close(fd);
}

static void offsets(void)
{
    int from = file_of("from", 300000, 8), to = file_of("to", 0, 0);
    off_t zero = 1000;
    off_t *offset = placed(&zero, sizeof zero), *other = placed(&zero, sizeof zero);
    make_absent();
    CHECK(sendfile(to, from, offset, 4096) == 4096 && *offset == 5096);
    make_absent();
    ssize_t copied = copy_file_range(from, offset, to, other, 4096, 0);
    say("sendfile and copy_file_range: %zd, offsets %lld %lld", copied, (long long)*offset, (long long)*other);
    void *random = fresh(MIB);
    make_absent();
    size_t got = 0;
    while (got < MIB) {
        ssize_t n = getrandom((char *)random + got, MIB - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
    unsigned ones = 0;
    for (size_t i = 0; i < MIB / 8; i++) ones += (unsigned)__builtin_popcountll(((uint64_t *)random)[i]);
    CHECK(ones > 4 * MIB - 100000 && ones < 4 * MIB + 100000);
    say("getrandom ok");
    close(from);
    close(to);
}

void section_files(void)
{
    plain();
    vectors();
    offsets();
}

/* ------------------------------------------------------------------------------------- large calls */

#define BIG (65 * MIB)

static int big_pipe[2];

static void *drain(void *unused)
{
    (void)unused;
    unsigned char *piece = fresh(MIB);
    size_t got = 0;
    uint64_t h = 0;
    while (got < BIG) {
        /* Read in steps of a page so that the digest does not depend on how much a read returns. */
        size_t have = 0;
        while (have < PAGE) {
            ssize_t n = read(big_pipe[0], piece + have, PAGE - have);
            CHECK(n > 0);
            have += (size_t)n;
        }
        h = digest(h, piece, PAGE);
        got += PAGE;
    }
    say("pipe drained: %zu bytes, digest %016llx", got, (unsigned long long)h);
    return NULL;
}

void section_big(void)
{
    unsigned char *out = filled(BIG, 21), *in = fresh(BIG);
    int fd = file_of("big", 0, 0);
    ssize_t n = write(fd, out, BIG);
    say("write of 65 MiB: %zd", n);
    n = pread(fd, in, BIG, 0);
    say("read of 65 MiB: %zd %s", n, holds(in, BIG, 21) ? "right" : "WRONG");
    n = pread(fd, in, BIG, 12345);
    say("read near the end: %zd", n);
    CHECK(pipe(big_pipe) == 0);
    pthread_t reader = start(drain, NULL);
    n = write(big_pipe[1], out, BIG);
    join(reader);
    say("write of 65 MiB into a pipe: %zd", n);
    /* A read returns what is there, and never waits for more than that. */
    CHECK(write(big_pipe[1], out, 65536) == 65536);
    n = read(big_pipe[0], in, BIG);
    say("read of 65 MiB from a full pipe: %zd %s", n, holds(in, 65536, 21) ? "right" : "WRONG");
    CHECK(write(big_pipe[1], out, 10) == 10);
    n = read(big_pipe[0], in, BIG);
    say("read of 65 MiB from a pipe with 10 bytes: %zd", n);
    CHECK(fcntl(big_pipe[1], F_SETFL, O_NONBLOCK) == 0 && fcntl(big_pipe[0], F_SETFL, O_NONBLOCK) == 0);
    n = write(big_pipe[1], out, BIG);
    say("write of 65 MiB into a pipe without waiting: %zd", n);
    n = write(big_pipe[1], out, BIG);
    say("once more: %zd %s", n, n < 0 ? strerror(errno) : "");
    n = read(big_pipe[0], in, BIG);
    say("read back: %zd %s", n, holds(in, 65536, 21) ? "right" : "WRONG");
    n = read(big_pipe[0], in, BIG);
    say("read of an empty pipe without waiting: %zd %s", n, n < 0 ? strerror(errno) : "");
    close(big_pipe[1]);
    say("read of a closed pipe: %zd", read(big_pipe[0], in, BIG));
    munmap(in, BIG);
    munmap(out, BIG);
    close(fd);
}

/* -------------------------------------------------------------------------------------- direct I/O */

void section_direct(void)
{
    int fd = open(path_of("direct"), O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (fd < 0) {
        say("no O_DIRECT here");
        return;
    }
    unsigned char *out = filled(2 * MIB, 4), *in = fresh(2 * MIB);
    for (int i = 0; i < 4; i++) {
        memset(in, i, 2 * MIB);
        make_absent();
        CHECK(pwrite(fd, out, 2 * MIB, 0) == (ssize_t)(2 * MIB));
        make_absent();
        CHECK(pread(fd, in, 2 * MIB, 0) == (ssize_t)(2 * MIB) && holds(in, 2 * MIB, 4));
    }
    /* Pages that direct I/O writes into must not leave with their old bytes while it runs. */
    churn_start();
    for (int i = 0; i < 40; i++) {
        memset(in, 0, 256 * 1024);
        CHECK(pread(fd, in, 256 * 1024, 0) == 256 * 1024 && holds(in, 256 * 1024, 4));
    }
    churn_stop();
    say("direct ok");
    close(fd);
}

/* ------------------------------------------------------------------ many threads, while pages leave */

static int storm_fd;

static void *storm(void *argument)
{
    struct rng r = { mix((uintptr_t)argument) };
    const size_t most = 96 * 1024;
    unsigned char *out = fresh(most), *in = fresh(most);
    off_t base = (off_t)(uintptr_t)argument * (off_t)MIB;
    for (int i = 0; i < 250; i++) {
        size_t length = 1 + rng_below(&r, most - 1), skew = rng_below(&r, most - length);
        off_t at = base + (off_t)rng_below(&r, 4096);
        uint64_t salt = rng_next(&r);
        fill(out + skew, length, salt);
        CHECK(pwrite(storm_fd, out + skew, length, at) == (ssize_t)length);
        struct iovec halves[2] = { { in + skew, length / 2 }, { in + skew + length / 2, length - length / 2 } };
        ssize_t n = i % 2 ? pread(storm_fd, in + skew, length, at) : preadv(storm_fd, halves, 2, at);
        CHECK(n == (ssize_t)length && holds(in + skew, length, salt));
    }
    return NULL;
}

void section_storm(void)
{
    storm_fd = file_of("storm", 0, 0);
    pthread_t threads[6];
    churn_start();
    for (uintptr_t i = 0; i < 6; i++) threads[i] = start(storm, (void *)i);
    for (int i = 0; i < 6; i++) join(threads[i]);
    churn_stop();
    say("storm ok");
    close(storm_fd);
}
