/* Fills memory with words that a driver looks for where they must not be.
 *
 *     secret SIZE [fork]
 *
 * Fills SIZE bytes with records of 32 bytes: a marker of 16 and a number of 16 hexadecimal digits. Then it drops all locks on
 * memory, which must not drop those of others, says "filled" and waits for one byte on stdin. With `fork` a child then writes another
 * marker over all of it, says "child" with its process id and waits likewise, checks its memory and ends. At last the records are checked, and
 * "right" is said. */
#include "common.h"
#include <sys/wait.h>

#define RECORD 32

static const char *const PARENT = "PARENTS-SECRET!!", *const CHILD = "CHILDREN-SECRET!";

static void wait_for_driver(void)
{
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) {}
}

static void record(char *to, const char *marker, size_t number)
{
    char text[RECORD + 1];
    snprintf(text, sizeof text, "%s%016zx", marker, number);
    memcpy(to, text, RECORD);
}

static void fill(char *memory, size_t size, const char *marker)
{
    for (size_t i = 0; i < size / RECORD; i++) record(memory + i * RECORD, marker, i);
}

static void check(const char *memory, size_t size, const char *marker)
{
    char expected[RECORD];
    for (size_t i = 0; i < size / RECORD; i++) {
        record(expected, marker, i);
        if (memcmp(memory + i * RECORD, expected, RECORD) != 0) die("record %zu is wrong: %.32s", i, memory + i * RECORD);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) die("usage: secret SIZE [fork]");
    size_t size = parse_size(argv[1]);
    if (size < PAGE) die("SIZE must be a page or more");
    char *memory = map_anonymous(size);
    fill(memory, size, PARENT);
    if (munlockall() < 0) die("munlockall");
    puts("filled");
    wait_for_driver();
    if (argc > 2 && strcmp(argv[2], "fork") == 0) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) {
            fill(memory, size, CHILD);
            printf("child %d\n", (int)getpid());
            wait_for_driver();
            check(memory, size, CHILD);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) die("the child ended with %#x", (unsigned)status);
    }
    check(memory, size, PARENT);
    puts("right");
    return 0;
}
