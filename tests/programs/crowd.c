/* One thread goes through memory while others only compute, and touch nothing of it.
 *
 *     crowd SIZE PASSES SPINNERS
 *
 * For the processor's share of each: the spinners must not keep evictors from their work, nor evictors the spinners. The program writes its memory, changes every page
 * in each pass, and checks what the pass before has left. Then it prints the fewest turns that a spinner has made since the first pass, and
 * waits for one byte on stdin, and so once before its first pass. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define SPINNERS_MAX 256

static struct {
    _Alignas(64) atomic_ulong turns;
} counts[SPINNERS_MAX];
static atomic_int over;

static void *spin(void *argument)
{
    size_t me = (size_t)argument;
    uint64_t x = me;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        for (int i = 0; i < 1000; i++) x = mix(x);
        atomic_fetch_add_explicit(&counts[me].turns, 1 + (x == 0), memory_order_relaxed);
    }
    return NULL;
}

static void wait_for_driver(const char *what, unsigned long number)
{
    printf("%s %lu\n", what, number);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

int main(int argc, char **argv)
{
    if (argc != 4) die("usage: crowd SIZE PASSES SPINNERS");
    size_t size = parse_size(argv[1]), spinners = (size_t)atoi(argv[3]);
    uint64_t passes = (uint64_t)atoi(argv[2]);
    if (size < PAGE || spinners > SPINNERS_MAX) die("SIZE must be a page or more and SPINNERS at most %d", SPINNERS_MAX);
    unsigned char *memory = map_anonymous(size);
    pthread_t threads[SPINNERS_MAX];
    for (size_t n = 0; n < spinners; n++)
        if (pthread_create(&threads[n], NULL, spin, (void *)n) != 0) die("no thread");
    wait_for_driver("ready", 0);
    for (uint64_t pass = 0; pass <= passes; pass++) {
        for (size_t at = 0; at < size; at += PAGE) {
            uint64_t *word = (uint64_t *)(memory + at);
            uint64_t expected = pass == 0 ? 0 : mix(at + pass - 1);
            if (*word != expected) die("pass %d: the page at %zu has other bytes than were written", (int)pass, at);
            *word = mix(at + pass);
        }
    }
    /* A spinner that had no turn so far has its first one yet. */
    unsigned long fewest = -1UL;
    for (size_t n = 0; n < spinners; n++) {
        while (atomic_load(&counts[n].turns) == 0) sched_yield();
        unsigned long turns = atomic_load(&counts[n].turns);
        fewest = turns < fewest ? turns : fewest;
    }
    wait_for_driver("done", fewest);
    atomic_store(&over, 1);
    for (size_t n = 0; n < spinners; n++) pthread_join(threads[n], NULL);
    return 0;
}
