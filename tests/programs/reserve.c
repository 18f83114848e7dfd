/* Reserves a terabyte of addresses, and uses few of them.
 *
 *     reserve
 *
 * In several ways: readable at once, or made so in parts; with a child; given back in parts. What it has written must be there. With each step it waits for a
 * line on stdin, so that a driver can look. */
#include "common.h"
#include <sys/wait.h>

#define TERABYTE ((size_t)1 << 40)
#define PLACES 128

static void step(const char *what)
{
    puts(what);
    fflush(stdout);
    char byte;
    do { if (read(0, &byte, 1) < 0 && errno != EINTR) die("read"); } while (byte != '\n');
}

static unsigned char *place(unsigned char *memory, int n) { return memory + (size_t)n * (TERABYTE / PLACES) + (size_t)n * 5 * PAGE; }

static void check(unsigned char *memory, int from)
{
    for (int n = from; n < PLACES; n++)
        if (place(memory, n)[7] != n + 1 || place(memory, n)[PAGE] != 0) die("place %d has %d", n, place(memory, n)[7]);
}

static unsigned char *reserve(int protection)
{
    unsigned char *memory = mmap(NULL, TERABYTE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    return memory;
}

int main(void)
{
    step("begin");
    unsigned char *memory = reserve(PROT_READ | PROT_WRITE);
    step("reserved");
    for (int n = 0; n < PLACES; n++) place(memory, n)[7] = (unsigned char)(n + 1);
    check(memory, 0);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) { check(memory, 0); _exit(0); }
    int status;
    if (waitpid(child, &status, 0) != child || status) die("the child ended with %#x", status);
    if (mprotect(memory, TERABYTE, PROT_NONE) || mprotect(memory, TERABYTE, PROT_READ | PROT_WRITE)) die("mprotect");
    check(memory, 0);
    if (munmap(memory, TERABYTE / 2)) die("munmap");
    check(memory, PLACES / 2);
    if (munmap(memory + TERABYTE / 2, TERABYTE / 2)) die("munmap");
    step("given back");
    memory = reserve(PROT_NONE);
    for (int n = 0; n < PLACES; n++) {
        unsigned char *page = (unsigned char *)((uintptr_t)place(memory, n) & ~(PAGE - 1));
        if (mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE)) die("mprotect");
        place(memory, n)[7] = (unsigned char)(n + 1);
    }
    check(memory, 0);
    step("unreadable");
    if (munmap(memory, TERABYTE)) die("munmap");
    step("end");
    return 0;
}
