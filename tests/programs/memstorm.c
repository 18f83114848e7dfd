/* Threads that write patterns into memory, check them, and move the memory about, while the others do the same.
 *
 *     memstorm THREADS MIB ROUNDS SEED [OPERATION...]
 *
 * With names of operations (write, change, dontneed, resize ...) only these are done, to find the one that fails. MIB is the memory of all threads together. Every thread owns areas (anonymous mappings). For every page the thread keeps what the
 * page must hold: a version (0: zeros) and a count of small changes, from which every word follows. An operation changes
 * memory and this record alike, so a page that comes back with older bytes, another page's bytes or zeros is found.
 *
 * The choice of operations depends on the seed alone, so the digest of the final contents does too: same arguments, same output,
 * however the threads were scheduled. Only pages that were given up with MADV_FREE may hold either of two contents; they are left out.
 *
 * Between rounds all threads meet, and each checks every word of its neighbour's areas. A further area is shared by all: each
 * page belongs to all threads, each word to one, so that several threads fault on one page at the same time. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define WORDS (PAGE / 8)
#define AREAS 3
#define OPERATIONS 48
#define CHUNKS 96
#define SHARED_PAGES 512

struct page_state {
    uint32_t version;
    uint16_t changes;
    uint8_t maybe_freed;
};

struct area {
    unsigned char *at;
    size_t pages, most;
    uint64_t name; /* says which area of which thread, so that no two pages hold the same bytes */
    struct page_state *state;
};

struct chunk {
    uint64_t *at;
    size_t size;
    uint64_t salt;
};

struct thread {
    pthread_t handle;
    unsigned number;
    struct rng rng;
    uint32_t next_version;
    struct area areas[AREAS];
    struct chunk chunks[CHUNKS];
    uint64_t digest;
};

static unsigned threads, rounds;
static size_t pages_of_area;
static struct thread *all;
static pthread_barrier_t barrier;
static uint64_t *shared;

/* ---------------------------------------------------------------------- what a page must hold */

static uint64_t base_of(const struct area *a, size_t page, uint32_t version)
{
    return version == 0 ? 0 : mix(a->name ^ (page << 20) ^ version);
}

static uint64_t stride_of(uint32_t version)
{
    return version == 0 ? 0 : 0x9e3779b97f4a7c15u;
}

static size_t changed_word(const struct area *a, size_t page)
{
    return mix(a->name + page) % WORDS;
}

static void fail_page(const struct area *a, size_t page, size_t word, uint64_t got, uint64_t wanted)
{
    die("area %llx page %zu word %zu at %p: holds %016llx, must hold %016llx (version %u)", (unsigned long long)a->name, page, word,
        (void *)(a->at + page * PAGE), (unsigned long long)got, (unsigned long long)wanted, a->state[page].version);
}

static void check_page(const struct area *a, size_t page)
{
    const uint64_t *words = (const uint64_t *)(a->at + page * PAGE);
    const struct page_state *s = &a->state[page];
    uint64_t base = base_of(a, page, s->version), stride = stride_of(s->version);
    size_t special = changed_word(a, page);
    uint64_t changes = s->changes;
    if (s->maybe_freed) {
        /* Either all of the contents are there, or none: the special word and its neighbour tell which to expect. */
        int kept = words[special] == base + special * stride + changes && words[special ^ 1] == base + (special ^ 1) * stride;
        if (!kept) base = stride = changes = 0;
    }
    for (size_t i = 0; i < WORDS; i++) {
        uint64_t wanted = base + i * stride + (i == special ? changes : 0);
        if (words[i] != wanted) fail_page(a, page, i, words[i], wanted);
    }
}

static void check_area(const struct area *a)
{
    for (size_t i = 0; i < a->pages; i++) check_page(a, i);
}

static void write_page(struct thread *t, struct area *a, size_t page)
{
    uint64_t *words = (uint64_t *)(a->at + page * PAGE);
    uint32_t version = t->next_version++;
    uint64_t base = base_of(a, page, version), stride = stride_of(version);
    for (size_t i = 0; i < WORDS; i++) words[i] = base + i * stride;
    a->state[page] = (struct page_state){ .version = version };
}

static void zeroed(struct area *a, size_t from, size_t count)
{
    memset(a->state + from, 0, count * sizeof *a->state);
}

/* ---------------------------------------------------------------------------------- operations */

/* A random piece of an area, seldom all of it. */
static size_t piece(struct thread *t, const struct area *a, size_t *count)
{
    size_t from = rng_below(&t->rng, a->pages);
    size_t most = a->pages - from;
    *count = 1 + rng_below(&t->rng, most < 64 ? most : 64);
    return from;
}

static void advise(struct area *a, size_t from, size_t count, int advice, const char *name)
{
    if (madvise(a->at + from * PAGE, count * PAGE, advice) != 0 && errno != EINVAL) die("madvise %s of %zu pages", name, count);
}

static void operate_write(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    for (size_t i = 0; i < count; i++) write_page(t, a, from + i);
}

static void operate_change(struct thread *t, struct area *a)
{
    for (int i = 0; i < 32; i++) {
        size_t page = rng_below(&t->rng, a->pages);
        if (a->state[page].maybe_freed) {
            write_page(t, a, page);
            continue;
        }
        ((uint64_t *)(a->at + page * PAGE))[changed_word(a, page)]++;
        a->state[page].changes++;
    }
}

static void operate_check(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    for (size_t i = 0; i < count; i++) check_page(a, from + i);
}

static void operate_dontneed(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    advise(a, from, count, MADV_DONTNEED, "DONTNEED");
    zeroed(a, from, count);
    check_page(a, from + count / 2);
}

static void operate_free(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    advise(a, from, count, MADV_FREE, "FREE");
    for (size_t i = 0; i < count; i++) a->state[from + i].maybe_freed = 1;
}

static void operate_populate(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    static const int advices[] = { MADV_WILLNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_COLD, MADV_PAGEOUT };
    advise(a, from, count, advices[rng_below(&t->rng, 5)], "WILLNEED, POPULATE, COLD or PAGEOUT");
    for (size_t i = 0; i < count; i++) check_page(a, from + i);
}

static void operate_protect(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    unsigned char *at = a->at + from * PAGE;
    int none = rng_below(&t->rng, 2) == 0;
    if (mprotect(at, count * PAGE, none ? PROT_NONE : PROT_READ) != 0) die("mprotect");
    for (size_t i = 0; !none && i < count; i++) check_page(a, from + i);
    if (mprotect(at, count * PAGE, PROT_READ | PROT_WRITE) != 0) die("mprotect back");
    for (size_t i = 0; i < count; i++) check_page(a, from + i);
}

/* munmap of a piece and mmap at the same place, or mmap over it without the munmap. */
static void operate_replace(struct thread *t, struct area *a)
{
    size_t count, from = piece(t, a, &count);
    unsigned char *at = a->at + from * PAGE;
    /* Another thread's mmap may take the hole between the two calls, so the hole is made in a PROT_NONE place that is ours. */
    if (rng_below(&t->rng, 2) == 0) {
        void *none = mmap(at, count * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (none != at) die("mmap PROT_NONE over %zu pages", count);
    }
    void *again = mmap(at, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (again != at) die("mmap MAP_FIXED over %zu pages", count);
    zeroed(a, from, count);
    check_page(a, from);
}

/* mremap refuses (EFAULT) what consists of several mappings, and MAP_FIXED and mprotect leave such areas: then by hand. */
static unsigned char *copy_instead(struct area *a, size_t pages, void *place)
{
    unsigned char *at = mmap(place, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0), -1, 0);
    if (at == MAP_FAILED) die("mmap of %zu pages instead of mremap", pages);
    memcpy(at, a->at, (pages < a->pages ? pages : a->pages) * PAGE);
    if (munmap(a->at, a->pages * PAGE) != 0) die("munmap of %zu pages", a->pages);
    return at;
}

static void operate_resize(struct thread *t, struct area *a)
{
    size_t pages = a->most / 2 + rng_below(&t->rng, a->most / 2) + 1;
    unsigned char *at = mremap(a->at, a->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (at == MAP_FAILED && errno == EFAULT) at = copy_instead(a, pages, NULL);
    if (at == MAP_FAILED) die("mremap from %zu to %zu pages", a->pages, pages);
    a->at = at;
    if (pages > a->pages) zeroed(a, a->pages, pages - a->pages);
    a->pages = pages;
    check_page(a, pages - 1);
    check_page(a, rng_below(&t->rng, pages));
}

/* The whole area moves to a place that is known beforehand (MREMAP_FIXED), sometimes leaving the old one mapped and empty. */
static void operate_move(struct thread *t, struct area *a)
{
    size_t bytes = a->pages * PAGE;
    unsigned char *old = a->at;
    void *place = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) die("mmap of a place of %zu bytes", bytes);
    int keep = rng_below(&t->rng, 3) == 0;
    unsigned char *at = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0), place);
    if (at == MAP_FAILED && errno == EFAULT) {
        at = copy_instead(a, a->pages, place);
        keep = 0;
    }
    if (at != place) die("mremap to a fixed place%s", keep ? ", keeping the old one" : "");
    a->at = at;
    if (keep) {
        for (size_t i = 0; i < bytes; i += 8 * PAGE) {
            if (*(uint64_t *)(old + i) != 0) die("a page that MREMAP_DONTUNMAP left behind is not zero");
        }
        if (munmap(old, bytes) != 0) die("munmap of what DONTUNMAP left");
    }
    for (int i = 0; i < 8; i++) check_page(a, rng_below(&t->rng, a->pages));
}

/* The area is thrown away and made anew; its neighbours in the address space may be other threads'. */
static void operate_renew(struct thread *t, struct area *a)
{
    check_area(a);
    size_t half = a->pages / 2 * PAGE;
    if (munmap(a->at, half) != 0) die("munmap of the first half");
    if (a->pages > a->pages / 2 && munmap(a->at + half, a->pages * PAGE - half) != 0) die("munmap of the second half");
    a->pages = a->most / 2 + 1;
    a->at = map_anonymous(a->pages * PAGE);
    zeroed(a, 0, a->pages);
    write_page(t, a, a->pages / 2);
}

/* ------------------------------------------------------------------------------ malloc and co. */

static void fill_chunk(struct chunk *c, size_t from_word)
{
    for (size_t i = from_word; i < c->size / 8; i++) c->at[i] = c->salt + i;
}

static void check_chunk(const struct chunk *c, size_t size)
{
    for (size_t i = 0; i < size / 8; i++) {
        if (c->at[i] != c->salt + i) die("malloc'd chunk of %zu bytes: word %zu holds %016llx", c->size, i, (unsigned long long)c->at[i]);
    }
}

static void operate_malloc(struct thread *t, struct area *unused)
{
    (void)unused;
    for (int i = 0; i < 24; i++) {
        struct chunk *c = &t->chunks[rng_below(&t->rng, CHUNKS)];
        size_t size = ((size_t)16 << rng_below(&t->rng, 15)) + rng_below(&t->rng, 64) * 8;
        if (c->at != NULL && rng_below(&t->rng, 3) == 0) {
            size_t kept = size < c->size ? size : c->size;
            c->at = realloc(c->at, size);
            if (c->at == NULL) die("realloc to %zu", size);
            c->size = size;
            check_chunk(c, kept);
        } else {
            if (c->at != NULL) check_chunk(c, c->size);
            free(c->at);
            int zero = rng_below(&t->rng, 3) == 0;
            c->at = zero ? calloc(size / 8, 8) : size % 3 == 0 ? memalign(256, size) : malloc(size);
            if (c->at == NULL) die("malloc of %zu", size);
            c->size = size / 8 * 8;
            for (size_t w = 0; zero && w < c->size / 8; w++) {
                if (c->at[w] != 0) die("calloc of %zu bytes: word %zu is not zero", size, w);
            }
        }
        c->salt = rng_next(&t->rng);
        fill_chunk(c, 0);
    }
}

/* Each thread its words in every shared page: the pages are faulted by several threads at once. */
static void operate_shared(struct thread *t, struct area *unused)
{
    (void)unused;
    size_t from = rng_below(&t->rng, SHARED_PAGES);
    for (size_t i = 0; i < 64; i++) {
        uint64_t *page = shared + (from + i) % SHARED_PAGES * WORDS;
        for (size_t w = t->number; w < WORDS; w += threads * 8) page[w] += t->number + 1;
    }
}

typedef void operation(struct thread *, struct area *);

static struct { operation *run; const char *name; unsigned weight; } operations[] = {
    { operate_write, "write", 12 }, { operate_change, "change", 12 }, { operate_check, "check", 10 }, { operate_dontneed, "dontneed", 4 },
    { operate_free, "free", 3 }, { operate_populate, "populate", 4 }, { operate_protect, "protect", 4 }, { operate_replace, "replace", 4 },
    { operate_resize, "resize", 3 }, { operate_move, "move", 3 }, { operate_renew, "renew", 1 }, { operate_malloc, "malloc", 8 },
    { operate_shared, "shared", 8 },
};

static void operate(struct thread *t)
{
    unsigned total = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) total += operations[i].weight;
    unsigned r = (unsigned)rng_below(&t->rng, total);
    struct area *a = &t->areas[rng_below(&t->rng, AREAS)];
    size_t i = 0;
    for (; r >= operations[i].weight; i++) r -= operations[i].weight;
    operations[i].run(t, a);
}

static void *work(void *argument)
{
    struct thread *t = argument;
    for (unsigned i = 0; i < AREAS; i++) {
        struct area *a = &t->areas[i];
        *a = (struct area){ .pages = pages_of_area, .most = pages_of_area, .name = (t->number * AREAS + i + 1ull) << 40 };
        a->at = map_anonymous(a->pages * PAGE);
        a->state = calloc(a->most + 1, sizeof *a->state);
        for (size_t p = 0; p < a->pages; p++) {
            if (p % 4 != 3) write_page(t, a, p);
        }
    }
    for (unsigned round = 0; round < rounds; round++) {
        for (int i = 0; i < OPERATIONS; i++) operate(t);
        pthread_barrier_wait(&barrier);
        for (unsigned i = 0; i < AREAS; i++) check_area(&all[(t->number + 1) % threads].areas[i]);
        pthread_barrier_wait(&barrier);
    }
    uint64_t h = t->number;
    for (unsigned i = 0; i < AREAS; i++) {
        struct area *a = &t->areas[i];
        for (size_t p = 0; p < a->pages; p++) {
            if (!a->state[p].maybe_freed) h = digest(h, a->at + p * PAGE, PAGE);
        }
    }
    for (size_t i = 0; i < CHUNKS; i++) {
        if (t->chunks[i].at != NULL) h = digest(h, t->chunks[i].at, t->chunks[i].size / 8 * 8);
    }
    t->digest = h;
    return NULL;
}

/* Leaves the named operations alone in the table, by their weights. */
static void choose(char **names)
{
    const size_t count = sizeof operations / sizeof *operations;
    for (size_t i = 0; i < count; i++) {
        int wanted = 0;
        for (char **name = names; *name != NULL; name++) wanted |= strcmp(*name, operations[i].name) == 0;
        if (!wanted) operations[i].weight = 0;
    }
    for (char **name = names; *name != NULL; name++) {
        size_t i = 0;
        while (i < count && strcmp(*name, operations[i].name) != 0) i++;
        if (i == count) die("there is no operation %s", *name);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) die("usage: memstorm THREADS MIB ROUNDS SEED [OPERATION...]");
    if (argc > 5) choose(argv + 5);
    threads = (unsigned)atoi(argv[1]);
    size_t bytes = (size_t)atoi(argv[2]) * MIB;
    rounds = (unsigned)atoi(argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    if (threads < 1 || threads > 64) die("THREADS must be 1 to 64");
    pages_of_area = bytes / threads / AREAS / PAGE;
    if (pages_of_area < 64) die("MIB is too small for %u threads", threads);

    shared = map_anonymous(SHARED_PAGES * PAGE);
    all = calloc(threads, sizeof *all);
    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        all[i].number = i;
        all[i].next_version = 1;
        all[i].rng.state = mix(seed * 64 + i);
        if (pthread_create(&all[i].handle, NULL, work, &all[i]) != 0) die("cannot start thread %u", i);
    }
    uint64_t total = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(all[i].handle, NULL);
        total = mix(total ^ all[i].digest);
    }
    printf("threads %u, digest %016llx, shared %016llx\n", threads, (unsigned long long)total, (unsigned long long)digest(0, shared, SHARED_PAGES * PAGE));
    return 0;
}
