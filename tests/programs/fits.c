/* The program of "free when it fits": passes over memory that stays local, timed after the first touch.
 *
 *     fits SIZE PASSES [SEED]
 *
 * Kinds of pass: `stream` (three arrays, straight through), `chase` (a random cycle through all cache lines, one load after
 * the other), `sort` (blocks of 64 KiB are scrambled and sorted), `calls` (16 KiB reads of /dev/zero into the memory and
 * 64-byte round trips through a pipe, so that the price of a system call shows). Prints one JSON object: the seconds of each
 * kind's passes, and a digest of the memory, which depends on the arguments alone. */
#include "common.h"
#include <fcntl.h>

struct line { uint64_t next; uint64_t fill[7]; };

static unsigned char *memory;
static size_t size;

static void stream(void)
{
    size_t third = size / 3 / 8;
    uint64_t *a = (uint64_t *)memory, *b = a + third, *c = b + third;
    for (int round = 0; round < 8; round++) {
        for (size_t i = 0; i < third; i++) a[i] = b[i] * 3 + c[i];
        for (size_t i = 0; i < third; i++) c[i] = a[i] ^ (b[i] >> 1);
    }
}

/* One cycle through all lines (Sattolo's shuffle), so that the walk visits each line once. */
static void make_cycle(struct line *lines, size_t count, uint64_t seed)
{
    struct rng r = { seed };
    for (size_t i = 0; i < count; i++) lines[i].next = i;
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = rng_below(&r, i);
        uint64_t t = lines[i].next;
        lines[i].next = lines[j].next;
        lines[j].next = t;
    }
}

static void chase(void)
{
    struct line *lines = (struct line *)memory;
    size_t count = size / sizeof(struct line), at = 0;
    for (size_t i = 0; i < count; i++) {
        lines[at].fill[0] += i;
        at = lines[at].next;
    }
    if (at != 0) die("the cycle is broken at line %zu", at);
}

static int compare_words(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort_blocks(void)
{
    const size_t block = 8192;
    uint64_t *words = (uint64_t *)memory;
    for (size_t i = 0; i + block <= size / 8; i += 8 * block) {
        for (size_t j = 0; j < block; j++) words[i + j] = mix(words[i + j] + j);
        qsort(words + i, block, 8, compare_words);
    }
}

static void calls(void)
{
    const size_t piece = 16384;
    int zero = open("/dev/zero", O_RDONLY), ends[2];
    if (zero < 0 || pipe(ends) != 0) die("cannot open /dev/zero or make a pipe");
    struct rng r = { 7 };
    for (int i = 0; i < 20000; i++) {
        unsigned char *at = memory + rng_below(&r, size - piece);
        if (i % 4 == 0) {
            if (read(zero, at, piece) != (ssize_t)piece) die("short read of /dev/zero");
        } else if (write(ends[1], at, 64) != 64 || read(ends[0], at + 64, 64) != 64) {
            die("short transfer through the pipe");
        }
    }
    close(zero);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: fits SIZE PASSES [SEED]");
    size = parse_size(argv[1]);
    int passes = atoi(argv[2]);
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (size < MIB || passes < 1) die("SIZE must be 1M or more and PASSES 1 or more");
    memory = map_anonymous(size);
    for (size_t i = 0; i < size / 8; i++) ((uint64_t *)memory)[i] = mix(i ^ seed);

    static const struct { const char *name; void (*run)(void); } kinds[] = { { "stream", stream }, { "sort", sort_blocks }, { "calls", calls }, { "chase", chase } };
    printf("{\"size_bytes\": %zu, \"seconds\": {", size);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (kinds[k].run == chase) make_cycle((struct line *)memory, size / sizeof(struct line), seed);
        printf("%s\"%s\": [", k ? ", " : "", kinds[k].name);
        for (int pass = 0; pass < passes; pass++) {
            uint64_t start = now_ns();
            kinds[k].run();
            printf("%s%.6f", pass ? ", " : "", (double)(now_ns() - start) / 1e9);
        }
        printf("]");
    }
    printf("}, \"digest\": \"%016llx\"}\n", (unsigned long long)digest(seed, memory, size));
    return 0;
}
