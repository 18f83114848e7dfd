/* Memory in thousands of small mappings, none of which touches another one: collectors and coroutines have it so. */
#include "pages.h"
#include <sys/wait.h>

/* 64 MiB in all. */
enum { COUNT = 4096, SMALL = 4 * PAGE };

static unsigned char *at[COUNT];

/* As Ruby maps its heap: twice as much, half of which goes again. */
static unsigned char *small(int populate)
{
    unsigned char *both = mmap(NULL, 2 * SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : 0), -1, 0);
    CHECK(both != MAP_FAILED && munmap(both + SMALL, SMALL) == 0);
    return both;
}

static size_t right(void)
{
    size_t count = 0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t which = i * 2654435761u % COUNT;
        count += at[which] == NULL || holds(at[which], SMALL, which);
    }
    return count;
}

static void make(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        at[i] = small(i % 64 == 0);
        fill(at[i], SMALL, i);
    }
    say("right: %zu", right());
}

static void change(void)
{
    for (size_t i = 0; i < COUNT; i += 3) {
        CHECK(munmap(at[i], SMALL) == 0);
        at[i] = NULL;
    }
    say("some gone: %zu", right());
    for (size_t i = 0; i < COUNT; i += 3) {
        at[i] = small(0);
        fill(at[i], SMALL, i);
    }
    for (size_t i = 1; i < COUNT; i += 5) CHECK(madvise(at[i], SMALL, MADV_DONTNEED) == 0 && at[i][SMALL - 1] == 0);
    for (size_t i = 1; i < COUNT; i += 5) fill(at[i], SMALL, i);
    say("and back: %zu", right());
}

/* When the program has had more than its limit for long. */
void section_small(void)
{
    make();
    change();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        size_t found = right();
        for (size_t i = 0; i < COUNT; i += 7) at[i][0] ^= 1;
        for (size_t i = 0; i < COUNT; i += 7) at[i][0] ^= 1;
        _exit(found == COUNT && right() == COUNT ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    say("child: %d", status);
    /* Two that lie together and grow. */
    unsigned char *pair = mmap(NULL, 2 * SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pair != MAP_FAILED);
    fill(pair, 2 * SMALL, 9);
    pair = mremap(pair, 2 * SMALL, 64 * SMALL, MREMAP_MAYMOVE);
    CHECK(pair != MAP_FAILED);
    say("grown: %d %d", holds(pair, 2 * SMALL, 9), pair[64 * SMALL - 1]);
    say("right: %zu", right());
}

/* When they themselves are what exceeds it. */
void section_smallbefore(void)
{
    make();
    change();
}

/* Of the program's own making: reserved, guarded and opened, as stacks of coroutines are. Half of each by a second mapping. */
static void guarded(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        unsigned char *whole = mmap(NULL, SMALL + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(whole != MAP_FAILED);
        at[i] = whole + PAGE;
        CHECK(mmap(at[i], SMALL / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at[i]);
        CHECK(mprotect(at[i], SMALL, PROT_READ | PROT_WRITE) == 0);
        fill(at[i], SMALL, i);
    }
    say("right: %zu", right());
    size_t moved = 0;
    for (size_t i = 0; i < COUNT; i += 16) {
        unsigned char *there = mremap(at[i], SMALL, 16 * SMALL, MREMAP_MAYMOVE);
        if (there != MAP_FAILED) at[i] = there, moved++;
    }
    say("moved: %zu, right: %zu", moved, right());
}

void section_smallguarded(void)
{
    guarded();
}

void section_smallguardedbefore(void)
{
    guarded();
}

/* From a page on, by mremap; first small, then large, with a fork in between. */
void section_smallgrows(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        at[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at[i] != MAP_FAILED);
        at[i] = mremap(at[i], PAGE, SMALL, MREMAP_MAYMOVE);
        CHECK(at[i] != MAP_FAILED);
        fill(at[i], SMALL, i);
    }
    say("right: %zu", right());
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(right() == COUNT ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    size_t moved = 0;
    for (size_t i = 0; i < COUNT; i += 16) {
        unsigned char *there = mremap(at[i], SMALL, 16 * SMALL, MREMAP_MAYMOVE);
        if (there != MAP_FAILED) at[i] = there, moved++;
    }
    say("child: %d, moved: %zu, right: %zu", status, moved, right());
}

/* Memory that was read and never written, when the process wakes because it forks: small and large. */
void section_readonly(void)
{
    unsigned char *large = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(large != MAP_FAILED);
    for (size_t i = 0; i < 64; i++) {
        /* Something else between any two, so that they are mappings of their own. */
        CHECK((at[i] = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    }
    size_t sum = 0;
    for (size_t i = 0; i < 64; i++) for (size_t j = 0; j < SMALL; j += PAGE) sum += at[i][j];
    for (size_t j = 0; j < MIB; j += PAGE) sum += large[j];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < 64; i++) for (size_t j = 0; j < SMALL; j += PAGE) sum += at[i][j];
        for (size_t j = 0; j < MIB; j += PAGE) sum += large[j];
        _exit(sum != 0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    say("child: %d, sum: %zu", status, sum);
}
