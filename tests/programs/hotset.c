/* Touches a part of its memory at random, all pages of it alike, and leaves the rest alone. How large the part is changes on demand.
 *
 *     hotset SIZE HOT           until its input says `end`; `hot SIZE` makes another part hot
 *     hotset SIZE HOT TOUCHES   so many times, and then what each took
 *
 * For memory limits that follow what a program loses. Each touch works a little on its page and counts in it; at the end the counts must
 * add up, in all pages, and it says how many there were. */
#include "common.h"
#include <poll.h>

#define WORDS (PAGE / 8)
/* Touches between two looks at the input. */
#define LOOK 4096

static uint64_t *words;
static uint64_t touches, seed;

/* Reads the page, as a program would that looks something up there, and counts. */
static void touch(size_t page)
{
    uint64_t *at = words + page * WORDS, sum = 0;
    for (size_t i = 1; i < WORDS; i++) sum = mix(sum ^ at[i]);
    if (sum == 1) die("a sum that there is not"); /* it is looked at */
    at[0]++;
    touches++;
}

static void work(size_t hot, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) touch((size_t)(mix(seed++) % hot));
}

/* Whether to go on; `hot` may change. Not by stdio: its buffers are memory that is managed. */
static int look(size_t *hot)
{
    struct pollfd input = { .fd = 0, .events = POLLIN };
    if (poll(&input, 1, 0) <= 0) return 1;
    char line[64] = { 0 };
    size_t had = 0;
    while (had < sizeof line - 1 && read(0, line + had, 1) == 1 && line[had] != '\n') had++;
    line[had] = 0;
    if (strncmp(line, "hot ", 4) != 0) return 0;
    *hot = parse_size(line + 4) / PAGE;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: hotset SIZE HOT [TOUCHES]");
    size_t pages = parse_size(argv[1]) / PAGE, hot = parse_size(argv[2]) / PAGE;
    if (hot < 1 || hot > pages) die("HOT must be a page or more and no more than SIZE");
    words = map_anonymous(pages * PAGE);
    for (size_t page = 0; page < pages; page++) {
        for (size_t i = 1; i < WORDS; i++) words[page * WORDS + i] = page * WORDS + i;
        touch(page);
    }
    if (argc > 3) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        work(hot, strtoull(argv[3], NULL, 10));
        clock_gettime(CLOCK_MONOTONIC, &to);
        fprintf(stderr, "%.3f seconds\n", (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    } else {
        dprintf(1, "ready\n");
        while (look(&hot)) work(hot, LOOK);
    }
    uint64_t sum = 0;
    for (size_t page = 0; page < pages; page++) {
        sum += words[page * WORDS];
        for (size_t i = 1; i < WORDS; i++)
            if (words[page * WORDS + i] != page * WORDS + i) die("page %zu has other bytes", page);
    }
    if (sum != touches) die("%llu touches, and %llu are there", (unsigned long long)touches, (unsigned long long)sum);
    printf("right\n");
    return 0;
}
