/* How calls that flush TLBs overlap: threads of one process take pages of their own away at the same time, by the two calls of Farshore's evictors.
 *
 *     flushes protect|unmap THREADS PAGES SIZE PASSES
 *
 * Each thread has SIZE bytes of its own, all present and known to the TLB, and takes them away PAGES at a time: `protect` by UFFDIO_WRITEPROTECT,
 * `unmap` by MADV_DONTNEED. All begin at once. So that each call has someone to interrupt, threads that only touch memory run on the cores that are
 * left. After each pass the pages are looked up in /proc/self/pagemap: one that is not protected, or still present, ends the program.
 *
 * Prints the pages a second of each pass, of all threads together: from the first call to the end of the last. */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
/* Bits of an entry of pagemap. */
#define PRESENT (1ULL << 63)
#define PROTECTED (1ULL << 57)
#define MOST_THREADS 64
#define MOST_PAGES 512

struct worker {
    pthread_t thread;
    unsigned char *memory;
    uint64_t begun, ended;
};

static struct worker workers[MOST_THREADS];
static size_t size, pages_a_call;
static int passes, protects, faults_fd = -1, pagemap = -1;
static pthread_barrier_t ready, done;
static atomic_int over;

/* A page of memory that stays: what a thread of the program touches all the time. */
static void *touch(void *unused)
{
    (void)unused;
    volatile unsigned char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    while (!atomic_load_explicit(&over, memory_order_relaxed)) memory[0]++;
    return NULL;
}

static void protect(unsigned char *from, size_t bytes, int on)
{
    struct uffdio_writeprotect call = {
        .range = {.start = (uintptr_t)from, .len = bytes},
        .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
    };
    if (ioctl(faults_fd, UFFDIO_WRITEPROTECT, &call) != 0) die("UFFDIO_WRITEPROTECT");
}

/* Ends the program if a pass has not done what it is timed for. */
static void check(const unsigned char *memory)
{
    static __thread uint64_t entries[MOST_PAGES];
    for (size_t at = 0; at < size; at += sizeof entries / sizeof *entries * PAGE) {
        size_t count = (size - at) / PAGE < MOST_PAGES ? (size - at) / PAGE : MOST_PAGES;
        off_t place = (off_t)((uintptr_t)(memory + at) / PAGE * sizeof *entries);
        if (pread(pagemap, entries, count * sizeof *entries, place) != (ssize_t)(count * sizeof *entries)) die("/proc/self/pagemap");
        for (size_t page = 0; page < count; page++) {
            int right = protects ? (entries[page] & (PRESENT | PROTECTED)) == (PRESENT | PROTECTED) : !(entries[page] & PRESENT);
            if (!right) die("page %zu is %#llx after the calls", at / PAGE + page, (unsigned long long)entries[page]);
        }
    }
}

static void *work(void *argument)
{
    struct worker *self = argument;
    size_t step = pages_a_call * PAGE;
    for (int pass = 0; pass < passes; pass++) {
        if (protects) protect(self->memory, size, 0);
        for (size_t at = 0; at < size; at += PAGE) self->memory[at] = (unsigned char)(pass + 1);
        pthread_barrier_wait(&ready);
        self->begun = now_ns();
        for (size_t at = 0; at < size; at += step) {
            if (protects) protect(self->memory + at, step, 1);
            else if (madvise(self->memory + at, step, MADV_DONTNEED) != 0) die("MADV_DONTNEED");
        }
        self->ended = now_ns();
        pthread_barrier_wait(&done);
        /* The main thread reads the times here. */
        pthread_barrier_wait(&done);
        check(self->memory);
    }
    return NULL;
}

static void open_faults(void)
{
    faults_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (faults_fd < 0) die("userfaultfd");
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    if (ioctl(faults_fd, UFFDIO_API, &api) != 0) die("UFFDIO_API");
}

static unsigned char *memory_of_a_thread(void)
{
    unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die("mmap of %zu bytes", size);
    /* Entries of single pages, as Farshore has them. */
    if (madvise(memory, size, MADV_NOHUGEPAGE) != 0 && errno != EINVAL) die("MADV_NOHUGEPAGE");
    if (protects) {
        struct uffdio_register call = {.range = {.start = (uintptr_t)memory, .len = size}, .mode = UFFDIO_REGISTER_MODE_WP};
        if (ioctl(faults_fd, UFFDIO_REGISTER, &call) != 0) die("UFFDIO_REGISTER");
    }
    return memory;
}

int main(int argc, char **argv)
{
    if (argc != 6 || (strcmp(argv[1], "protect") != 0 && strcmp(argv[1], "unmap") != 0)) die("usage: flushes protect|unmap THREADS PAGES SIZE PASSES");
    protects = strcmp(argv[1], "protect") == 0;
    int threads = atoi(argv[2]);
    pages_a_call = (size_t)atoi(argv[3]);
    size = parse_size(argv[4]);
    passes = atoi(argv[5]);
    if (threads < 1 || threads > MOST_THREADS || pages_a_call < 1 || pages_a_call > MOST_PAGES || passes < 1) die("1 to 64 threads, 1 to 512 pages, a pass or more");
    if (size == 0 || size % (pages_a_call * PAGE) != 0) die("%zu bytes are no whole number of calls of %zu pages", size, pages_a_call);
    if (protects) open_faults();
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0) die("/proc/self/pagemap");
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) die("sched_getaffinity");
    int others = CPU_COUNT(&cores) - threads;
    pthread_t touchers[CPU_SETSIZE];
    if (pthread_barrier_init(&ready, NULL, (unsigned)threads) != 0 || pthread_barrier_init(&done, NULL, (unsigned)threads + 1) != 0) die("barriers");
    for (int other = 0; other < others; other++) {
        if (pthread_create(&touchers[other], NULL, touch, NULL) != 0) die("a thread");
    }
    for (int thread = 0; thread < threads; thread++) {
        workers[thread].memory = memory_of_a_thread();
        if (pthread_create(&workers[thread].thread, NULL, work, &workers[thread]) != 0) die("a thread");
    }
    for (int pass = 0; pass < passes; pass++) {
        pthread_barrier_wait(&done);
        uint64_t begun = UINT64_MAX, ended = 0;
        for (int thread = 0; thread < threads; thread++) {
            if (workers[thread].begun < begun) begun = workers[thread].begun;
            if (workers[thread].ended > ended) ended = workers[thread].ended;
        }
        printf("%.0f\n", (double)(size / PAGE) * threads / ((double)(ended - begun) / 1e9));
        pthread_barrier_wait(&done);
    }
    for (int thread = 0; thread < threads; thread++) pthread_join(workers[thread].thread, NULL);
    atomic_store(&over, 1);
    for (int other = 0; other < others; other++) pthread_join(touchers[other], NULL);
    return 0;
}
