/* Runs the test that its argument names. Exit status 0: it passed. */
#include "nettest.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"registers", test_registers}, {"clone", test_clone_registers}, {"redzone", test_red_zone}, {"threads", test_threads},
    {"processes", test_processes}, {"restart", test_restart},       {"longjmp", test_longjmp},  {"cancel", test_cancel},
    {"altstack", test_altstack},   {"storm", test_storm},           {"unwind", test_unwind},
    {"steps", test_steps},
};

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (count == 2 && !strcmp(words[1], tests[i].name)) {
            tests[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: nettest TEST\n");
    return 2;
}
