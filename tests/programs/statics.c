/* Static arrays: what is in no file, of the program and of a library, and what a program does with them.
 *
 *     statics SECTION   run one section
 *     statics --list    print the names of all sections
 *
 * All arrays together are larger than the limit of the test. The output is the same natively and under Farshore. With -Dmain=statics_main this
 * is a library with the arrays, and with -DHOST a program that is linked with it, and has an array as well. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

/* A variable of the library, of which the program has the copy that both use. */
enum { VARIABLE = 64 << 10 };
#ifdef HOST
extern unsigned char variable[VARIABLE];
static unsigned char array[8 << 20];

int statics_main(int argc, char **argv);

/* Whether what is at `at` is registered with a userfaultfd: in whole pages, from the second one on. */
static int is_registered(const void *at)
{
    unsigned long start, end, wanted = (unsigned long)at + 2 * PAGE;
    char line[512];
    int is_here = 0, registered = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    if (file == NULL) die("smaps");
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) is_here = start <= wanted && wanted < end;
        if (is_here && strncmp(line, "VmFlags:", 8) == 0) registered = strstr(line, " um") != NULL || strstr(line, " uw") != NULL;
    }
    fclose(file);
    return registered;
}

int main(int argc, char **argv)
{
    memset(array, 1, sizeof array);
    memset(variable, 2, sizeof variable);
    int status = statics_main(argc, argv);
    if (is_registered(variable)) die("a variable of the library is managed");
    for (size_t i = 0; i < sizeof array; i++) {
        if (array[i] != 1) die("byte %zu", i);
    }
    return status;
}
#else
unsigned char variable[VARIABLE];

#define CHECK(what) do { if (!(what)) die("%s, line %d: %s", section, __LINE__, #what); } while (0)

enum { WORDS = 6 << 20, THREADS = 4 };

static const char *section;
static unsigned long array[WORDS];
/* Among large arrays: what the kernel writes to, and stacks. */
static unsigned char alternate[64 << 10], coroutine[256 << 10], buffer[4 << 20];
static long words_of_each[THREADS];
static ucontext_t inside, outside;
static volatile sig_atomic_t runs;

static unsigned long value(size_t i, unsigned long seed)
{
    return i * 0x9e3779b97f4a7c15UL ^ seed;
}

static void fill(unsigned long seed)
{
    for (size_t i = 0; i < WORDS; i++) array[i] = value(i, seed);
}

static int holds(unsigned long seed)
{
    for (size_t i = 0; i < WORDS; i++) {
        if (array[i] != value(i, seed)) return 0;
    }
    return 1;
}

static void section_fill(void)
{
    for (size_t i = 0; i < WORDS; i += 512) CHECK(array[i] == 0);
    for (unsigned long seed = 1; seed < 4; seed++) {
        fill(seed);
        CHECK(holds(seed));
    }
}

static void *works(void *at)
{
    size_t first = (size_t)(long *)at - (size_t)words_of_each;
    first /= sizeof(long);
    for (int round = 0; round < 3; round++) {
        for (size_t i = first; i < WORDS; i += THREADS) array[i] += i;
    }
    *(long *)at = 1;
    return at;
}

static void section_threads(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, works, &words_of_each[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0 && words_of_each[i] == 1);
    for (size_t i = 0; i < WORDS; i++) CHECK(array[i] == 3 * i);
}

static void section_fork(void)
{
    fill(5);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (!holds(5)) _exit(1);
            fill(6);
            _exit(holds(6) ? 7 : 2);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    }
    CHECK(holds(5));
}

/* The kernel reads and writes arrays that are out. */
static void section_calls(void)
{
    int ends[2], zeros = open("/dev/zero", O_RDONLY);
    CHECK(zeros >= 0 && pipe(ends) == 0);
    fill(8);
    memset(buffer, 9, sizeof buffer);
    fill(10);
    CHECK(read(zeros, buffer, sizeof buffer) == (ssize_t)sizeof buffer);
    for (size_t i = 0; i < sizeof buffer; i++) CHECK(buffer[i] == 0);
    for (size_t i = 0; i < WORDS; i += 4096 / sizeof *array * 3) {
        unsigned long read_back = 0;
        CHECK(write(ends[1], &array[i], sizeof *array) == sizeof *array && read(ends[0], &read_back, sizeof read_back) == sizeof read_back);
        CHECK(read_back == value(i, 10));
    }
    CHECK(holds(10));
}

static void on_signal(int number)
{
    (void)number;
    array[runs * 100] = value(runs * 100, 11);
    runs++;
}

static void in_coroutine(void)
{
    unsigned char bytes[8192];
    for (int i = 0; i < 50; i++) {
        memset(bytes, i, sizeof bytes);
        swapcontext(&inside, &outside);
        for (size_t at = 0; at < sizeof bytes; at++) CHECK(bytes[at] == (unsigned char)i);
    }
}

/* Stacks in static arrays: for handlers, and of a coroutine. */
static void section_stacks(void)
{
    const stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(getcontext(&inside) == 0);
    inside.uc_stack.ss_sp = coroutine;
    inside.uc_stack.ss_size = sizeof coroutine;
    inside.uc_link = &outside;
    makecontext(&inside, in_coroutine, 0);
    for (int i = 0; i < 50; i++) {
        if (i % 10 == 0) fill(11);
        CHECK(raise(SIGUSR1) == 0 && swapcontext(&outside, &inside) == 0);
    }
    CHECK(runs == 50 && holds(11));
}

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "fill", section_fill }, { "threads", section_threads }, { "fork", section_fork }, { "calls", section_calls }, { "stacks", section_stacks },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 2) die("usage: statics SECTION | statics --list");
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[1]) != 0) s++;
    if (s == count) die("there is no section %s", argv[1]);
    section = sections[s].name;
    sections[s].run();
    printf("%s: done\n", section);
    return 0;
}
#endif
