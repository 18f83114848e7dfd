/* Mappings of files that are larger than memory: read, written privately, given up, inherited, and changed by others meanwhile.
 *
 *     mapped MIB SECTION     run one section, with a file of MIB in $TMPDIR, or $MAPPED_FILE, which stays and is made if it is not there
 *     mapped --list          print the names of all sections
 *
 * The output and the way in which the program ends are the same natively and under Farshore. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CHECK(what) do { if (!(what)) die("line %d: %s", __LINE__, #what); } while (0)

static const char *section;
static char path[4096];
static size_t size, pages;
static unsigned char *mapped;

/* Word `n` of page `page` in a file that was written `version` times. */
static uint64_t word(size_t page, size_t n, uint64_t version)
{
    return mix(page << 20 | n << 8 | version);
}

static void fill(uint64_t *at, size_t page, uint64_t version)
{
    for (size_t n = 0; n < PAGE / 8; n++) at[n] = word(page, n, version);
}

static int is_right(const unsigned char *base, size_t page, uint64_t version)
{
    const uint64_t *at = (const uint64_t *)(base + page * PAGE);
    for (size_t n = 0; n < PAGE / 8; n++) {
        if (at[n] != word(page, n, version)) return 0;
    }
    return 1;
}

static void check_all(size_t from, size_t to, uint64_t version)
{
    for (size_t page = from; page < to; page++) {
        if (!is_right(mapped, page, version)) die("page %zu has wrong bytes", page);
    }
}

static void check_anywhere(size_t count, uint64_t seed)
{
    struct rng rng = { seed };
    for (size_t n = 0; n < count; n++) {
        size_t page = rng_below(&rng, pages);
        if (!is_right(mapped, page, 0)) die("page %zu has wrong bytes", page);
    }
}

static void make_file(size_t extra)
{
    static uint64_t buffer[256 * PAGE / 8];
    const char *folder = getenv("TMPDIR"), *given = getenv("MAPPED_FILE");
    if (given) snprintf(path, sizeof path, "%s", given);
    else snprintf(path, sizeof path, "%s/mapped-%d", folder ? folder : "/var/tmp", (int)getpid());
    if (given && access(path, F_OK) == 0) return;
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(fd >= 0);
    for (size_t page = 0; page < pages; page += 256) {
        for (size_t n = 0; n < 256; n++) fill(buffer + n * PAGE / 8, page + n, 0);
        CHECK(write(fd, buffer, sizeof buffer) == sizeof buffer);
    }
    memset(buffer, 'x', extra);
    CHECK(write(fd, buffer, extra) == (ssize_t)extra && close(fd) == 0);
}

static void map(int protection, int flags, size_t length)
{
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    mapped = mmap(NULL, length, protection, flags, fd, 0);
    CHECK(mapped != MAP_FAILED && close(fd) == 0);
}

static sigjmp_buf back;

static void on_bus(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    siglongjmp(back, info->si_code == BUS_ADRERR ? 1 : 2);
}

/* 0: the byte can be read; 1: SIGBUS with BUS_ADRERR; 2: another SIGBUS. */
static int touch(const volatile unsigned char *at)
{
    struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO }, before;
    CHECK(sigaction(SIGBUS, &action, &before) == 0);
    int how = sigsetjmp(back, 1);
    if (how == 0) (void)*at;
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
    return how;
}

static void section_reads(int flags)
{
    map(PROT_READ, flags, size);
    check_all(0, pages, 0);
    check_all(0, pages, 0);
    for (size_t page = pages; page-- > 0;) CHECK(is_right(mapped, page, 0));
    check_anywhere(pages / 2, 1);
    CHECK(munmap(mapped, size) == 0);
}

static void section_private(void) { make_file(0); section_reads(MAP_PRIVATE); }
static void section_shared(void) { make_file(0); section_reads(MAP_SHARED); }
static void section_populated(void) { make_file(0); section_reads(MAP_SHARED | MAP_POPULATE); section_reads(MAP_PRIVATE | MAP_POPULATE); }

/* The file ends within a page, and the mapping later. */
static void section_tail(void)
{
    make_file(100);
    for (int flags = MAP_SHARED; flags <= MAP_PRIVATE; flags++) {
        map(PROT_READ, flags, size + 4 * PAGE);
        check_all(0, pages, 0);
        size_t x = 0, zeros = 0;
        for (size_t n = 0; n < PAGE; n++) x += mapped[size + n] == 'x', zeros += mapped[size + n] == 0;
        printf("%s: %zu of the tail, %zu zeros, then %d and %d\n", section, x, zeros, touch(mapped + size + PAGE), touch(mapped + size + 3 * PAGE));
        int out = open("/dev/null", O_WRONLY), sink[2];
        CHECK(pipe(sink) == 0 && out >= 0);
        ssize_t all = write(sink[1], mapped + size, 2 * PAGE), last = write(sink[1], mapped + size + PAGE, 8);
        printf("%s: a call takes %zd of two pages, of the second one %zd %s\n", section, all, last, strerror(errno));
        close(out), close(sink[0]), close(sink[1]);
    }
}

/* Pages that are written are the program's own, until they are thrown away. */
static void section_written(void)
{
    make_file(0);
    map(PROT_READ | PROT_WRITE, MAP_PRIVATE, size);
    for (size_t page = 0; page < pages; page += 3) {
        if (page % 2) (void)*(volatile unsigned char *)(mapped + page * PAGE);
        fill((uint64_t *)(mapped + page * PAGE), page, 7);
    }
    for (int turn = 0; turn < 2; turn++) {
        for (size_t page = 0; page < pages; page++) CHECK(is_right(mapped, page, page % 3 ? 0 : 7));
    }
    CHECK(madvise(mapped + size / 4, size / 2, MADV_DONTNEED) == 0);
    for (size_t page = 0; page < pages; page++) {
        int thrown = page >= pages / 4 && page < pages / 4 + pages / 2;
        if (!is_right(mapped, page, page % 3 || thrown ? 0 : 7)) die("page %zu", page);
    }
    /* The file has none of it. */
    int fd = open(path, O_RDONLY);
    static unsigned char buffer[PAGE];
    for (size_t page = 0; page < pages; page += 97) {
        CHECK(pread(fd, buffer, PAGE, page * PAGE) == (ssize_t)PAGE);
        CHECK(is_right(buffer, 0, 0) == (page == 0) && is_right(buffer - page * PAGE, page, 0));
    }
    close(fd);
}

/* What calls do. Parts go, rights change, mappings move and grow. */
static void section_calls(void)
{
    make_file(0);
    for (int flags = MAP_SHARED; flags <= MAP_PRIVATE; flags++) {
        map(PROT_READ, flags, size);
        check_all(0, pages / 2, 0);
        /* read by the kernel: pages that are out come in */
        int out = open(path, O_RDONLY), sink[2];
        static unsigned char buffer[64 * PAGE];
        CHECK(pipe(sink) == 0);
        for (size_t page = pages - 16; page > pages / 2; page -= 97) {
            CHECK(write(sink[1], mapped + page * PAGE, 8 * PAGE) == 8 * PAGE && read(sink[0], buffer, 8 * PAGE) == 8 * PAGE);
            CHECK(memcmp(buffer, mapped + page * PAGE, 8 * PAGE) == 0);
        }
        ssize_t into = read(out, mapped, PAGE);
        printf("%s: read into it: %zd %s\n", section, into, strerror(errno));
        CHECK(mprotect(mapped + 16 * PAGE, 16 * PAGE, PROT_NONE) == 0 && mprotect(mapped + 16 * PAGE, 16 * PAGE, PROT_READ) == 0);
        check_all(0, 64, 0);
        errno = 0;
        int writable = mprotect(mapped + 100 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE);
        printf("%s: to be written: %d %s\n", section, writable, strerror(errno));
        check_all(90, 120, 0);
        if (writable == 0) {
            fill((uint64_t *)(mapped + 101 * PAGE), 101, 9);
            CHECK(is_right(mapped, 101, 9) && is_right(mapped, 102, 0));
        }
        static const int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_DONTFORK,
                                      MADV_DOFORK, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK, MADV_KEEPONFORK,
                                      20 /* COLD */, 21 /* PAGEOUT */, 22, 23 /* POPULATE */, 24 /* DONTNEED_LOCKED */, 102, 103 /* GUARD */ };
        for (size_t n = 0; n < sizeof advice / sizeof *advice; n++) {
            unsigned char *at = mapped + (200 + 20 * n) * PAGE;
            errno = 0;
            int answer = madvise(at, 8 * PAGE, advice[n]);
            printf("%s: advice %d: %d %s\n", section, advice[n], answer, strerror(errno));
            if (advice[n] != 102) check_all(200 + 20 * n, 210 + 20 * n, 0);
        }
        CHECK(msync(mapped, size, MS_SYNC) == 0 && msync(mapped, size, MS_ASYNC | MS_INVALIDATE) == 0);
        CHECK(mlock(mapped + 900 * PAGE, 4 * PAGE) == 0);
        check_all(890, 910, 0);
        CHECK(munlock(mapped + 900 * PAGE, 4 * PAGE) == 0);
        CHECK(munmap(mapped + 1000 * PAGE, 24 * PAGE) == 0);
        check_all(990, 1000, 0), check_all(1024, 1040, 0);
        unsigned char *anonymous = mmap(mapped + 1000 * PAGE, 24 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(anonymous == mapped + 1000 * PAGE && anonymous[5] == 0);
        memset(anonymous, 3, 24 * PAGE);
        CHECK(mmap(mapped + 1100 * PAGE, 64 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, out, 0) == mapped + 1100 * PAGE);
        CHECK(is_right(mapped + 1100 * PAGE, 0, 0) && is_right(mapped + 1100 * PAGE, 63, 0) && is_right(mapped, 1164, 0));
        /* moved, and grown */
        unsigned char *part = mremap(mapped + 1200 * PAGE, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
        CHECK(part == mapped + 1200 * PAGE);
        unsigned char *room = mmap(NULL, 256 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        part = mremap(part, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
        CHECK(part == room);
        for (size_t n = 0; n < 128; n++) CHECK(is_right(part - 1200 * PAGE, 1200 + n, 0));
        CHECK(munmap(part, 128 * PAGE) == 0);
        /* shrunk */
        CHECK(mremap(mapped + 1400 * PAGE, (pages - 1400) * PAGE, (pages - 1500) * PAGE, 0) == mapped + 1400 * PAGE);
        check_all(1400, pages - 100, 0);
        CHECK(anonymous[24 * PAGE - 1] == 3);
        CHECK(munmap(mapped, size) == 0);
        close(out), close(sink[0]), close(sink[1]);
    }
}

/* Children have what their parent has, and write for themselves. */
static void section_children(void)
{
    make_file(0);
    unsigned char *shared;
    map(PROT_READ, MAP_SHARED, size), shared = mapped;
    map(PROT_READ | PROT_WRITE, MAP_PRIVATE, size);
    for (size_t page = 0; page < pages; page += 5) fill((uint64_t *)(mapped + page * PAGE), page, 1);
    for (int depth = 0; depth < 2; depth++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            for (size_t page = 0; page < pages; page++) CHECK(is_right(mapped, page, page % 5 ? 0 : (uint64_t)depth + 1) && is_right(shared, page, 0));
            int status;
            CHECK(waitpid(child, &status, 0) == child);
            if (depth > 0) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
            printf("%s: %d\n", section, status);
            return;
        }
        for (size_t page = 0; page < pages; page += 5) {
            CHECK(is_right(mapped, page, (uint64_t)depth + 1));
            fill((uint64_t *)(mapped + page * PAGE), page, (uint64_t)depth + 2);
        }
        for (size_t page = 0; page < pages; page++) CHECK(is_right(mapped, page, page % 5 ? 0 : (uint64_t)depth + 2) && is_right(shared, page, 0));
    }
    _exit(0);
}

/* Writes version `version` to every page from `from` on, in steps. Waits until it may. */
static void rewrite(size_t from, size_t step, uint64_t version)
{
    static uint64_t buffer[PAGE / 8];
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0);
    for (size_t page = from; page < pages; page += step) {
        fill(buffer, page, version);
        CHECK(pwrite(fd, buffer, PAGE, (off_t)(page * PAGE)) == (ssize_t)PAGE);
    }
    CHECK(close(fd) == 0);
}

/* In another process: which runs no code of this test's between fork and exec but this. */
static void elsewhere(void (*what)(void))
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        munmap(mapped, size);
        what();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void rewrite_all(void) { rewrite(0, 1, 2); }
static void rewrite_some(void) { rewrite(0, 2, 2); }
static void make_shorter(void) { CHECK(truncate(path, (off_t)(size / 2)) == 0); }

/* Another process writes: a shared mapping shows it, everywhere. */
static void section_writer(void)
{
    make_file(0);
    map(PROT_READ, MAP_SHARED, size);
    check_all(0, pages, 0);
    elsewhere(rewrite_all);
    check_all(0, pages, 2);
    /* A new mapping is as the first was. */
    CHECK(munmap(mapped, size) == 0);
    map(PROT_READ, MAP_SHARED, size);
    check_all(0, pages, 2);
    elsewhere(rewrite_all);
    check_all(0, pages, 2);
}

/* This process does, in its only thread. */
static void section_own(void)
{
    make_file(0);
    map(PROT_READ, MAP_SHARED, size);
    check_all(0, pages, 0);
    rewrite(0, 2, 5);
    for (size_t page = 0; page < pages; page++) CHECK(is_right(mapped, page, page % 2 ? 0 : 5));
}

/* A private mapping keeps what the program has written to it. */
static void section_privatewriter(void)
{
    make_file(0);
    map(PROT_READ | PROT_WRITE, MAP_PRIVATE, size);
    for (size_t page = 0; page < pages; page += 7) fill((uint64_t *)(mapped + page * PAGE), page, 3);
    check_all(1, 7, 0);
    elsewhere(rewrite_some);
    for (size_t page = 0; page < pages; page++) {
        if (page % 7 == 0) CHECK(is_right(mapped, page, 3));
        else if (page % 2) CHECK(is_right(mapped, page, 0));
        else CHECK(is_right(mapped, page, 0) || is_right(mapped, page, 2));
    }
    /* Thrown away, it is the file's. */
    CHECK(madvise(mapped, size, MADV_DONTNEED) == 0);
    for (size_t page = 0; page < pages; page++) CHECK(is_right(mapped, page, page % 2 ? 0 : 2));
}

/* The file becomes shorter. */
static void section_truncated(void)
{
    make_file(0);
    for (int flags = MAP_SHARED; flags <= MAP_PRIVATE; flags++) {
        map(PROT_READ, flags, size);
        check_all(pages / 4, pages / 3, 0);
        if (flags == MAP_SHARED) elsewhere(make_shorter);
        check_all(0, pages / 2, 0);
        printf("%s: beyond the end: %d %d, before it %d\n", section, touch(mapped + size / 2), touch(mapped + size - PAGE), touch(mapped + size / 2 - PAGE));
        CHECK(munmap(mapped, size) == 0);
    }
}

static volatile int stop;
static const unsigned char *read_by_all;

static void *reader(void *seed)
{
    struct rng rng = { (uintptr_t)seed };
    size_t seen = 0;
    while (!stop || seen < 2000) {
        size_t page = rng_below(&rng, pages);
        CHECK(is_right(read_by_all, page, 0));
        seen++;
    }
    return NULL;
}

/* Threads read, while somebody opens the file for writing again and again, and it is mapped anew. */
static void section_threads(void)
{
    make_file(0);
    map(PROT_READ, MAP_SHARED, size);
    read_by_all = mapped;
    pthread_t threads[4];
    for (uintptr_t n = 0; n < 4; n++) CHECK(pthread_create(&threads[n], NULL, reader, (void *)(n + 1)) == 0);
    for (int turn = 0; turn < 10; turn++) {
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0 && close(fd) == 0);
        unsigned char *first = mapped;
        map(PROT_READ, MAP_SHARED, size);
        check_anywhere(500, (uint64_t)turn);
        unsigned char *second = mapped;
        mapped = first;
        CHECK(munmap(second, size) == 0);
        usleep(10000);
    }
    stop = 1;
    for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
}

/* A child has a mapping when its parent's file is written; and when its parent is gone. */
static void section_familywriter(void)
{
    make_file(0);
    map(PROT_READ, MAP_SHARED, size);
    check_all(0, pages / 2, 0);
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        check_all(pages / 3, pages, 0);
        CHECK(write(done[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
        check_all(0, pages, 4);
        _exit(0);
    }
    char byte;
    CHECK(read(done[0], &byte, 1) == 1);
    rewrite(0, 1, 4);
    CHECK(write(go[1], "x", 1) == 1);
    check_all(0, pages, 4);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s: %d\n", section, status);
}

/* The same file, mapped in pieces; descriptors are gone; there are many mappings. */
static void section_pieces(void)
{
    make_file(0);
    unsigned char *pieces[64];
    size_t each = pages / 64;
    for (int turn = 0; turn < 3; turn++) {
        int fd = open(path, O_RDONLY);
        for (size_t n = 0; n < 64; n++) {
            pieces[n] = mmap(NULL, each * PAGE, PROT_READ, n % 2 ? MAP_PRIVATE : MAP_SHARED, fd, (off_t)(n * each * PAGE));
            CHECK(pieces[n] != MAP_FAILED);
        }
        close(fd);
        for (size_t n = 64; n-- > 0;) {
            for (size_t page = 0; page < each; page++) CHECK(is_right(pieces[n] - n * each * PAGE, n * each + page, 0));
        }
        for (size_t n = 0; n < 64; n++) CHECK(munmap(pieces[n], each * PAGE) == 0);
    }
    rewrite(0, 100, 1);
}

/* Mapped beyond the end of the file, moved as a whole, and grown. */
static void section_moves(void)
{
    make_file(100);
    for (int flags = MAP_SHARED; flags <= MAP_PRIVATE; flags++) {
        size_t length = size + 64 * PAGE;
        map(PROT_READ, flags, length);
        check_all(pages / 2, pages, 0);
        unsigned char *room = mmap(NULL, 2 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mapped = mremap(mapped, length, 2 * length, MREMAP_MAYMOVE | MREMAP_FIXED, room);
        CHECK(mapped == room);
        check_all(0, pages, 0);
        CHECK(mapped[size] == 'x' && mapped[size + 100] == 0 && touch(mapped + size + PAGE) == 1 && touch(mapped + 2 * length - 1) == 1);
        int fd = open(path, O_WRONLY | O_APPEND);
        static uint64_t buffer[PAGE / 8];
        CHECK(write(fd, buffer, PAGE) == (ssize_t)PAGE && close(fd) == 0);
        CHECK(touch(mapped + size + PAGE) == 0 && touch(mapped + size + PAGE + 99) == 0 && munmap(mapped, 2 * length) == 0);
        CHECK(truncate(path, (off_t)size + 100) == 0);
    }
}

/* A file that grows is mapped beyond its end, as some databases do. */
static void section_grows(void)
{
    make_file(0);
    map(PROT_READ, MAP_SHARED, 2 * size);
    check_all(0, pages, 0);
    static uint64_t buffer[PAGE / 8];
    for (size_t n = 0; n < 4; n++) {
        int fd = open(path, O_WRONLY | O_APPEND);
        for (size_t page = pages; page < pages + 64; page++) {
            fill(buffer, page, 0);
            CHECK(write(fd, buffer, PAGE) == (ssize_t)PAGE);
        }
        CHECK(close(fd) == 0);
        pages += 64;
        check_all(0, pages, 0);
        CHECK(touch(mapped + pages * PAGE) == 1);
    }
}

/* What a writer has begun and ended: versions of the whole file. */
struct progress { volatile uint64_t begun, ended; };

static void write_on(struct progress *progress, int turns)
{
    for (uint64_t version = 1; version <= (uint64_t)turns; version++) {
        progress->begun = version;
        rewrite(0, 1, version);
        progress->ended = version;
        usleep(30000);
    }
}

/* The version of a page, whose first and last words may be of two while it is written. */
static uint64_t version_of(const unsigned char *base, size_t page, size_t n, uint64_t from, uint64_t to)
{
    const uint64_t *at = (const uint64_t *)(base + page * PAGE);
    uint64_t seen = ((volatile const uint64_t *)at)[n];
    for (uint64_t version = from; version <= to; version++) {
        if (seen == word(page, n, version)) return version;
    }
    die("page %zu has bytes of no version from %lu to %lu", page, (unsigned long)from, (unsigned long)to);
}

static void *read_versions(void *of)
{
    struct progress *progress = of;
    struct rng rng = { (uintptr_t)&rng };
    while (!stop) {
        int fd = open(path, O_RDONLY);
        unsigned char *base = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(base != MAP_FAILED && close(fd) == 0);
        for (int n = 0; n < 3000 && !stop; n++) {
            size_t page = rng_below(&rng, pages), place = rng_below(&rng, PAGE / 8);
            uint64_t ended = progress->ended, seen = 0;
            (void)*(volatile unsigned char *)(base + page * PAGE);
            uint64_t now = *(volatile uint64_t *)(base + page * PAGE + place * 8), begun = progress->begun;
            for (seen = ended; seen <= begun && now != word(page, place, seen); seen++) continue;
            if (seen > begun) die("page %zu has bytes of no version from %lu to %lu", page, (unsigned long)ended, (unsigned long)begun);
        }
        CHECK(munmap(base, size) == 0);
    }
    return NULL;
}

/* Threads read a shared mapping, made anew now and then, while another process writes the file again and again: what was written before a
 * page is read shows, whatever becomes of the mapping meanwhile. Children read as well. */
static void section_versions(void)
{
    make_file(0);
    struct progress *progress = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(progress != MAP_FAILED);
    pid_t writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) {
        write_on(progress, 30);
        _exit(0);
    }
    pthread_t threads[3];
    for (int n = 0; n < 3; n++) CHECK(pthread_create(&threads[n], NULL, read_versions, progress) == 0);
    int status = 0, ended = 0;
    while (waitpid(writer, &ended, WNOHANG) == 0) {
        map(PROT_READ, MAP_SHARED, size);
        (void)version_of(mapped, pages / 2, 3, progress->ended, progress->ended + 30);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            stop = 0;
            for (size_t page = 0; page < pages; page += 11) {
                uint64_t before = progress->ended, now = *(volatile uint64_t *)(mapped + page * PAGE), begun = progress->begun, seen = before;
                while (seen <= begun && now != word(page, 0, seen)) seen++;
                if (seen > begun) die("in a child page %zu has bytes of no version from %lu to %lu", page, (unsigned long)before, (unsigned long)begun);
            }
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(munmap(mapped, size) == 0);
    }
    stop = 1;
    for (int n = 0; n < 3; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(ended == 0);
}

/* Waits with a mapping for a line of input, which says that the file has been written. */
static void section_asked(void)
{
    char line[16];
    make_file(0);
    map(PROT_READ, MAP_SHARED, size);
    check_all(0, pages, 0);
    printf("%s: ready\n", section);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) return;
    check_all(0, pages, 2);
    printf("%s: as it was written\n", section);
}

/* What a process that is not ours finds locked of the first byte: a lock for reading, one for writing, or none. */
static const char *locked_for(void)
{
    static const char *const kinds[] = { "nobody", "reading", "writing" };
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct flock asked = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
        int fd = open(path, O_RDONLY);
        _exit(fd < 0 || fcntl(fd, F_GETLK, &asked) != 0 ? 9 : asked.l_type == F_RDLCK ? 1 : asked.l_type == F_WRLCK ? 2 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 3);
    return kinds[WEXITSTATUS(status)];
}

static void show(const char *when, const char *who)
{
    printf("%s: %s: %s\n", section, when, who);
    fflush(stdout);
}

static void lock_it(int fd, int type)
{
    struct flock lock = { .l_type = (short)type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
}

static void *lock_and_unlock(void *stop)
{
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    while (!__atomic_load_n((int *)stop, __ATOMIC_ACQUIRE)) {
        lock_it(fd, F_RDLCK);
        if (strcmp(locked_for(), "reading") != 0) die("the lock is gone");
        lock_it(fd, F_UNLCK);
    }
    return NULL;
}

/* A record lock stays until the program itself closes the file, or unlocks it. */
static void section_recordlocks(void)
{
    make_file(0);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    /* Before the file is mapped. */
    lock_it(fd, F_RDLCK);
    CHECK((mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
    show("mapped", locked_for());
    check_all(0, pages, 0);
    CHECK(munmap(mapped, size) == 0);
    show("unmapped", locked_for());
    lock_it(fd, F_UNLCK);
    show("unlocked", locked_for());
    /* After it. */
    CHECK((mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
    check_all(0, pages / 2, 0);
    lock_it(fd, F_RDLCK);
    /* A child that has the same descriptors, and memory of its own. */
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) _exit(!is_right(mapped, 1, 0) || !is_right(mapped, pages - 1, 0));
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s: the child: %d\n", section, status);
    show("a child with the same descriptors", locked_for());
    CHECK(is_right(mapped, pages - 1, 0) && munmap(mapped, size) == 0);
    show("locked, unmapped", locked_for());
    CHECK((mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)) != MAP_FAILED);
    show("mapped again", locked_for());
    /* Somebody opens it for writing. */
    elsewhere(rewrite_all);
    check_all(0, pages, 2);
    show("written", locked_for());
    CHECK(munmap(mapped, size) == 0);
    /* One that can be written by this process. */
    int both = open(path, O_RDWR);
    CHECK(both >= 0);
    lock_it(both, F_WRLCK);
    CHECK((mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, both, 0)) != MAP_FAILED);
    check_all(0, pages, 2);
    show("for writing", locked_for());
    CHECK(munmap(mapped, size) == 0 && close(both) == 0);
    show("closed", locked_for());
    /* Beside mappings that come and go. */
    int stop = 0;
    pthread_t locker;
    CHECK(pthread_create(&locker, NULL, lock_and_unlock, &stop) == 0);
    for (int round = 0; round < 200; round++) {
        unsigned char *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED && is_right(at, (size_t)round, 2) && munmap(at, size) == 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(locker, NULL) == 0);
}

static void section_make(void) { make_file(0); }
static void section_rewrite(void) { make_file(0); rewrite_all(); }

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "private", section_private }, { "shared", section_shared }, { "populated", section_populated }, { "tail", section_tail },
    { "written", section_written }, { "calls", section_calls }, { "children", section_children }, { "writer", section_writer },
    { "own", section_own }, { "privatewriter", section_privatewriter }, { "truncated", section_truncated }, { "threads", section_threads },
    { "familywriter", section_familywriter }, { "pieces", section_pieces }, { "moves", section_moves }, { "grows", section_grows },
    { "recordlocks", section_recordlocks }, { "versions", section_versions }, { "asked", section_asked }, { "make", section_make }, { "rewrite", section_rewrite },
};

int main(int argc, char **argv)
{
    size_t count = sizeof sections / sizeof *sections;
    for (size_t n = 0; argc == 2 && n < count; n++) puts(sections[n].name);
    if (argc != 3) return argc == 2 ? 0 : 2;
    section = argv[2];
    size = strtoul(argv[1], NULL, 10) * MIB;
    pages = size / PAGE;
    alarm(100);
    for (size_t n = 0; n < count; n++) {
        if (strcmp(sections[n].name, section) != 0) continue;
        sections[n].run();
        if (!getenv("MAPPED_FILE")) unlink(path);
        printf("%s: done\n", section);
        return 0;
    }
    die("no section %s", section);
}
