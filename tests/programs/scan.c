/* Writes memory once, then only reads it.
 *
 *     scan SIZE PASSES
 *
 * For the rule that a page which nobody writes is written out at most once. After the first touch and after each pass the
 * program prints a line and waits for one byte on stdin, so that a driver can read Farshore's counters in between. Each pass prints a
 * checksum; all are equal. */
#include "common.h"

static void wait_for_driver(const char *what, int pass, uint64_t sum)
{
    printf("%s %d %016llx\n", what, pass, (unsigned long long)sum);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

int main(int argc, char **argv)
{
    /* Not on the heap: its pages are managed, and stdio writes them in every pass. */
    static char in[BUFSIZ], out[BUFSIZ];
    setvbuf(stdin, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (argc < 3) die("usage: scan SIZE PASSES");
    size_t size = parse_size(argv[1]);
    int passes = atoi(argv[2]);
    if (size < PAGE || passes < 1) die("SIZE must be a page or more and PASSES 1 or more");
    uint64_t *words = map_anonymous(size);
    uint64_t first = 0;
    for (size_t i = 0; i < size / 8; i++) {
        words[i] = mix(i);
        first = first * 31 + words[i];
    }
    wait_for_driver("filled", 0, first);
    for (int pass = 1; pass <= passes; pass++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < size / 8; i++) sum = sum * 31 + words[i];
        wait_for_driver("pass", pass, sum);
        if (sum != first) die("pass %d read other bytes than were written", pass);
    }
    return 0;
}
