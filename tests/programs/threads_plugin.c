/* A library for the section `plugins` of `threads`: thread-local storage of some size, a constructor and a destructor. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static __thread int counts[20000] = { 5 };
static uint64_t *table;
enum { WORDS = 1 << 18 };

static __attribute__((constructor)) void load(void)
{
    table = malloc(WORDS * sizeof *table);
    for (size_t i = 0; i < WORDS; i++) table[i] = i * 0x9e3779b97f4a7c15u;
}

static __attribute__((destructor)) void unload(void)
{
    for (size_t i = 0; i < WORDS; i++) {
        if (table[i] != i * 0x9e3779b97f4a7c15u) abort();
    }
    free(table);
    printf("unloaded\n");
}

int plugin_count(int at)
{
    counts[at * 397] += at + 1;
    int sum = 0;
    for (int i = 0; i < 20000; i += 397) sum += counts[i];
    return sum;
}

uint64_t plugin_state(void)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < WORDS; i++) sum = sum * 31 + table[i];
    return sum;
}
