/* Becomes a daemon: fills its memory and ends. A child has all of that, needs none of it for some seconds, and checks it then.
 *
 *     orphan SIZE SECONDS */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: orphan SIZE SECONDS");
    size_t pages = parse_size(argv[1]) / PAGE;
    uint64_t *words = map_anonymous(pages * PAGE);
    for (size_t page = 0; page < pages; page++) words[page * (PAGE / sizeof *words)] = mix(page);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child > 0) _exit(0);
    sleep(atoi(argv[2]));
    for (size_t page = 0; page < pages; page++)
        if (words[page * (PAGE / sizeof *words)] != mix(page)) die("page %zu", page);
    puts("right");
    return 0;
}
