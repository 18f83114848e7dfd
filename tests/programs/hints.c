/* Gives hints about memory, and checks that its bytes stay.
 *
 *     hints SIZE
 *
 * It prints the address of its memory, and before each step waits for a byte on stdin: MADV_PAGEOUT for all, MADV_WILLNEED for the first half
 * by posix_madvise, MADV_COLD for all, and a check of every word. */
#include "common.h"

static char in[BUFSIZ], out[BUFSIZ];

static void step(const char *what, void *at)
{
    printf("%s %p\n", what, at);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

int main(int argc, char **argv)
{
    setvbuf(stdin, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (argc != 2) die("usage: hints SIZE");
    size_t size = parse_size(argv[1]);
    uint64_t *words = map_anonymous(size);
    for (size_t i = 0; i < size / 8; i++) words[i] = mix(i);
    step("filled", words);
    if (madvise(words, size, MADV_PAGEOUT)) die("MADV_PAGEOUT: %s", strerror(errno));
    step("out", words);
    int why = posix_madvise(words, size / 2, POSIX_MADV_WILLNEED);
    if (why) die("POSIX_MADV_WILLNEED: %s", strerror(why));
    step("needed", words);
    if (madvise(words, size, MADV_COLD)) die("MADV_COLD: %s", strerror(errno));
    step("cold", words);
    for (size_t i = 0; i < size / 8; i++)
        if (words[i] != mix(i)) die("word %zu has other bytes than were written", i);
    printf("right\n");
    return 0;
}
