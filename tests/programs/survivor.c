/* Threads that live on when memory cannot be had: each catches its own SIGBUS and tries again.
 *
 *     survivor THREADS PAGES ROUNDS HOW
 *
 * Each thread fills its pages with patterns and goes over them at random. HOW is what it does about SIGBUS: `jump` (siglongjmp out of
 * the handler, then the page once more), `return` (the access is made again), or `calls` (pages are read by pwrite(2) into a
 * file, which must fail with EFAULT and nothing else, without any signal; only checks touch them). Whatever comes, a word that is read
 * must be the one that was written. On stdout: `right`, and how many signals and errors there were (which a driver judges).
 *
 * Natively there is no SIGBUS and no error. */
#include "common.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t jump;
static __thread unsigned char *volatile touched, *volatile own;
static atomic_ulong signals_seen, errors_seen, started;
static size_t pages;
static int threads, rounds;
static const char *how;

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    unsigned char *at = info->si_addr;
    if (number != SIGBUS || info->si_code != BUS_ADRERR) die("signal %d with si_code %d", number, info->si_code);
    atomic_fetch_add(&signals_seen, 1);
    /* Of libc's heap, or what another thread has: once more. */
    if (own == NULL || at < own || at >= own + pages * PAGE) return;
    if (at < touched || at >= touched + PAGE) die("si_addr %p is not in the page at %p", (void *)at, (void *)touched);
    if (jump) siglongjmp(back, 1);
}

/* The word at the start of a page, however often that takes. */
static uint64_t word_of(unsigned char *page)
{
    jump = strcmp(how, "return") != 0;
    touched = page;
    while (sigsetjmp(back, 1) != 0) {}
    return *(volatile uint64_t *)page;
}

static void set_word(unsigned char *page, uint64_t value)
{
    jump = strcmp(how, "return") != 0;
    touched = page;
    while (sigsetjmp(back, 1) != 0) {}
    *(volatile uint64_t *)page = value;
}

static void by_call(int file, unsigned char *page, uint64_t expected)
{
    for (;;) {
        ssize_t done = pwrite(file, page, PAGE, 0);
        if (done == (ssize_t)PAGE) break;
        if (done >= 0 || errno != EFAULT) die("pwrite of a page answers %zd", done);
        atomic_fetch_add(&errors_seen, 1);
    }
    uint64_t there = 0;
    if (pread(file, &there, sizeof there, 0) != sizeof there || there != expected) die("pwrite has written other bytes");
}

static void *work(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument, random = id + 1;
    unsigned char *area = map_anonymous(pages * PAGE);
    own = area;
    /* Shared: memory that is always there. */
    uint64_t *expected = mmap(NULL, pages * sizeof *expected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("survivor", 0);
    if (expected == MAP_FAILED || file < 0) die("no memory or no file");
    atomic_fetch_add(&started, 1);
    for (size_t i = 0; i < pages; i++) {
        expected[i] = mix(id << 32 | i);
        set_word(area + i * PAGE, expected[i]);
    }
    for (size_t n = 0; n < pages * (size_t)rounds; n++) {
        random = mix(random);
        size_t i = random % pages;
        unsigned char *page = area + i * PAGE;
        if (strcmp(how, "calls") == 0) {
            by_call(file, page, expected[i]);
        } else if (word_of(page) != expected[i]) {
            die("page %zu holds other bytes", i);
        }
        if (random >> 40 & 1) {
            expected[i] = mix(expected[i]);
            set_word(page, expected[i]);
        }
    }
    for (size_t i = 0; i < pages; i++) {
        if (word_of(area + i * PAGE) != expected[i]) die("page %zu holds other bytes in the end", i);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5) die("usage: survivor THREADS PAGES ROUNDS jump|return|calls");
    threads = atoi(argv[1]), pages = (size_t)atoll(argv[2]), rounds = atoi(argv[3]), how = argv[4];
    if (threads < 1 || threads > 64 || pages < 1 || rounds < 1) die("1 to 64 threads, 1 page and 1 round or more");
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGBUS, &action, NULL) != 0) die("sigaction");
    pthread_t ids[64];
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)i) != 0) die("pthread_create");
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    printf("right %lu %lu\n", atomic_load(&signals_seen), atomic_load(&errors_seen));
    return 0;
}
