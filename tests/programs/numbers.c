/* A child of a program with more memory than it may have opens files until there are no numbers left, and reads from each.
 *
 *     numbers SIZE */
#include "common.h"

#include <fcntl.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
    if (argc != 2) die("usage: numbers SIZE");
    size_t pages = parse_size(argv[1]) / PAGE;
    uint64_t *words = map_anonymous(pages * PAGE);
    for (size_t page = 0; page < pages; page++) words[page * (PAGE / sizeof *words)] = mix(page);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        int opened = 0, number;
        char byte;
        while ((number = open("/dev/zero", O_RDONLY)) >= 0) {
            if (read(number, &byte, 1) != 1) die("descriptor %d, which was just opened, cannot be read", number);
            opened++;
        }
        printf("%d\n", opened);
        return 0;
    }
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    return status != 0;
}
