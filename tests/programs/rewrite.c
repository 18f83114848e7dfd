/* Writes each page of its memory again and again, after a look at what it wrote there before.
 *
 *     rewrite SIZE PASSES */
#include "common.h"

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: rewrite SIZE PASSES");
    size_t pages = parse_size(argv[1]) / PAGE;
    uint64_t *words = map_anonymous(pages * PAGE);
    for (uint64_t pass = 0; pass < (uint64_t)atoi(argv[2]); pass++) {
        for (size_t page = 0; page < pages; page++) {
            uint64_t *word = words + page * (PAGE / sizeof *words);
            if (pass > 0 && *word != mix(page) + pass - 1) die("page %zu in pass %d", page, (int)pass);
            *word = mix(page) + pass;
        }
    }
    puts("right");
    return 0;
}
