/* Processes that share memory (MAP_SHARED | MAP_ANONYMOUS), and check after every step that each sees what the others have written.
 *
 *     kindred MIB SEED SECTION...
 *
 * What the memory must hold is written down in a table of its own, a file without a name, whose pages are nobody's but the kernel's. Prints a line a section, and ends with 0 if all is
 * right; a process that finds a wrong byte says so on stderr and ends with 98. */
#include "common.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define WORKERS 4

/* What is known of a page: which version of it is there, and whether somebody is at it. Behind the last one: whether a wrong byte was found. */
struct entry {
    _Atomic uint32_t lock, version;
};

static size_t pages;
static unsigned char *area;
static struct entry *table;
static uint64_t seed;

static uint64_t word_of(size_t page, uint32_t version, size_t word)
{
    return version == 0 ? 0 : mix(page * 1000003 + version * 7919 + seed) + word * 0x9e3779b97f4a7c15u;
}

static void write_page(size_t page, uint32_t version)
{
    uint64_t *at = (uint64_t *)(area + page * PAGE);
    for (size_t i = 0; i < PAGE / 8; i++) at[i] = word_of(page, version, i);
    table[page].version = version;
}

static void check_page(size_t page, const char *who)
{
    const volatile uint64_t *at = (const volatile uint64_t *)(area + page * PAGE);
    uint32_t version = table[page].version;
    for (size_t i = 0; i < PAGE / 8; i++) {
        uint64_t found = at[i];
        if (found != word_of(page, version, i)) {
            table[pages].lock = 1;
            fprintf(stderr, "%s (pid %d): page %zu word %zu is %#llx and not %#llx (version %u)\n", who, getpid(), page, i, (unsigned long long)found,
                    (unsigned long long)word_of(page, version, i), version);
            _exit(98);
        }
    }
}

static void check_all(const char *who)
{
    for (size_t i = 0; i < pages; i++) check_page(i, who);
}

static void *shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap of %zu bytes", bytes);
    return at;
}

static void begin(void)
{
    int file = memfd_create("table", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)((pages + 1) * sizeof *table)) < 0) die("memfd");
    table = mmap(NULL, (pages + 1) * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (table == MAP_FAILED) die("mmap of the table");
    close(file);
    area = shared(pages * PAGE);
}

static void end(void)
{
    munmap(table, (pages + 1) * sizeof *table);
    munmap(area, pages * PAGE);
}

static void wait_for(pid_t child, const char *what)
{
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (status != 0) {
        fprintf(stderr, "%s: a child ended with status %#x\n", what, status);
        _exit(98);
    }
}

static void fill(uint32_t version)
{
    for (size_t i = 0; i < pages; i++) write_page(i, version);
}

/* One process: fills, checks, writes every third page, checks. */
static void alone(void)
{
    check_all("alone");
    fill(1);
    check_all("alone");
    for (size_t i = 0; i < pages; i += 3) write_page(i, 2);
    check_all("alone");
}

/* A child finds what its parent has written, and the parent what the child has. Both have what they had when the other has ended. */
static void in_turn(void)
{
    fill(1);
    for (uint32_t round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) {
            check_all("child");
            for (size_t i = round; i < pages; i += 2) write_page(i, 10 + round);
            _exit(0);
        }
        wait_for(child, "in turn");
        check_all("parent");
        for (size_t i = round; i < pages; i += 5) write_page(i, 20 + round);
    }
    check_all("parent");
}

static void lock(struct entry *entry)
{
    while (atomic_exchange(&entry->lock, 1)) {
        /* Somebody has found a wrong byte, and does not let go. */
        if (table[pages].lock) _exit(98);
        sched_yield();
    }
}

/* Takes pages at random, checks each, and writes it. */
static void *at_random(void *number)
{
    uint64_t random = mix(seed + (uint64_t)(uintptr_t)number * 104729);
    for (int i = 0; i < 6000; i++) {
        random = mix(random);
        size_t page = random % pages;
        lock(&table[page]);
        check_page(page, "at random");
        if (random >> 40 & 1) write_page(page, table[page].version + 1);
        table[page].lock = 0;
    }
    return NULL;
}

/* Several processes, each with threads, are at all pages at once. */
static void at_once(void)
{
    fill(1);
    pid_t children[WORKERS];
    for (int n = 0; n < WORKERS; n++) {
        if ((children[n] = fork()) < 0) die("fork");
        if (children[n] == 0) {
            pthread_t other;
            if (pthread_create(&other, NULL, at_random, (void *)(uintptr_t)(100 + n))) die("pthread_create");
            at_random((void *)(uintptr_t)n);
            pthread_join(other, NULL);
            _exit(0);
        }
    }
    at_random((void *)(uintptr_t)50);
    for (int n = 0; n < WORKERS; n++) wait_for(children[n], "at once");
    check_all("after");
}

/* Counts in words of all pages, without locks: no count may be lost, whatever leaves and comes meanwhile. */
static void counted(void)
{
    enum { COUNTS = 60000 };
    pid_t children[WORKERS];
    for (int n = 0; n < WORKERS; n++) {
        if ((children[n] = fork()) < 0) die("fork");
        if (children[n] == 0) {
            uint64_t random = mix(seed + (uint64_t)n);
            for (int i = 0; i < COUNTS; i++) {
                random = mix(random);
                /* Most of them are near each other, so that pages that others have just written are read and written. */
                size_t page = random >> 60 ? random % 1024 % pages : random % pages;
                _Atomic uint64_t *at = (_Atomic uint64_t *)(area + page * PAGE) + (random >> 32) % 8;
                if (random >> 50 & 1) atomic_fetch_add(at, 1);
                else if (atomic_load(at) > (uint64_t)WORKERS * COUNTS) _exit(98);
                else atomic_fetch_add(at, 1);
            }
            _exit(0);
        }
    }
    for (int n = 0; n < WORKERS; n++) wait_for(children[n], "counted");
    uint64_t sum = 0;
    for (size_t page = 0; page < pages; page++)
        for (int word = 0; word < 8; word++) sum += ((uint64_t *)(area + page * PAGE))[word];
    if (sum != (uint64_t)WORKERS * COUNTS) {
        fprintf(stderr, "counted: %llu of %llu are there\n", (unsigned long long)sum, (unsigned long long)WORKERS * COUNTS);
        _exit(98);
    }
}

/* Parts go, and other memory comes in their place: in one process, while the other has all of it. */
static void changed(void)
{
    fill(1);
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        char word;
        close(pipes[1]);
        if (read(pipes[0], &word, 1) != 1) die("read");
        check_all("the other");
        for (size_t i = 0; i < pages; i++) write_page(i, 3);
        check_all("the other");
        _exit(0);
    }
    size_t third = pages / 3;
    munmap(area + third * PAGE, 16 * PAGE);
    unsigned char *own = mmap(area + third * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    unsigned char *over = mmap(area + 2 * third * PAGE, 512 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own != area + third * PAGE || over != area + 2 * third * PAGE) die("mmap in its place");
    memset(own, 7, 8 * PAGE);
    memset(over, 9, 512 * PAGE);
    if (write(pipes[1], "x", 1) != 1) die("write");
    wait_for(child, "changed");
    for (size_t i = 0; i < 8 * PAGE; i++)
        if (own[i] != 7) die("own memory has %d at %zu", own[i], i);
    for (size_t i = 0; i < 512 * PAGE; i++)
        if (over[i] != 9) die("own memory over it has %d at %zu", over[i], i);
    for (size_t i = 0; i < pages; i++)
        if (i < third || (i >= third + 16 && i < 2 * third) || i >= 2 * third + 512) check_page(i, "what is left");
}

/* The parent has unmapped it, or has ended, as soon as there is a child. */
static void left_alone(void)
{
    fill(1);
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    for (int how = 0; how < 2; how++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) {
            for (int n = 0; n < 10; n++) {
                unsigned char *more = shared(pages / 4 * PAGE);
                memset(more, n + 1, pages / 4 * PAGE);
                pid_t grandchild = fork();
                if (grandchild < 0) die("fork");
                if (grandchild == 0) {
                    for (size_t i = 0; i < pages / 4 * PAGE; i += 509)
                        if (more[i] != n + 1) {
                            fprintf(stderr, "left alone: byte %zu is %d\n", i, more[i]);
                            _exit(98);
                        }
                    if (n == 9) {
                        check_all("the last");
                        if (write(pipes[1], "x", 1) != 1) die("write");
                    }
                    _exit(0);
                }
                munmap(more, pages / 4 * PAGE);
                if (how == 1 && n == 9) _exit(0);
                wait_for(grandchild, "left alone");
            }
            _exit(0);
        }
        wait_for(child, "left alone");
        char word;
        if (read(pipes[0], &word, 1) != 1) die("read");
    }
}

static pthread_mutex_t *mutex;
static uint64_t *guarded;

static void *locks(void *unused)
{
    (void)unused;
    for (int i = 0; i < 3000; i++) {
        pthread_mutex_lock(mutex);
        guarded[(i % 64) * (PAGE / 8)]++;
        pthread_mutex_unlock(mutex);
        area[(size_t)mix((uint64_t)i * 31 + (uint64_t)getpid()) % (pages / 2) * PAGE + PAGE / 2 + PAGE / 4]++;
    }
    return NULL;
}

/* Mutexes of several processes lie in the memory, and leave with it. */
static void waited_for(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    mutex = (pthread_mutex_t *)(area + (pages - 1) * PAGE);
    guarded = (uint64_t *)(area + (pages - 100) * PAGE);
    pthread_mutex_init(mutex, &attributes);
    pid_t children[WORKERS];
    for (int n = 0; n < WORKERS; n++) {
        if ((children[n] = fork()) < 0) die("fork");
        if (children[n] == 0) {
            locks(NULL);
            _exit(0);
        }
    }
    for (int n = 0; n < WORKERS; n++) wait_for(children[n], "waited for");
    uint64_t sum = 0;
    for (int i = 0; i < 64; i++) sum += guarded[i * (PAGE / 8)];
    if (sum != (uint64_t)WORKERS * 3000) die("%llu were counted under a lock", (unsigned long long)sum);
}

/* The kernel reads and writes the memory for system calls. */
static void by_calls(void)
{
    fill(1);
    int file = memfd_create("copy", MFD_CLOEXEC);
    for (size_t i = 0; i < pages; i += 64) {
        size_t count = pages - i < 64 ? pages - i : 64;
        if (write(file, area + i * PAGE, count * PAGE) != (ssize_t)(count * PAGE)) die("write");
    }
    for (size_t i = 0; i < pages; i++) memset(area + i * PAGE, 0x55, PAGE);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        for (size_t i = 0; i < pages; i += 32) {
            size_t count = pages - i < 32 ? pages - i : 32;
            if (pread(file, area + i * PAGE, count * PAGE, (off_t)(i * PAGE)) != (ssize_t)(count * PAGE)) die("pread");
        }
        check_all("by calls");
        _exit(0);
    }
    wait_for(child, "by calls");
    check_all("by calls");
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        for (size_t i = 0; i < pages; i++)
            if (write(pipes[1], area + i * PAGE, PAGE) != (ssize_t)PAGE) die("write to a pipe");
        _exit(0);
    }
    close(pipes[1]);
    unsigned char *second = shared(pages * PAGE);
    for (size_t done = 0; done < pages * PAGE;) {
        ssize_t got = read(pipes[0], second + done, pages * PAGE - done < 65536 ? pages * PAGE - done : 65536);
        if (got <= 0) die("read from a pipe");
        done += (size_t)got;
    }
    wait_for(child, "by calls");
    if (memcmp(second, area, pages * PAGE)) die("what went through a pipe differs");
    if (mprotect(area, pages * PAGE, PROT_READ) || mprotect(area, pages * PAGE, PROT_READ | PROT_WRITE)) die("mprotect");
    if (madvise(area, pages * PAGE, MADV_DONTNEED)) die("madvise");
    check_all("by calls");
    for (size_t i = 0; i < pages; i += 7) write_page(i, 4);
    check_all("by calls");
    munmap(second, pages * PAGE);
}

/* Children are killed while they are at it; the others go on. */
static void killed(void)
{
    fill(1);
    for (int n = 0; n < 8; n++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0)
            for (uint64_t i = 0;; i++) {
                size_t page = mix(i + (uint64_t)n) % pages;
                volatile uint64_t *at = (volatile uint64_t *)(area + page * PAGE);
                /* What is there again, so that others find nothing else, in whatever order. */
                at[i % (PAGE / 8)] = word_of(page, 1, i % (PAGE / 8));
            }
        usleep(30000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
    }
    check_all("who is left");
}

static const char *told(int failed)
{
    return failed ? strerrorname_np(errno) : "0";
}

/* What such memory cannot have where it is managed: what each call answers. */
static void refused(void)
{
    fill(1);
    void *grown = mremap(area, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
    printf("mremap to grow: %s\n", told(grown == MAP_FAILED));
    if (grown != MAP_FAILED) area = grown;
    printf("mremap of nothing: %s\n", told(mremap(area, 0, PAGE, MREMAP_MAYMOVE) == MAP_FAILED));
    printf("mremap to shrink: %s\n", told(mremap(area, pages * PAGE, (pages - 16) * PAGE, 0) == MAP_FAILED));
    pages -= 16;
    printf("remap_file_pages: %s\n", told(syscall(SYS_remap_file_pages, area, PAGE, 0, 4, 0) != 0));
    printf("MADV_REMOVE: %s\n", told(madvise(area, PAGE, MADV_REMOVE)));
    printf("MADV_GUARD_INSTALL: %s\n", told(madvise(area, PAGE, 102)));
    printf("MADV_HUGEPAGE: %s\n", told(madvise(area, pages * PAGE, MADV_HUGEPAGE)));
    printf("MADV_DONTNEED: %s\n", told(madvise(area, pages * PAGE, MADV_DONTNEED)));
    printf("mlock: %s\n", told(mlock(area, PAGE)));
    printf("O_DIRECT: %s\n", told(open("/proc/self/exe", O_RDONLY | O_DIRECT) < 0));
    printf("io_uring_setup: %s\n", told(syscall(SYS_io_uring_setup, 4, area) < 0));
    struct iovec part = {&seed, 8};
    printf("process_vm_writev: %s\n", told(process_vm_writev(getpid(), &part, 1, &part, 1, 0) < 0));
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD | 0x1000000, 0, NULL, area, 0);
    if (child == 0) _exit(0);
    printf("clone with its word there: %s\n", told(child < 0));
    write_page(0, 5);
    fflush(stdout);
    check_all("refused");
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } sections[] = {{"alone", alone},           {"in_turn", in_turn},       {"at_once", at_once},   {"counted", counted}, {"changed", changed},
                    {"left_alone", left_alone}, {"waited_for", waited_for}, {"by_calls", by_calls}, {"killed", killed},   {"refused", refused}};
    if (count < 4) die("usage: kindred MIB SEED SECTION...");
    seed = (uint64_t)atoll(words[2]);
    for (int i = 3; i < count; i++) {
        int found = 0;
        for (size_t n = 0; n < sizeof sections / sizeof *sections; n++)
            if (strcmp(sections[n].name, words[i]) == 0) {
                pages = (size_t)atoi(words[1]) * MIB / PAGE;
                begin();
                sections[n].run();
                end();
                found = 1;
            }
        if (!found) die("there is no section %s", words[i]);
        printf("%s: right\n", words[i]);
        fflush(stdout);
    }
    return 0;
}
