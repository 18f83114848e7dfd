/* Says in which order it will use its memory, and goes through it.
 *
 *     orders SIZE normal|sequential|random|posix-sequential|posix-random
 *
 * It writes each page, gives the advice, has all pages leave (MADV_PAGEOUT), and reads its memory upwards. Before each step it prints a line and
 * waits for a byte on stdin. In the end it checks every word, and what the calls answer to bad arguments. */
#include "common.h"

static char in[BUFSIZ], out[BUFSIZ];

static void step(const char *what, void *at)
{
    printf("%s %p\n", what, at);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

static int advice_of(const char *name)
{
    if (strstr(name, "sequential")) return MADV_SEQUENTIAL;
    return strstr(name, "random") ? MADV_RANDOM : MADV_NORMAL;
}

int main(int argc, char **argv)
{
    setvbuf(stdin, in, _IOFBF, sizeof in);
    setvbuf(stdout, out, _IOFBF, sizeof out);
    if (argc != 3) die("usage: orders SIZE ADVICE");
    size_t size = parse_size(argv[1]);
    int advice = advice_of(argv[2]);
    uint64_t *words = map_anonymous(size);
    for (size_t i = 0; i < size / 8; i++) words[i] = mix(i);
    step("filled", words);
    int why = strncmp(argv[2], "posix", 5) ? (madvise(words, size, advice) ? errno : 0) : posix_madvise(words, size, advice);
    if (why) die("the advice: %s", strerror(why));
    if (madvise(words, size, MADV_PAGEOUT)) die("MADV_PAGEOUT: %s", strerror(errno));
    step("out", words);
    uint64_t sum = 0;
    for (size_t i = 0; i < size / 8; i += 512) sum += words[i];
    step("read", words);
    for (size_t i = 0; i < size / 8; i++)
        if (words[i] != mix(i)) die("word %zu has other bytes than were written", i);
    munmap((char *)words + size / 2, 4096);
    printf("right %lu", (unsigned long)sum);
    for (int what = MADV_NORMAL; what <= MADV_SEQUENTIAL; what++) {
        printf(" %d", madvise(words, size, what) ? errno : 0);
        printf(" %d", madvise((char *)words + 1, 4096, what) ? errno : 0);
        printf(" %d", madvise(words, 0, what) ? errno : 0);
    }
    printf("\n");
    return 0;
}
