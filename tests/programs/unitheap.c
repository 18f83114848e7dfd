/* Unithreads that call libc as any C program does, with more data than memory: malloc and its kin, stdio, the resolver, qsort. None of them has a hold.
 *
 *   unitheap [heap|stdio|resolve|children]...     all, if none is named
 *
 * Each checks its own data. Prints "ok" at the end; any other end is a failure. */
#include "farshore_uthread.h"

#include <netdb.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);                                                       \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

/* 48 unithreads have about 1 MiB each. */
enum { UNITHREADS = 48, BLOCKS = 220, ROUNDS = 1200 };

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* A block of the heap that begins with its length, and is filled with one number. */
static unsigned char *fill(void *block, uint64_t *seed, size_t bytes)
{
    unsigned char mark = (unsigned char)next(seed), *at = block;
    CHECK(at);
    memcpy(at, &bytes, sizeof bytes);
    memset(at + sizeof bytes, mark, bytes - sizeof bytes);
    return at;
}

static size_t check(const unsigned char *block)
{
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    CHECK(bytes >= 24 && bytes < 100000);
    for (size_t i = sizeof bytes; i < bytes; i += 13)
        CHECK(block[i] == block[sizeof bytes]);
    return bytes;
}

static void *heap(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    unsigned char **blocks = calloc(BLOCKS, sizeof *blocks);
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char **place = &blocks[next(&seed) % BLOCKS];
        size_t bytes = 24 + next(&seed) % (next(&seed) % 4 ? 1000 : 20000);
        if (*place && next(&seed) % 3 == 0) {
            size_t had = check(*place);
            unsigned char mark = (*place)[sizeof had];
            *place = realloc(*place, bytes);
            CHECK(*place && (bytes < 25 || (*place)[sizeof had] == mark));
        } else if (*place) {
            check(*place);
            free(*place);
            *place = next(&seed) % 8 ? malloc(bytes) : calloc(1, bytes);
        } else {
            *place = malloc(bytes);
        }
        fill(*place, &seed, bytes);
        /* All have their data at a time. */
        if (i % 20 == 0)
            farshore_uthread_yield();
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i])
            check(blocks[i]);
        free(blocks[i]);
    }
    free(blocks);
    return NULL;
}

static int by_number(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

static FILE *shared;

static void *stdio(void *argument)
{
    enum { NUMBERS = 100000 };
    uint64_t seed = (uintptr_t)argument;
    int *numbers = malloc(NUMBERS * sizeof *numbers);
    CHECK(numbers);
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = (int)next(&seed);
    for (int round = 0; round < 3; round++) {
        char *text = NULL, *copy;
        size_t bytes = 0;
        FILE *stream = open_memstream(&text, &bytes);
        CHECK(stream);
        for (int i = 0; i < NUMBERS; i += 17) {
            CHECK(fprintf(stream, "%d ", numbers[i]) > 1);
            if (i % 340 == 0)
                farshore_uthread_yield();
            if (i % 50 == 0)
                CHECK(fprintf(shared, "%lu has %d, and many of them\n", (unsigned long)(uintptr_t)argument, numbers[i]) > 20);
        }
        CHECK(fclose(stream) == 0);
        copy = strdup(text);
        CHECK(copy && strlen(copy) == bytes && memcmp(copy, text, bytes) == 0);
        char *at = copy;
        for (int i = 0; i < NUMBERS; i += 17)
            CHECK(strtol(at, &at, 10) == numbers[i]);
        free(text);
        free(copy);
        qsort(numbers, NUMBERS, sizeof *numbers, by_number);
        for (int i = 1; i < NUMBERS; i++)
            CHECK(numbers[i - 1] <= numbers[i]);
        CHECK(bsearch(&numbers[NUMBERS / 3], numbers, NUMBERS, sizeof *numbers, by_number));
    }
    free(numbers);
    return NULL;
}

static void *resolve(void *argument)
{
    (void)argument;
    for (int i = 0; i < 40; i++) {
        struct addrinfo *found = NULL, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
        CHECK(getaddrinfo("localhost", "80", &hints, &found) == 0 && found);
        freeaddrinfo(found);
        /* Its memory is far when it is called again. */
        unsigned char *block = malloc(700000);
        uint64_t seed = (uintptr_t)argument + (uint64_t)i;
        fill(block, &seed, 90000);
        memset(block + 90000, 1, 610000);
        farshore_uthread_yield();
        check(block);
        free(block);
    }
    return NULL;
}

extern char **environ;

static void spawn(void *argument)
{
    char *words[] = {"sh", "-c", "grep -q '^SigBlk:.*0000000000000000$' /proc/self/status", NULL};
    CHECK(posix_spawnp(argument, "sh", NULL, NULL, words, environ) == 0);
}

/* What a unithread starts has what main has. */
static void *children(void *argument)
{
    int status;
    pid_t child = fork();
    (void)argument;
    if (child == 0)
        execlp("sh", "sh", "-c", "grep -q '^SigBlk:.*0000000000000000$' /proc/self/status", NULL);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    farshore_uthread_as_before(spawn, &child);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if ((child = fork()) == 0)
        return NULL;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void *(*function)(void *);
        int unithreads;
    } kinds[] = {{"heap", heap, UNITHREADS}, {"stdio", stdio, UNITHREADS}, {"resolve", resolve, UNITHREADS}, {"children", children, 3}};
    struct farshore_uthread_config config = {.workers = 2, .unithreads = 256, .stack_bytes = 256 << 10};
    farshore_uthread_t threads[4 * UNITHREADS];
    int running = 0;

    CHECK(shared = fopen("/dev/null", "w"));
    CHECK(farshore_uthread_start(&config) == 0);
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int wanted = count == 1;
        for (int word = 1; word < count; word++)
            wanted |= strcmp(words[word], kinds[i].name) == 0;
        for (int n = 0; wanted && n < kinds[i].unithreads; n++, running++)
            CHECK(farshore_uthread_spawn(&threads[running], kinds[i].function, (void *)(uintptr_t)(running + 1)) == 0);
    }
    CHECK(running > 0);
    for (int i = 0; i < running; i++)
        CHECK(farshore_uthread_join(threads[i], NULL) == 0);
    CHECK(farshore_uthread_shutdown(0) == 0);
    puts("ok");
    return 0;
}
