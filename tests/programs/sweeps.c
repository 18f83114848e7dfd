/* Goes through one array in order and keeps another one hot, each in a function of its own, for recordings of faults.
 *
 *     sweeps SIZE HOT PASSES
 *
 * With SWEEPS_WAIT in the environment it fills the array first, says where it is, and waits for a line: so a recording can begin there. */
#include "common.h"

static volatile uint64_t *swept, *hot;

__attribute__((noinline)) static void sweep(size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        swept[page * (PAGE / 8)]++; /* the line that sweeps */
}

__attribute__((noinline)) static void keep_hot(size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        hot[page * (PAGE / 8)]++; /* the line that keeps hot */
}

int main(int argc, char **argv)
{
    if (argc < 4) die("usage: sweeps SIZE HOT PASSES");
    size_t pages = parse_size(argv[1]) / PAGE, few = parse_size(argv[2]) / PAGE;
    swept = map_anonymous(pages * PAGE);
    hot = map_anonymous(few * PAGE);
    if (getenv("SWEEPS_WAIT") != NULL) {
        sweep(pages);
        printf("%p\n", (void *)swept);
        fflush(stdout);
        getchar();
    }
    for (long pass = 0; pass < atol(argv[3]); pass++) {
        sweep(pages);
        for (int again = 0; again < 8; again++) keep_hot(few);
    }
    printf("%llu %llu\n", (unsigned long long)swept[0], (unsigned long long)hot[0]);
    return 0;
}
