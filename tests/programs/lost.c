/* Finds out which of its pages are lost, and lives on with the rest.
 *
 *     lost PAGES
 *
 * Fills PAGES pages with patterns and says `filled` with their address in hex. Then it does what it is told on stdin, a line each:
 *
 *     lost      touches every page once; those that end in SIGBUS are told by number, in ascending order: `lost 3 17 18`
 *     rest N    goes N times over all pages that were not lost so far, at random, reads and writes them: `right`. One that is
 *               lost now is left alone from then on
 *     fork      forks a child that lives until stdin ends or `reap`, and is told nothing: its process id
 *     reap      the child reads every page, each of which must be as at the fork: `right`
 *
 * Any page that is there must hold what was written last. */
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

static sigjmp_buf back;
static unsigned char *area;
static size_t pages;
/* Shared memory: it is always there. */
static uint64_t *expected;
static unsigned char *is_lost;
static char *line;

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    unsigned char *at = info->si_addr;
    if (number != SIGBUS || at < area || at >= area + pages * PAGE) die("SIGBUS at %p", (void *)at);
    siglongjmp(back, 1);
}

static void check(size_t i)
{
    uint64_t there = *(volatile uint64_t *)(area + i * PAGE);
    if (there != expected[i]) die("page %zu holds %llx", i, (unsigned long long)there);
}

static void find_lost(void)
{
    /* Not on the stack: siglongjmp would leave them undefined. */
    static volatile size_t i;
    size_t at = (size_t)sprintf(line, "lost");
    for (i = 0; i < pages; i++) {
        if (sigsetjmp(back, 1) == 0) {
            check(i);
        } else {
            is_lost[i] = 1;
            at += (size_t)sprintf(line + at, " %zu", i);
        }
    }
    sprintf(line + at, "\n");
}

static void use_rest(unsigned long times)
{
    static volatile uint64_t random;
    static volatile size_t n, i;
    random = 1;
    for (n = 0; n < pages * times; n++) {
        random = mix(random);
        i = random % pages;
        if (is_lost[i]) continue;
        if (sigsetjmp(back, 1) != 0) {
            is_lost[i] = 1;
            continue;
        }
        check(i);
        if (random >> 40 & 1) {
            uint64_t next = mix(expected[i]);
            *(volatile uint64_t *)(area + i * PAGE) = next;
            expected[i] = next;
        }
    }
}

static void *shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("no memory");
    return memory;
}

/* A child with the pages as they are now; the end of a pipe by which it is told to go on. */
static pid_t make_child(int *tell)
{
    int ends[2];
    if (pipe(ends) != 0) die("pipe");
    uint64_t *as_now = shared(pages * sizeof *as_now);
    memcpy(as_now, expected, pages * sizeof *as_now);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        close(ends[1]);
        expected = as_now;
        static char byte;
        if (read(ends[0], &byte, 1) != 1) _exit(0);
        for (size_t i = 0; i < pages; i++) check(i);
        for (size_t i = 0; i < pages; i++) *(volatile uint64_t *)(area + i * PAGE) = expected[i] = mix(expected[i] + 1);
        for (size_t i = 0; i < pages; i++) check(i);
        _exit(7);
    }
    close(ends[0]);
    munmap(as_now, pages * sizeof *as_now);
    *tell = ends[1];
    return child;
}

int main(int argc, char **argv)
{
    if (argc != 2) die("usage: lost PAGES");
    /* Not on the heap, which may be lost as well. */
    static char in[BUFSIZ];
    setvbuf(stdin, in, _IOFBF, sizeof in);
    pages = (size_t)atoll(argv[1]);
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    if (pages < 1 || sigaction(SIGBUS, &action, NULL) != 0) die("1 page or more");
    expected = shared(pages * sizeof *expected);
    is_lost = shared(pages);
    line = shared(pages * 12 + 64);
    area = map_anonymous(pages * PAGE);
    for (size_t i = 0; i < pages; i++) *(volatile uint64_t *)(area + i * PAGE) = expected[i] = mix(i + 1);
    int length = sprintf(line, "filled %llx\n", (unsigned long long)(uintptr_t)area);
    if (write(1, line, (size_t)length) != length) die("stdout");
    static char word[64];
    static pid_t child;
    static int tell;
    while (fgets(word, sizeof word, stdin) != NULL) {
        if (strncmp(word, "lost", 4) == 0) {
            find_lost();
        } else if (strncmp(word, "rest ", 5) == 0) {
            use_rest(strtoul(word + 5, NULL, 10));
            sprintf(line, "right\n");
        } else if (strncmp(word, "fork", 4) == 0) {
            child = make_child(&tell);
            sprintf(line, "%d\n", (int)child);
        } else if (strncmp(word, "reap", 4) == 0) {
            int status = 0;
            if (write(tell, "", 1) != 1 || waitpid(child, &status, 0) != child) die("no child");
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) die("the child ended with %x", (unsigned)status);
            close(tell);
            sprintf(line, "right\n");
        } else {
            die("what is %s", word);
        }
        for (size_t at = 0, all = strlen(line); at < all;) {
            ssize_t done = write(1, line + at, all - at);
            if (done <= 0) die("stdout");
            at += (size_t)done;
        }
    }
    return 0;
}
