/* Goes through memory in a way that is known, for plans of how much memory a program needs.
 *
 *     patterns loop SIZE PASSES        all of it in order, so many times
 *     patterns hot SIZE HOT TOUCHES    at random: 63 of 64 touches go to the first HOT bytes
 *     patterns phases SIZE PART PASSES first all of it once in order, then the first PART bytes so many times
 *     patterns random SIZE TOUCHES     at random
 *
 * When it has filled its memory it rests for 1.5 seconds: a limit that follows its size has come by then.
 *
 * Each touch counts in a word of its page; at the end the counts must add up. */
#include "common.h"

static uint64_t *words;
static uint64_t touches;

static void touch(size_t page)
{
    words[page * (PAGE / 8) + page % 64]++;
    touches++;
}

static void around(size_t pages, long passes)
{
    for (long pass = 0; pass < passes; pass++)
        for (size_t page = 0; page < pages; page++) touch(page);
}

int main(int argc, char **argv)
{
    if (argc < 4) die("usage: patterns loop|hot|phases|random SIZE ...");
    size_t pages = parse_size(argv[2]) / PAGE;
    words = map_anonymous(pages * PAGE);
    around(pages, 1);
    nanosleep(&(struct timespec) { 1, 500000000 }, NULL);
    if (strcmp(argv[1], "loop") == 0) {
        around(pages, atol(argv[3]));
    } else if (strcmp(argv[1], "phases") == 0 && argc > 4) {
        around(parse_size(argv[3]) / PAGE, atol(argv[4]));
    } else {
        int is_hot = strcmp(argv[1], "hot") == 0;
        size_t hot = is_hot ? parse_size(argv[3]) / PAGE : pages;
        long count = atol(argv[argc - 1]);
        for (long i = 0; i < count; i++) {
            uint64_t random = mix((uint64_t)i);
            size_t range = is_hot && random % 64 != 0 ? hot : pages;
            touch((size_t)((random >> 8) % range));
        }
    }
    uint64_t sum = 0;
    for (size_t page = 0; page < pages; page++) sum += words[page * (PAGE / 8) + page % 64];
    if (sum != touches) die("%llu touches, and %llu are there", (unsigned long long)touches, (unsigned long long)sum);
    printf("%llu touches\n", (unsigned long long)touches);
    return 0;
}
