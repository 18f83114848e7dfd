/* Works on what it has in memory when it is asked to: the program of the guests of which tools/density.py packs as many as it can.
 *
 *     requested SIZE LINE
 *
 * Fills memory, half of each page with bytes that no compressor makes smaller, and says `ready`. LINE is a serial line. For a line `NUMBER TOUCHES` it reads, checks and changes so many pages, chosen by the number: nine of ten
 * are in a tenth of the memory, which lies scattered. It answers `NUMBER ok`; for the line `all` it checks all pages, and answers `all ok`. A page that is not as it was left: `wrong PAGE`. */
#include "common.h"
#include <fcntl.h>
#include <termios.h>

static uint64_t (*memory)[PAGE / 8];
static uint32_t *versions;
static size_t pages;

static uint64_t chance(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15;
    return mix(*state);
}

/* What is in a page of that version: its first words, and one in the middle. */
static void stamp(size_t page)
{
    memory[page][0] = mix(page << 32 | versions[page]);
    memory[page][PAGE / 16 - 1] = ~memory[page][0];
}

static int is_right(size_t page)
{
    uint64_t wanted = mix(page << 32 | versions[page]);
    return memory[page][0] == wanted && memory[page][PAGE / 16 - 1] == ~wanted;
}

/* The first page that is wrong; `pages`: none is. */
static size_t work(uint64_t number, size_t touches)
{
    uint64_t state = number;
    for (size_t n = 0; n < touches; n++) {
        uint64_t pick = chance(&state);
        size_t page = pick % 10 ? chance(&state) % (pages / 10) * 10 : chance(&state) % pages;
        if (!is_right(page)) return page;
        versions[page]++;
        stamp(page);
    }
    return pages;
}

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: requested SIZE LINE");
    pages = parse_size(argv[1]) / PAGE;
    if (pages < 10) die("SIZE must be ten pages or more");
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    versions = calloc(pages, sizeof *versions);
    int line = open(argv[2], O_RDWR | O_NOCTTY);
    struct termios how;
    if (memory == MAP_FAILED || !versions || line < 0 || tcgetattr(line, &how)) die("no memory or no serial line");
    cfmakeraw(&how);
    cfsetspeed(&how, B115200);
    if (tcsetattr(line, TCSANOW, &how)) die("the serial line cannot be set");
    /* A kernel without huge pages refuses, and needs no such wish. */
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    uint64_t state = 88;
    for (size_t page = 0; page < pages; page++) {
        for (size_t n = 1; n < PAGE / 16; n++) memory[page][n] = chance(&state);
        stamp(page);
    }
    FILE *in = fdopen(line, "r"), *out = fdopen(dup(line), "w");
    char text[128];
    fputs("ready\n", out);
    fflush(out);
    while (fgets(text, sizeof text, in)) {
        unsigned long long number = 0;
        size_t touches = 0, wrong = pages;
        int is_all = !strcmp(text, "all\n");
        if (!is_all && sscanf(text, "%llu %zu", &number, &touches) != 2) continue;
        if (is_all)
            for (wrong = 0; wrong < pages && is_right(wrong); wrong++);
        else
            wrong = work(number, touches);
        if (wrong < pages) fprintf(out, "wrong %zu\n", wrong);
        else if (is_all) fputs("all ok\n", out);
        else fprintf(out, "%llu ok\n", number);
        fflush(out);
    }
    return 0;
}
