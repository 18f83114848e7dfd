/* A storm on the allocator, whichever it is: every block holds a pattern that is checked when it is freed, moved, or handed to another thread.
 *
 *     allocators THREADS ROUNDS
 *
 * Prints the same with each allocator, natively and under Farshore. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { BLOCKS = 600, SHARED = 128 };

struct block {
    unsigned char *at;
    size_t size;
    uint64_t salt;
};

static _Atomic(struct block *) shared[SHARED];
static size_t rounds;
static atomic_ullong checked;

static void fill(const struct block *b)
{
    for (size_t i = 0; i < b->size; i += 61) b->at[i] = (unsigned char)(mix(b->salt ^ i));
    if (b->size > 0) b->at[b->size - 1] = (unsigned char)b->salt;
}

static void check(const struct block *b, size_t upto)
{
    for (size_t i = 0; i < upto; i += 61) {
        unsigned char expected = i == b->size - 1 ? (unsigned char)b->salt : (unsigned char)mix(b->salt ^ i);
        if (b->at[i] != expected) die("byte %zu of a block of %zu", i, b->size);
    }
    if (upto == b->size && b->size > 0 && b->at[b->size - 1] != (unsigned char)b->salt) die("the last byte of a block of %zu", b->size);
    atomic_fetch_add(&checked, 1);
}

static size_t some_size(struct rng *r)
{
    switch (rng_below(r, 20)) {
    case 0: return 200000 + rng_below(r, 1500000);
    case 1: case 2: return 20000 + rng_below(r, 60000);
    case 3: case 4: case 5: return 1000 + rng_below(r, 6000);
    default: return 1 + rng_below(r, 700);
    }
}

static void allocate(struct block *b, struct rng *r)
{
    b->size = some_size(r);
    b->salt = rng_next(r);
    void *at = NULL;
    switch (rng_below(r, 5)) {
    case 0:
        if (posix_memalign(&at, (size_t)16 << rng_below(r, 9), b->size) != 0) die("posix_memalign of %zu", b->size);
        break;
    case 1:
        at = calloc(1, b->size);
        for (size_t i = 0; at != NULL && i < b->size; i += 509) {
            if (((unsigned char *)at)[i] != 0) die("calloc gave a byte that is not 0");
        }
        break;
    default: at = malloc(b->size);
    }
    if (at == NULL || malloc_usable_size(at) < b->size) die("no memory for %zu bytes", b->size);
    b->at = at;
    fill(b);
}

static void grow(struct block *b, struct rng *r)
{
    size_t before = b->size, size = some_size(r);
    struct block old = *b;
    b->at = realloc(b->at, size);
    if (b->at == NULL) die("realloc to %zu", size);
    old.at = b->at;
    check(&old, size < before ? size : before);
    b->size = size;
    fill(b);
}

/* Hands a block to whoever comes next, and frees what was there. */
static void hand_over(struct block *b, struct rng *r)
{
    struct block *own = malloc(sizeof *own);
    if (own == NULL) die("malloc");
    *own = *b;
    b->at = NULL;
    struct block *before = atomic_exchange(&shared[rng_below(r, SHARED)], own);
    if (before != NULL) {
        check(before, before->size);
        free(before->at);
        free(before);
    }
}

static void *storm(void *argument)
{
    struct rng r = { 1000 + (uint64_t)(uintptr_t)argument };
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    uint64_t allocated = 0;
    for (size_t i = 0; i < rounds; i++) {
        struct block *b = &blocks[rng_below(&r, BLOCKS)];
        if (b->at == NULL) {
            allocate(b, &r);
            allocated += b->size;
        } else if (rng_below(&r, 4) == 0) {
            grow(b, &r);
        } else if (rng_below(&r, 8) == 0) {
            hand_over(b, &r);
        } else {
            check(b, b->size);
            free(b->at);
            b->at = NULL;
        }
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].at == NULL) continue;
        check(&blocks[i], blocks[i].size);
        free(blocks[i].at);
    }
    free(blocks);
    return (void *)(uintptr_t)allocated;
}

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: allocators THREADS ROUNDS");
    int count = atoi(argv[1]);
    rounds = (size_t)atoi(argv[2]);
    pthread_t threads[64];
    for (int wave = 0; wave < 2; wave++) {
        uint64_t sum = 0;
        for (int i = 0; i < count; i++) {
            if (pthread_create(&threads[i], NULL, storm, (void *)(uintptr_t)(wave * 100 + i)) != 0) die("pthread_create");
        }
        for (int i = 0; i < count; i++) {
            void *allocated;
            if (pthread_join(threads[i], &allocated) != 0) die("pthread_join");
            sum += (uint64_t)(uintptr_t)allocated;
        }
        printf("wave %d: %llu bytes\n", wave, (unsigned long long)sum);
    }
    for (size_t i = 0; i < SHARED; i++) {
        struct block *left = atomic_exchange(&shared[i], NULL);
        if (left == NULL) continue;
        check(left, left->size);
        free(left->at);
        free(left);
    }
    fflush(stdout);
    /* A forked child has the allocator's state, and goes on with it. */
    pid_t pid = fork();
    if (pid == 0) {
        rounds /= 4;
        storm((void *)7);
        _exit(5);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 5) die("the child: %x", status);
    printf("child ok\n");
    return 0;
}
