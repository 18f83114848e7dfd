/* Processes that fork, and check after every step that each sees the memory that it should, whatever the others write or give up.
 *
 *     forks MIB SEED [SECTION...]
 *
 * The memory is one area whose pages follow from (page, version); a child that writes a page raises its version, in its
 * own record alone. A page of a relative, an older version or zeros is found by the next check. With names of sections only these are
 * done. Prints a line a section, and ends with 0 if all is right; a child that finds a wrong byte says so on stderr and ends with 98. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

static size_t pages;
static unsigned char *area;
static uint32_t *version; /* version 0: zeros */
static uint64_t seed;

static uint64_t word_of(size_t page, uint32_t v, size_t word)
{
    return v == 0 ? 0 : mix(page * 1000003 + v * 7919 + seed) + word * 0x9e3779b97f4a7c15u;
}

static void write_page(size_t page, uint32_t v)
{
    uint64_t *at = (uint64_t *)(area + page * PAGE);
    for (size_t i = 0; i < PAGE / 8; i++) at[i] = word_of(page, v, i);
    version[page] = v;
}

static void check_page(size_t page, const char *who)
{
    const uint64_t *at = (const uint64_t *)(area + page * PAGE);
    for (size_t i = 0; i < PAGE / 8; i++)
        if (at[i] != word_of(page, version[page], i)) {
            fprintf(stderr, "%s (pid %d): page %zu word %zu is %#llx and not %#llx (version %u)\n", who, getpid(), page, i,
                    (unsigned long long)at[i], (unsigned long long)word_of(page, version[page], i), version[page]);
            _exit(98);
        }
}

static void check_all(const char *who)
{
    for (size_t i = 0; i < pages; i++) check_page(i, who);
}

/* Writes every `step`th page from `first` on, as version `v`. */
static void rewrite(size_t first, size_t step, uint32_t v)
{
    for (size_t i = first; i < pages; i += step) write_page(i, v);
}

static void expect_child(pid_t child, int status, const char *what)
{
    int got;
    if (child < 0) die("%s: fork", what);
    if (waitpid(child, &got, 0) != child) die("%s: waitpid", what);
    if (got != status) {
        fprintf(stderr, "failed: %s: a child ended with status %#x\n", what, got);
        exit(1);
    }
}

/* Both write at the same time, and check all the while. */
static void both_write(void)
{
    for (uint32_t round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            check_all("child, before it wrote");
            rewrite(1, 2, 1000 + round);
            check_all("child");
            rewrite(0, 3, 2000 + round);
            check_all("child again");
            _exit(7);
        }
        rewrite(0, 2, 10 + round);
        check_all("parent");
        rewrite(0, 5, 20 + round);
        expect_child(child, 7 << 8, "both write");
        check_all("parent, after its child");
    }
}

/* A child of a child of a child: each has changed some pages. */
static void generations(void)
{
    pid_t first = fork();
    if (first == 0) {
        for (uint32_t depth = 0; depth < 20; depth++) {
            rewrite(depth, 20, 100 + depth);
            pid_t child = fork();
            if (child != 0) {
                /* The parent goes on changing what its child must not see, and may end before it. */
                rewrite(depth % 3, 7, 5000 + depth);
                if (depth % 2 == 0) check_all("an ancestor");
                expect_child(child, 0, "generations");
                check_all("an ancestor, later");
                _exit(0);
            }
            check_page(depth, "a descendant");
        }
        check_all("the last descendant");
        _exit(0);
    }
    expect_child(first, 0, "generations");
    check_all("the first");
}

/* Each generation forks the next and ends. */
static void chain(void)
{
    int done[2];
    if (pipe(done) != 0) die("pipe");
    pid_t first = fork();
    if (first == 0) {
        for (uint32_t depth = 0; depth < 40; depth++) {
            rewrite(depth % 11, 11, 300 + depth);
            pid_t child = fork();
            if (child < 0) die("chain: fork");
            if (child != 0) _exit(0);
        }
        check_all("the end of the chain");
        if (write(done[1], "x", 1) != 1) _exit(97);
        _exit(0);
    }
    close(done[1]);
    expect_child(first, 0, "chain");
    char byte = 0;
    if (read(done[0], &byte, 1) != 1 || byte != 'x') die("the chain broke");
    close(done[0]);
    check_all("the first of the chain");
}

/* Many at once, as a server with workers. */
static void workers(void)
{
    enum { N = 6 };
    pid_t child[N];
    for (uint32_t n = 0; n < N; n++) {
        child[n] = fork();
        if (child[n] == 0) {
            for (uint32_t round = 0; round < 3; round++) {
                rewrite(n, N, 700 + 10 * n + round);
                check_all("a worker");
            }
            _exit((int)n);
        }
        rewrite(n, 13, 60 + n);
    }
    for (int n = 0; n < N; n++) expect_child(child[n], n << 8, "workers");
    check_all("the workers' parent");
}

/* One after the other, each of which ends soon, while the parent changes its memory. */
static void short_lived(void)
{
    for (uint32_t n = 0; n < 120; n++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t i = n; i < pages; i += 37) check_page(i, "a short child");
            if (n % 3 == 0) kill(getpid(), SIGKILL);
            if (n % 3 == 1) {
                execl("/bin/true", "true", (char *)NULL);
                _exit(96);
            }
            _exit(0);
        }
        rewrite(n % 16, 16, 800 + n);
        expect_child(child, n % 3 == 0 ? SIGKILL : 0, "short-lived");
    }
    check_all("their parent");
}

/* The child gives up, maps, moves and protects memory. */
static void memory_calls(void)
{
    pid_t child = fork();
    if (child == 0) {
        size_t half = pages / 2;
        if (madvise(area, half / 2 * PAGE, MADV_DONTNEED) != 0) die("madvise");
        for (size_t i = 0; i < half / 2; i++) version[i] = 0;
        check_all("a child that has given pages up");
        unsigned char *moved = mremap(area + half * PAGE, (pages - half) * PAGE, (pages - half + 64) * PAGE, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) die("mremap");
        for (size_t i = half; i < pages; i++) {
            const uint64_t *at = (const uint64_t *)(moved + (i - half) * PAGE);
            for (size_t w = 0; w < PAGE / 8; w += 61)
                if (at[w] != word_of(i, version[i], w)) {
                    fprintf(stderr, "page %zu is wrong after mremap in a child\n", i);
                    _exit(98);
                }
        }
        if (mprotect(area, half * PAGE, PROT_READ) != 0) die("mprotect");
        for (size_t i = 0; i < half; i++) check_page(i, "a child with protected memory");
        if (mprotect(area, half * PAGE, PROT_READ | PROT_WRITE) != 0) die("mprotect");
        for (size_t i = 0; i < half; i += 3) write_page(i, 900);
        for (size_t i = 0; i < half; i++) check_page(i, "a child that wrote after it");
        unsigned char *fresh = map_anonymous(half * PAGE);
        memset(fresh, 5, half * PAGE);
        munmap(area, half * PAGE);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (size_t i = 0; i < half * PAGE; i += 511) if (fresh[i] != 5) _exit(98);
            _exit(0);
        }
        expect_child(grandchild, 0, "memory calls' grandchild");
        _exit(0);
    }
    expect_child(child, 0, "memory calls");
    check_all("the parent of memory calls");
}

/* fork from several threads at once, while others write. */
static volatile int stop_writing;

static void *writer(void *argument)
{
    /* Its own part of the area: nobody else writes it, and its record is not looked at by children. */
    size_t from = (size_t)argument;
    struct rng rng = {from};
    while (!stop_writing) {
        size_t page = from + rng_below(&rng, pages / 8);
        write_page(page, (uint32_t)rng_below(&rng, 1 << 20) + 1);
    }
    return NULL;
}

static void *forker(void *argument)
{
    size_t n = (size_t)argument;
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        if (child == 0) {
            /* The quarter that nobody writes. */
            for (size_t i = pages / 2; i < pages; i++) check_page(i, "a child of a thread");
            for (size_t i = pages / 2; i < pages; i += 3) write_page(i, (uint32_t)(40000 + n));
            for (size_t i = pages / 2; i < pages; i++) check_page(i, "a child of a thread that wrote");
            _exit(0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return (void *)1;
    }
    return NULL;
}

static void threads(void)
{
    pthread_t writers[2], forkers[3];
    stop_writing = 0;
    for (size_t n = 0; n < 2; n++) pthread_create(&writers[n], NULL, writer, (void *)(n * (pages / 8)));
    for (size_t n = 0; n < 3; n++) pthread_create(&forkers[n], NULL, forker, (void *)n);
    void *failed = NULL;
    for (size_t n = 0; n < 3; n++) {
        void *one;
        pthread_join(forkers[n], &one);
        if (one) failed = one;
    }
    stop_writing = 1;
    for (size_t n = 0; n < 2; n++) pthread_join(writers[n], NULL);
    if (failed) die("a child of a thread failed");
    check_all("the threads' process");
}

/* fork in a signal handler that has interrupted a system call with a buffer in the area. */
static int ends[2];
static volatile sig_atomic_t handled;

static void on_alarm(int signal)
{
    (void)signal;
    pid_t child = fork();
    if (child == 0) {
        check_all("a child made in a handler");
        handled = 2;
        if (write(ends[1], "child of the handler", 20) != 20) _exit(95);
        return; /* goes on with the interrupted read */
    }
    expect_child(child, 0, "fork in a handler");
    handled = 1;
    if (write(ends[1], "parent of the handler", 21) != 21) _exit(95);
}

static void in_a_handler(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    if (pipe(ends) != 0) die("pipe");
    handled = 0;
    ualarm(50000, 0);
    unsigned char *buffer = area + 100 * PAGE + 4000;
    version[100] = version[101] = 0; /* not checked any more */
    memset(area + 100 * PAGE, 0, 2 * PAGE);
    ssize_t got = read(ends[0], buffer, 4096);
    if (handled == 2) {
        if (got != 20 || memcmp(buffer, "child of the handler", 20) != 0) _exit(94);
        memset(area + 100 * PAGE, 0, 2 * PAGE);
        check_all("the handler's child, behind it");
        _exit(0);
    }
    if (handled != 1 || got != 21 || memcmp(buffer, "parent of the handler", 21) != 0) die("read gave %zd", got);
    memset(area + 100 * PAGE, 0, 2 * PAGE);
    close(ends[0]);
    close(ends[1]);
    signal(SIGALRM, SIG_DFL);
    check_all("the handler's process");
}

/* fork in a signal handler, at any instruction of small reads and writes: the child goes on with the call that was interrupted, and makes more. */
static volatile sig_atomic_t generation;

static void forks_anywhere(int signal)
{
    (void)signal;
    int saved = errno;
    pid_t child = fork();
    if (child == 0) {
        generation++;
        errno = saved;
        return;
    }
    expect_child(child, 0, "fork at any moment");
    handled++;
    errno = saved;
}

static void at_any_moment(void)
{
    struct sigaction action = {.sa_handler = forks_anywhere, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    size_t buffers = pages / 4;
    for (size_t i = 0; i < buffers; i++) version[i] = 0; /* not checked any more */
    memset(area, 0, buffers * PAGE);
    int forks = 0;
    for (uint64_t round = 0; forks < 150; round++) {
        handled = 0;
        ualarm((useconds_t)(100 + mix(round + seed) % 400), 0);
        while (!handled) {
            for (size_t i = 0; i < 64 && !handled; i++) {
                unsigned char *buffer = area + mix(round * 64 + i) % (buffers - 2) * PAGE + 3000 * (i % 2);
                if (read(zero, buffer, 2000) != 2000 || write(zero, buffer, 2000) != 2000) _exit(95);
            }
            if (generation > 0) {
                check_all("a child made at any moment");
                _exit(0);
            }
        }
        forks += handled;
    }
    signal(SIGALRM, SIG_DFL);
    close(zero);
    check_all("the parent of children made at any moment");
}

/* Other ways to make a process. */
static int in_clone(void *argument)
{
    (void)argument;
    check_all("a clone");
    rewrite(2, 9, 4321);
    check_all("a clone that wrote");
    return 5;
}

static void other_ways(void)
{
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
        _exit(96);
    }
    expect_child(child, 3 << 8, "vfork");
    char *arguments[] = {"sh", "-c", "exit 4", NULL};
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) != 0) die("posix_spawn");
    expect_child(child, 4 << 8, "posix_spawn");
    if (system("exit 6") != 6 << 8) die("system");
    int flags[] = {SIGCHLD, SIGCHLD | CLONE_FS, SIGCHLD | CLONE_FILES, SIGCHLD | CLONE_FILES | CLONE_FS, SIGCHLD | CLONE_IO};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        unsigned char *stack = map_anonymous(MIB);
        child = clone(in_clone, stack + MIB, flags[i], NULL);
        expect_child(child, 5 << 8, "clone");
        munmap(stack, MIB);
    }
    child = (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, NULL, NULL, 0L);
    if (child == 0) {
        check_all("a child of the bare call");
        _exit(8);
    }
    expect_child(child, 8 << 8, "clone as fork");
    /* A child that the kernel reports to nobody. */
    child = clone(in_clone, (unsigned char *)map_anonymous(MIB) + MIB, 0, NULL);
    int status;
    if (child < 0 || waitpid(child, &status, __WCLONE) != child || status != 5 << 8) die("clone without a signal");
    check_all("the parent of clones");
}

struct section { const char *name; void (*run)(void); };

static const struct section sections[] = {
    {"both", both_write}, {"generations", generations}, {"chain", chain}, {"workers", workers}, {"short", short_lived},
    {"memory", memory_calls}, {"threads", threads}, {"handler", in_a_handler}, {"anywhere", at_any_moment}, {"ways", other_ways},
};

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: forks MIB SEED [SECTION...]");
    pages = parse_size(argv[1]) * (parse_size(argv[1]) < MIB ? MIB : 1) / PAGE;
    seed = parse_size(argv[2]);
    area = map_anonymous(pages * PAGE);
    version = map_anonymous(pages * sizeof *version);
    rewrite(0, 1, 1);
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        int wanted = argc == 3;
        for (int i = 3; i < argc; i++) wanted |= strcmp(argv[i], sections[s].name) == 0;
        if (!wanted) continue;
        sections[s].run();
        check_all(sections[s].name);
        printf("%s: right\n", sections[s].name);
        fflush(stdout);
    }
    return 0;
}
