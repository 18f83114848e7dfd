/* The linear prefetcher: behind each fault it asks for the pages that come next. `linear PID`; `farshore set PID ahead=32` changes how many. */
#define _GNU_SOURCE
#include <farshore_policy.h>

int main(int argc, char **argv)
{
    struct farshore_policy program;
    struct farshore_event event;
    if (argc != 2 || farshore_attach(&program, atoi(argv[1]))) return fprintf(stderr, "linear: %s\n", argc == 2 ? program.why : "usage: linear PID"), 1;
    int ahead = farshore_register(&program, "ahead", 8);
    farshore_want(&program, FARSHORE_FAULT);
    while (farshore_next(&program, &event, -1)) {
        int64_t pages = farshore_parameter(&program, ahead);
        farshore_ask(&program, FARSHORE_PREFETCH, event.address + 4096, pages > 0 ? (uint64_t)pages : 1, 0);
    }
    farshore_detach(&program);
    return 0;
}
