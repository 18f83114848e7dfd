/* Arrays with initial values: bytes that lie in the file of the program or of a library, and what a program does with them.
 *
 *     data SECTION   run one section
 *     data --list    print the names of all sections
 *
 * The output is the same natively and under Farshore. With -Dmain=data_main this is a library with the arrays, with -DHOST a program that is linked with
 * it, and with -DPLUGIN a library that the program opens: $DATA_PLUGIN. */
#include "common.h"

/* Each page has one value in all of its words; every eighth has zeros. Data of 40 MiB: `first` is where page 0 begins. */
#define PAGES 10240
#define ARRAY(name)                                                                                                                        \
    __asm__(".pushsection .data\n.balign 4096\n.globl " #name "\n.type " #name ", @object\n.size " #name ", 41943040\n" #name ":\n"       \
            ".set page, 0\n.rept 10240\n.if page % 8\n.fill 1024, 4, 0x51000 + page\n.else\n.fill 1024, 4, 0\n.endif\n"                    \
            ".set page, page + 1\n.endr\n.popsection\n")

#ifdef PLUGIN
ARRAY(plugged);
extern unsigned plugged[];
unsigned *plugin(void);
unsigned *plugin(void) { return plugged; }
#elif defined(HOST)
/* A variable of the library, of which the program has the copy that both use (R_X86_64_COPY), beside data of the program's own. */
extern unsigned long copied[];
unsigned char own[4 << 20] = { 1, 2, 3 };

int data_main(int argc, char **argv);

int main(int argc, char **argv)
{
    if (copied[0] != 77 || copied[8191] != 0 || own[1] != 2) die("the variable was not copied");
    copied[8191] = 78;
    own[sizeof own - 1] = 9;
    int status = data_main(argc, argv);
    if (copied[0] != 77 || copied[8191] != 78 || own[0] != 1 || own[2] != 3 || own[sizeof own - 1] != 9) die("bytes of the host");
    return status;
}
#else
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define CHECK(what) do { if (!(what)) die("%s, line %d: %s (%d)", section, __LINE__, #what, errno); } while (0)
#define WORDS 1024

static const char *section;
ARRAY(array);
extern unsigned array[];
unsigned long copied[8192] = { 77 };
/* Relocated: a part that stays writable, and one that does not. */
static int target = 5;
static int *pointers[64 << 10] = { [0 ... (64 << 10) - 1] = &target };
static int *const fixed[128 << 10] = { [0 ... (128 << 10) - 1] = &target };
/* What the kernel and libc write to, among large data. */
static unsigned char stack_of_thread[256 << 10] __attribute__((aligned(4096))) = { 1 };
static unsigned char stack_of_handler[64 << 10] __attribute__((aligned(4096))) = { 1 };
static unsigned char buffer[1 << 20] __attribute__((aligned(4096))) = { 1 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t robust __attribute__((section(".data")));
static int tid_word __attribute__((section(".data"))) = -1;
static int futex_word = 1;

static unsigned *page_at(unsigned page) { return array + (size_t)page * WORDS; }
static unsigned initial(unsigned page) { return page % 8 ? 0x51000 + page : 0; }

/* Whether the words of these pages have their first value, plus `more`. */
static int have(const unsigned *of, unsigned from, unsigned to, unsigned more)
{
    for (unsigned page = from; page < to; page++) {
        for (unsigned i = 0; i < WORDS; i++) {
            if (of[(size_t)page * WORDS + i] != initial(page) + more) return 0;
        }
    }
    return 1;
}

static void add(unsigned from, unsigned to, unsigned more)
{
    for (size_t i = (size_t)from * WORDS; i < (size_t)to * WORDS; i++) array[i] += more;
}

static int have_pointers(void)
{
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        if (*(int *volatile *)&pointers[i] != &target) return 0;
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (*(int *const volatile *)&fixed[i] != &target) return 0;
    }
    return 1;
}

static void section_values(void)
{
    CHECK(have(array, 0, PAGES, 0) && have_pointers());
    for (unsigned round = 1; round < 3; round++) {
        add(0, PAGES, 7);
        CHECK(have(array, 0, PAGES, 7 * round) && have_pointers());
    }
    add(3, 4, 1);
    CHECK(have(array, 3, 4, 15) && have(array, 4, PAGES, 14));
}

static sigjmp_buf back;
static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static int faults(void *at, int writes)
{
    struct sigaction action = { .sa_handler = on_fault }, before;
    sigaction(SIGSEGV, &action, &before);
    volatile int faulted = 1;
    if (sigsetjmp(back, 1) == 0) {
        volatile unsigned *word = at;
        unsigned value = *word;
        if (writes) *word = value;
        faulted = 0;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

/* What is thrown away has the bytes of the file again; in memory that was given other rights, too. */
static void section_thrown(void)
{
    add(0, PAGES, 1);
    CHECK(madvise(page_at(100), 300 * PAGE, MADV_DONTNEED) == 0);
    CHECK(have(array, 100, 400, 0) && have(array, 0, 100, 1) && have(array, 400, PAGES, 1));
    add(90, 410, 1);
    CHECK(have(array, 100, 400, 1) && have(array, 400, 410, 2) && have(array, 90, 100, 2));
    CHECK(madvise(page_at(50), 500 * PAGE, MADV_DONTNEED) == 0 && have(array, 50, 550, 0));
    CHECK(mprotect(page_at(2000), 20 * PAGE, PROT_READ) == 0 && madvise(page_at(1990), 40 * PAGE, MADV_DONTNEED) == 0);
    CHECK(have(array, 1990, 2030, 0) && faults(page_at(2005), 1) && !faults(page_at(2005), 0) && !faults(page_at(2025), 1));
    CHECK(mprotect(page_at(2000), 20 * PAGE, PROT_READ | PROT_WRITE) == 0 && !faults(page_at(2005), 1));
    errno = 0;
    CHECK(madvise(page_at(3000), PAGE, MADV_FREE) == -1 && errno == EINVAL && madvise(page_at(3000), PAGE, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    CHECK(have(array, 550, 1990, 1) && have(array, 2030, PAGES, 1));
    /* Locked, and not any more: the bytes of the file, or an error. */
    if (mlock(page_at(4000), 4 * PAGE) == 0) {
        CHECK(munlock(page_at(4000), 4 * PAGE) == 0);
        CHECK(madvise(page_at(4000), 4 * PAGE, MADV_DONTNEED) == 0 ? have(array, 4000, 4004, 0) : have(array, 4000, 4004, 1));
        CHECK(mmap(page_at(4001), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page_at(4001));
        CHECK(*page_at(4001) == 0 && (*page_at(4001) = 5) && madvise(page_at(4001), PAGE, MADV_DONTNEED) == 0 && *page_at(4001) == 0);
    }
    CHECK(munmap(page_at(5000), 600 * PAGE) == 0 && have(array, 4900, 5000, 1) && have(array, 5600, PAGES, 1) && have_pointers());
}

static void section_rights(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    add(0, PAGES, 1);
    CHECK(mprotect(page_at(1000), 1000 * PAGE, PROT_NONE) == 0 && mprotect(page_at(3000), 1000 * PAGE, PROT_READ) == 0);
    add(4000, PAGES, 1);
    CHECK(faults(page_at(1500), 0) && faults(page_at(3500), 1) && have(array, 3000, 4000, 1));
    CHECK(write(ends[1], page_at(1500), 8) == -1 && errno == EFAULT && write(ends[1], page_at(3500), 8) == 8);
    CHECK(read(ends[0], page_at(3600), 8) == -1 && errno == EFAULT);
    CHECK(mprotect(page_at(1000), 3000 * PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(have(array, 0, 4000, 1) && have(array, 4000, PAGES, 2));
    /* What has relocations and is read-only since stays so. */
    CHECK(have_pointers() && faults((void *)&fixed[100000], 1) && faults((void *)&fixed[30000], 1) && have_pointers());
}

static void section_fork(void)
{
    for (unsigned i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (!have(array, 0, PAGES, i) || !have_pointers()) _exit(1);
            add(0, PAGES, 100);
            if (madvise(page_at(10), 10 * PAGE, MADV_DONTNEED) != 0 || !have(array, 10, 20, 0)) _exit(2);
            pid_t grandchild = fork();
            if (grandchild == 0) _exit(have(array, 20, PAGES, 100 + i) && have(array, 10, 20, 0) ? 9 : 3);
            int status = -1;
            if (waitpid(grandchild, &status, 0) != grandchild || WEXITSTATUS(status) != 9) _exit(4);
            _exit(have(array, 0, 10, 100 + i) && have(array, 20, PAGES, 100 + i) ? 7 : 5);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        CHECK(have(array, 0, PAGES, i));
        add(0, PAGES, 1);
    }
}

enum { THREADS = 4 };
static volatile int stop;
static unsigned long rounds[THREADS];

static void *writes_all_the_time(void *at)
{
    unsigned mine = (unsigned)(uintptr_t)at;
    do {
        for (unsigned page = mine; page < PAGES; page += THREADS) {
            for (unsigned i = 0; i < WORDS; i += 16) __atomic_fetch_add(&page_at(page)[i], 1, __ATOMIC_RELAXED);
        }
        __atomic_fetch_add(&rounds[mine], 1, __ATOMIC_RELEASE);
    } while (!stop);
    return NULL;
}

/* Threads write while memory comes that wakes the process, where it was dormant; and while it forks. */
static void section_threads(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, writes_all_the_time, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) {
        while (__atomic_load_n(&rounds[i], __ATOMIC_ACQUIRE) == 0) usleep(1000);
    }
    enum { SIZE = 64 << 20 };
    unsigned char *other = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(other != MAP_FAILED);
    memset(other, 3, SIZE);
    pid_t child = fork();
    if (child == 0) _exit(have_pointers() && other[SIZE - 1] == 3 ? 7 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    stop = 1;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (unsigned page = 0; page < PAGES; page++) {
        for (unsigned i = 0; i < WORDS; i++) CHECK(page_at(page)[i] == initial(page) + (i % 16 ? 0 : (unsigned)rounds[page % THREADS]));
    }
    for (size_t i = 0; i < SIZE; i++) CHECK(other[i] == 3);
}

static void on_stack(int number)
{
    unsigned char here[4096];
    (void)number;
    memset(here, 7, sizeof here);
    CHECK(&here[0] > stack_of_handler && &here[0] < stack_of_handler + sizeof stack_of_handler);
    array[0]++;
}

static void *dies_with_it(void *at)
{
    CHECK(pthread_mutex_lock(&robust) == 0);
    return at;
}

static void *on_its_stack(void *at)
{
    unsigned char here[16384];
    for (int i = 0; i < 20; i++) {
        memset(here, i, sizeof here);
        add(i * 300, i * 300 + 300, 1);
        for (size_t n = 0; n < sizeof here; n++) CHECK(here[n] == i);
    }
    CHECK(&here[0] > stack_of_thread && &here[0] < stack_of_thread + sizeof stack_of_thread);
    pthread_mutex_lock(&mutex);
    *(int *)at = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    CHECK(syscall(SYS_futex, &futex_word, 1 /* WAKE, not private */, 100, NULL, NULL, 0) >= 0);
    return NULL;
}

/* Reads or writes the first word of page 77 through /proc/self/mem. Under Farshore that needs the page in memory, and ends by EIO where it has left again. */
static int by_file(int self, int writes, unsigned *value)
{
    for (int tries = 0; tries < 10000; tries++) {
        volatile unsigned *word = page_at(77);
        *word = *word;
        off_t at = (off_t)(uintptr_t)word;
        ssize_t done = writes ? pwrite(self, value, sizeof *value, at) : pread(self, value, sizeof *value, at);
        if (done != -1 || errno != EIO) return done == sizeof *value;
    }
    return 0;
}

/* The kernel and libc use what is out. */
static void section_calls(void)
{
    int ends[2], zeros = open("/dev/zero", O_RDONLY), done = 0;
    CHECK(zeros >= 0 && pipe(ends) == 0 && buffer[0] == 1);
    add(0, PAGES, 1);
    CHECK(read(zeros, buffer, sizeof buffer) == (ssize_t)sizeof buffer);
    for (size_t i = 0; i < sizeof buffer; i++) CHECK(buffer[i] == 0);
    for (unsigned page = 0; page < PAGES; page += 7) {
        unsigned came[2];
        CHECK(write(ends[1], page_at(page), 8) == 8 && read(ends[0], came, 8) == 8 && came[1] == initial(page) + 1);
    }
    int self = open("/proc/self/mem", O_RDWR);
    unsigned value = 0, other = 4711;
    CHECK(self >= 0 && by_file(self, 0, &value) && value == initial(77) + 1);
    CHECK(by_file(self, 1, &other) && *page_at(77) == 4711);
    *page_at(77) = initial(77) + 1;
    struct iovec to = { &value, 4 }, from = { page_at(9001), 4 };
    CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 4 && value == initial(9001) + 1);
    const stack_t stack = { .ss_sp = stack_of_handler, .ss_size = sizeof stack_of_handler };
    struct sigaction action = { .sa_handler = on_stack, .sa_flags = SA_ONSTACK };
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 10; i++) {
        add(i * 1000, i * 1000 + 1000, 1);
        CHECK(raise(SIGUSR1) == 0);
    }
    array[0] -= 10;
    CHECK(have(array, 0, 10000, 2) && have(array, 10000, PAGES, 1));
    pthread_attr_t attr;
    pthread_t thread;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack_of_thread, sizeof stack_of_thread) == 0);
    CHECK(pthread_create(&thread, &attr, on_its_stack, &done) == 0);
    pthread_mutex_lock(&mutex);
    while (!done) pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    CHECK(pthread_join(thread, NULL) == 0 && have(array, 0, 6000, 3) && have(array, 6000, 10000, 2));
    pthread_mutexattr_t how;
    CHECK(pthread_mutexattr_init(&how) == 0 && pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&robust, &how) == 0);
    CHECK(pthread_create(&thread, NULL, dies_with_it, NULL) == 0 && pthread_join(thread, NULL) == 0);
    add(0, PAGES, 1);
    CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD && pthread_mutex_consistent(&robust) == 0 && pthread_mutex_unlock(&robust) == 0);
    /* The kernel clears a word in data when this child's only thread ends: nobody sees it but the child's own end. */
    pid_t child = fork();
    if (child == 0) {
        CHECK(syscall(SYS_set_tid_address, &tid_word) == getpid());
        _exit(7);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7 && tid_word == -1);
}

/* The kernel reads into data later than the call returns. */
static void section_requests(void)
{
    aio_context_t context = 0;
    char path[] = "data-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && unlink(path) == 0);
    add(0, PAGES, 1);
    CHECK(pwrite(file, page_at(0), 256 * PAGE, 0) == 256 * PAGE);
    if (syscall(SYS_io_setup, 8, &context) == 0) {
        struct iocb request = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)file, .aio_buf = (uintptr_t)page_at(8000), .aio_nbytes = 256 * PAGE };
        struct iocb *all[] = { &request };
        struct io_event event;
        CHECK(syscall(SYS_io_submit, context, 1, all) == 1);
        add(0, 4000, 1);
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == 256 * PAGE);
        CHECK(syscall(SYS_io_destroy, context) == 0);
        for (unsigned page = 0; page < 256; page++) CHECK(page_at(8000 + page)[5] == initial(page) + 1);
    }
    CHECK(have(array, 0, 4000, 2) && have(array, 4000, 8000, 1) && have(array, 8256, PAGES, 1));
}

/* A library that comes and goes, and the same file once more. */
static void section_library(void)
{
    const char *path = getenv("DATA_PLUGIN");
    add(0, PAGES, 1);
    for (int i = 0; path != NULL && i < 2; i++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        unsigned *(*plugin)(void) = (unsigned *(*)(void))(uintptr_t)dlsym(library, "plugin");
        CHECK(plugin != NULL);
        unsigned *plugged = plugin();
        CHECK(have(plugged, 0, PAGES, 0));
        for (size_t n = 0; n < (size_t)PAGES * WORDS; n++) plugged[n] += 3;
        CHECK(madvise(plugged + 50 * WORDS, 50 * PAGE, MADV_DONTNEED) == 0);
        CHECK(have(plugged, 50, 100, 0) && have(plugged, 100, PAGES, 3) && have(array, 0, PAGES, 1));
        CHECK(dlclose(library) == 0);
    }
    CHECK(have(array, 0, PAGES, 1));
}

/* Finds the place of page 1 in the file, which the program maps once more. */
static void section_twice(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    off_t size = lseek(file, 0, SEEK_END);
    CHECK(file >= 0 && size > 0);
    unsigned char *all = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    CHECK(all != MAP_FAILED);
    size_t at = 0;
    while (at + PAGE <= (size_t)size && ((unsigned *)(all + at))[0] != initial(1)) at += PAGE;
    add(0, PAGES, 1);
    /* In a library's host there is no such page. */
    if (at + PAGE <= (size_t)size) {
        unsigned *again = (unsigned *)(all + at) - WORDS;
        CHECK(have(again, 1, PAGES, 0) && have(array, 0, PAGES, 1));
        for (size_t i = WORDS; i < (size_t)PAGES * WORDS; i++) again[i] += 5;
        CHECK(have(again, 1, PAGES, 5) && have(array, 0, PAGES, 1));
        CHECK(madvise(page_at(8), 80 * PAGE, MADV_DONTNEED) == 0 && have(array, 8, 88, 0) && have(again, 1, PAGES, 5));
    }
    CHECK(munmap(all, (size_t)size) == 0 && have(array, 88, PAGES, 1));
}

static char *self_path;

/* The file of the program goes, and another one has its name. */
static void section_unlinked(void)
{
    if (strstr(self_path, "/data-copy") == NULL) {
        char path[4096], command[8300];
        snprintf(path, sizeof path, "%s/data-copy", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
        snprintf(command, sizeof command, "cp '%s' '%s'", self_path, path);
        CHECK(system(command) == 0);
        execl(path, path, "unlinked", (char *)NULL);
        CHECK(!"exec");
    }
    CHECK(unlink(self_path) == 0);
    int other = open(self_path, O_CREAT | O_WRONLY, 0700);
    CHECK(other >= 0 && ftruncate(other, 100 << 20) == 0 && close(other) == 0);
    void *more = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 1, 64 << 20);
    CHECK(have(array, 0, PAGES, 0));
    add(0, PAGES, 1);
    CHECK(madvise(page_at(100), 300 * PAGE, MADV_DONTNEED) == 0);
    CHECK(have(array, 100, 400, 0) && have(array, 0, 100, 1) && have(array, 400, PAGES, 1) && have_pointers());
    CHECK(unlink(self_path) == 0);
}

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "values", section_values }, { "thrown", section_thrown }, { "rights", section_rights }, { "fork", section_fork }, { "threads", section_threads },
    { "calls", section_calls }, { "requests", section_requests }, { "library", section_library }, { "twice", section_twice },
    { "unlinked", section_unlinked },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 2) die("usage: data SECTION | data --list");
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[1]) != 0) s++;
    if (s == count) die("there is no section %s", argv[1]);
    section = sections[s].name;
    self_path = argv[0];
    sections[s].run();
    printf("%s: done\n", section);
    return 0;
}
#endif
