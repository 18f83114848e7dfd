/* Goes through memory in order that lies in any order: the program of a guest whose page tables are looked at from outside (tests/kernels/test_introspect.py).
 *
 *     shuffled SIZE PASSES
 *
 * Memory at a fixed address is touched in an order at random first, so that the kernel gives its pages out in that order. Then each pass writes it from the first page to the last. Prints where some
 * of its pages are in physical memory, as /proc/self/pagemap says (before the passes and after them: a kernel may move pages), a line when it is warmed up, a sum for each pass, and how long all took. */
#include "common.h"
#include <fcntl.h>
#include <time.h>

#define FIRST ((void *)0x7e0000000000)
#define SHOWN 64

static uint64_t chance(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15;
    return mix(*state);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Where the kernel has the pages. */
static void show(const char *when, const char *memory, size_t pages)
{
    int map = open("/proc/self/pagemap", O_RDONLY);
    if (map < 0) die("no /proc/self/pagemap");
    for (size_t n = 0; n < SHOWN; n++) {
        const char *at = memory + pages * n / SHOWN * PAGE;
        uint64_t entry = 0;
        if (pread(map, &entry, 8, (uintptr_t)at / PAGE * 8) != 8) die("the page map ends");
        printf("%s %llx %llx\n", when, (unsigned long long)(uintptr_t)at, (unsigned long long)(entry & ((1ULL << 55) - 1)));
    }
    close(map);
}

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: shuffled SIZE PASSES");
    size_t pages = parse_size(argv[1]) / PAGE;
    int passes = atoi(argv[2]);
    if (pages < SHOWN || passes < 1) die("SIZE must be 64 pages or more and PASSES 1 or more");
    uint64_t (*memory)[PAGE / 8] = mmap(FIRST, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    uint32_t *order = malloc(pages * sizeof *order);
    if (memory != FIRST || !order) die("no memory");
    /* A kernel without huge pages refuses, and needs no such wish. */
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    uint64_t state = 86;
    for (size_t n = 0; n < pages; n++) {
        size_t other = chance(&state) % (n + 1);
        order[n] = order[other];
        order[other] = n;
    }
    for (size_t n = 0; n < pages; n++) memory[order[n]][0] = order[n];
    free(order);
    show("first", (char *)memory, pages);
    printf("warmed\n");
    fflush(stdout);
    sleep(2);
    double before = seconds();
    for (int pass = 1; pass <= passes; pass++) {
        uint64_t sum = 0;
        for (size_t n = 0; n < pages; n++) {
            for (size_t at = 0; at < PAGE / 8; at += 2) {
                sum = sum * 31 + memory[n][at];
                memory[n][at] = sum + n + pass;
            }
        }
        printf("sum %d %016llx\n", pass, (unsigned long long)sum);
        fflush(stdout);
    }
    printf("took %.2f\n", seconds() - before);
    show("last", (char *)memory, pages);
    printf("done\n");
    fflush(stdout);
    sleep(3);
    return 0;
}
