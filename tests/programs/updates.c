/* Fills its memory and says `filled`; then several threads update pages at random until its input ends. All must be as they were made and counted.
 *
 *     updates SIZE THREADS
 *
 * For what is done to a program while it works: it works as long as that takes, on however busy a machine. Half of each page is noise, so
 * that it compresses to half. A touch looks at one word of a page and counts in another. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define WORDS (PAGE / 8)
#define THREADS_MAX 64

static _Atomic uint64_t *words;
static size_t pages;
static atomic_int over;
static uint64_t touches[THREADS_MAX];

static uint64_t wanted(size_t page, size_t word)
{
    return word < WORDS / 2 ? mix(page * WORDS + word) : page;
}

/* The first word of a page is the count of its touches. */
static void *work(void *argument)
{
    size_t me = (size_t)argument;
    struct rng random = { me };
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        size_t page = rng_below(&random, pages), word = 1 + rng_below(&random, WORDS - 1);
        _Atomic uint64_t *at = words + page * WORDS;
        if (atomic_load_explicit(at + word, memory_order_relaxed) != wanted(page, word)) die("word %zu of page %zu is another", word, page);
        atomic_fetch_add_explicit(at, 1, memory_order_relaxed);
        touches[me]++;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    size_t count = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (count < 1 || count > THREADS_MAX) die("usage: updates SIZE THREADS");
    pages = parse_size(argv[1]) / PAGE;
    words = map_anonymous(pages * PAGE);
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 1; word < WORDS; word++) atomic_store_explicit(words + page * WORDS + word, wanted(page, word), memory_order_relaxed);
    dprintf(1, "filled\n");
    pthread_t threads[THREADS_MAX];
    for (size_t n = 0; n < count; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)n) != 0) die("no thread");
    char byte;
    while (read(0, &byte, 1) > 0) {}
    atomic_store(&over, 1);
    uint64_t made = 0, sum = 0;
    for (size_t n = 0; n < count; n++) {
        pthread_join(threads[n], NULL);
        made += touches[n];
    }
    for (size_t page = 0; page < pages; page++) {
        sum += words[page * WORDS];
        for (size_t word = 1; word < WORDS; word++)
            if (words[page * WORDS + word] != wanted(page, word)) die("word %zu of page %zu is another", word, page);
    }
    if (sum != made) die("%llu touches, and %llu are there", (unsigned long long)made, (unsigned long long)sum);
    printf("right\n");
    return 0;
}
