/* A program to look at from outside while it runs.
 *
 *     debugged MIB        writes MIB of memory, says where it is, and checks it over and over until its input ends
 *
 * Word i of the memory is 3 i + 1. `marker` is a variable that a debugger can print, `work` a function that it can stop in. */
#include "common.h"
#include <poll.h>

struct marker { int number; char text[24]; };
struct marker marker = { 4711, "there is such a variable" };
/* How often everything was checked. */
volatile unsigned long rounds;

__attribute__((noinline)) static void work(const uint64_t *memory, size_t words)
{
    for (size_t i = 0; i < words; i++) {
        if (memory[i] != 3 * i + 1) die("word %zu is %llu", i, (unsigned long long)memory[i]);
    }
    rounds++;
}

/* For a debugger to call. */
__attribute__((noinline, used)) uint64_t look(const uint64_t *memory, size_t word)
{
    return memory[word];
}

int main(int argc, char **argv)
{
    size_t words = (argc > 1 ? (size_t)atoi(argv[1]) : 8) * MIB / 8;
    uint64_t *memory = map_anonymous(words * 8);
    for (size_t i = 0; i < words; i++) memory[i] = 3 * i + 1;
    fprintf(stderr, "%d %p %zu\n", getpid(), (void *)memory, words * 8);
    for (;;) {
        work(memory, words);
        struct pollfd input = { 0, POLLIN, 0 };
        if (poll(&input, 1, 10) > 0) break;
    }
    work(memory, words);
    puts(marker.number == 4711 ? "right" : "the debugger was here");
    fflush(stdout);
    /* For a look at what is left of it. */
    if (argc > 2) abort();
    return 0;
}
