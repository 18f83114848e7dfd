/* Errors for wild pointers, raw system calls, and the memory calls themselves. */
#include "check.h"
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>

static const char *ended(ssize_t n)
{
    static char text[8][64];
    static int next;
    char *t = text[next++ % 8];
    if (n < 0) snprintf(t, 64, "%s", strerror(errno));
    else snprintf(t, 64, "%zd", n);
    return t;
}

/* Pages of pattern with a hole behind them. */
static unsigned char *before_hole(size_t pages)
{
    unsigned char *at = fresh(MIB);
    fill(at, pages * PAGE, 70);
    CHECK(munmap(at + pages * PAGE, MIB - pages * PAGE) == 0);
    return at;
}

void section_efault(void)
{
    int zero = open("/dev/zero", O_RDONLY), ends[2], fd = file_of("efault", 100000, 71);
    CHECK(pipe(ends) == 0);
    /* volatile: the compiler shall not know, and warn about, what these are. */
    void *volatile wild = (void *)8, *volatile kernel = (void *)0xffff800000000000u;
    unsigned char *none = filled(MIB, 72), *read_only = filled(MIB, 73);
    CHECK(mprotect(none, MIB, PROT_NONE) == 0 && mprotect(read_only, MIB, PROT_READ) == 0);
    make_absent();
    say("read into a wild pointer: %s, the kernel: %s, PROT_NONE: %s, PROT_READ: %s", ended(read(zero, wild, 100)), ended(read(zero, kernel, 100)),
        ended(read(zero, none, 100)), ended(read(zero, read_only, 100)));
    say("write from a wild pointer: %s, PROT_NONE: %s, PROT_READ: %s", ended(write(ends[1], wild, 100)), ended(write(ends[1], none, 100)),
        ended(write(ends[1], read_only, 100)));
    say("file read into PROT_READ: %s, stat: %s, open: %s", ended(pread(fd, read_only, 5000, 0)), ended(stat("/", (struct stat *)read_only)),
        ended(open((char *)none, O_RDONLY)));
    CHECK(mprotect(none, MIB, PROT_READ | PROT_WRITE) == 0 && holds(none, MIB, 72) && holds(read_only, MIB, 73));

    unsigned char *edge = before_hole(2);
    make_absent();
    say("at a hole: write to pipe %s, read of zero %s", ended(write(ends[1], edge, 3 * PAGE)), ended(read(zero, edge, 3 * PAGE)));
    fill(edge, 2 * PAGE, 70);
    make_absent();
    say("at a hole: file write %s, file read %s", ended(pwrite(fd, edge, 3 * PAGE, 0)), ended(pread(fd, edge, 3 * PAGE, 0)));
    struct iovec parts[2] = { { edge, PAGE }, { wild, PAGE } };
    make_absent();
    say("vector with a wild part: %s", ended(writev(fd, parts, 2)));
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    make_absent();
    say("datagram at a hole: %s", ended(send(pair[0], edge, 3 * PAGE, 0)));
    CHECK(send(pair[0], read_only, 3 * PAGE, 0) == 3 * (ssize_t)PAGE);
    say("received at a hole: %s", ended(recv(pair[1], edge, 3 * PAGE, 0)));
    say("zero bytes at a wild pointer: %s %s", ended(read(zero, wild, 0)), ended(write(fd, wild, 0)));
    /* The end of a path before the end of the mapping is enough; a path that runs into the hole is not. */
    unsigned char *path = before_hole(1);
    strcpy((char *)path + PAGE - 5, "/tmp");
    make_absent();
    say("path that ends at a hole: %s", ended(access((char *)path + PAGE - 5, F_OK)));
    path[PAGE - 1] = 'x';
    say("path that runs into a hole: %s", ended(access((char *)path + PAGE - 5, F_OK)));
    close(zero);
    close(fd);
}

/* ------------------------------------------------------------------------------- without libc's help */

#if defined(__x86_64__)
static long raw3(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static long raw6(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
#else
#define raw3(number, a, b, c) syscall(number, a, b, c)
#define raw6(number, a, b, c, d, e, f) syscall(number, a, b, c, d, e, f)
#endif

void section_raw(void)
{
    unsigned char *out = filled(MIB, 74), *in = fresh(MIB);
    int fd = file_of("raw", 0, 0);
    make_absent();
    CHECK(raw3(SYS_write, fd, (long)out, (long)MIB) == (long)MIB);
    make_absent();
    CHECK(raw6(SYS_pread64, fd, (long)in, (long)MIB, 0, 0, 0) == (long)MIB && holds(in, MIB, 74));
    long at = raw6(SYS_mmap, 0, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at > 0);
    fill((void *)at, 4 * MIB, 75);
    make_absent();
    CHECK(raw3(SYS_write, fd, at, 4 * MIB) == (long)(4 * MIB) && holds((void *)at, 4 * MIB, 75));
    long moved = raw6(SYS_mremap, at, 4 * MIB, 8 * MIB, MREMAP_MAYMOVE, 0, 0);
    CHECK(moved > 0 && holds((void *)moved, 4 * MIB, 75));
    CHECK(raw3(SYS_madvise, moved, MIB, MADV_DONTNEED) == 0 && *(uint64_t *)moved == 0);
    CHECK(raw3(SYS_munmap, moved, 8 * MIB, 0) == 0);
    CHECK(raw3(SYS_lseek, fd, 0, SEEK_SET) == 0);
    say("inline calls ok, a wild one: %ld, an unknown one: %ld", raw3(SYS_read, fd, 8, 100), raw3(100000, 0, 0, 0));
    close(fd);
}

/* ----------------------------------------------------------------------------------------- mappings */

void section_mappings(void)
{
    unsigned char *a = filled(4 * MIB, 80);
    make_absent();
    unsigned char *b = mremap(a, 4 * MIB, 12 * MIB, MREMAP_MAYMOVE);
    CHECK(b != MAP_FAILED && holds(b, 4 * MIB, 80) && b[12 * MIB - 1] == 0);
    fill(b, 12 * MIB, 81);
    make_absent();
    b = mremap(b, 12 * MIB, 3 * MIB, 0);
    CHECK(b != MAP_FAILED && holds(b, 3 * MIB, 81));
    /* An odd part out of the middle goes elsewhere. */
    unsigned char *place = fresh(2 * MIB);
    make_absent();
    unsigned char *c = mremap(b + MIB, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE);
    CHECK(c == place + PAGE);
    for (size_t i = 0; i < MIB; i += 8) CHECK(*(uint64_t *)(c + i) == mix(81 ^ (MIB + i)));
    CHECK(holds(b, MIB, 81));
    say("mremap errors: %s, %s, %s", ended(mremap(b + 1, PAGE, PAGE, 0) == MAP_FAILED ? -1 : 0), ended(mremap(b + MIB, PAGE, 2 * PAGE, 0) == MAP_FAILED ? -1 : 0),
        ended(mremap(b, PAGE, 0, 0) == MAP_FAILED ? -1 : 0));
    say("munmap errors: %s, %s; of a hole: %s", ended(munmap(b + 1, PAGE)), ended(munmap(b, 0)), ended(munmap(b + MIB, PAGE)));
    say("mprotect over a hole: %s", ended(mprotect(b, 3 * MIB, PROT_READ | PROT_WRITE)));
    say("mmap errors: %s, %s", ended(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0),
        ended(mmap(b + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0));
    say("mmap over something, not replacing: %s", ended(mmap(b, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED ? -1 : 0));
    /* A file in the middle of managed memory, and memory in the middle of a file. */
    int fd = file_of("mapped", 64 * PAGE, 82);
    unsigned char *m = filled(MIB, 83);
    CHECK(mmap(m + 16 * PAGE, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == m + 16 * PAGE);
    make_absent();
    CHECK(holds(m, 16 * PAGE, 83) && holds(m + 16 * PAGE, 64 * PAGE, 82) && *(uint64_t *)(m + 80 * PAGE) == mix(83 ^ (80 * PAGE)));
    CHECK(mmap(m + 16 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m + 16 * PAGE);
    CHECK(m[16 * PAGE] == 0 && *(uint64_t *)(m + 17 * PAGE) == mix(82 ^ PAGE));
    unsigned char *s = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    unsigned char *n = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(s != MAP_FAILED && p != MAP_FAILED && n != MAP_FAILED);
    fill(s, MIB, 84);
    fill(p, MIB, 85);
    fill(n, MIB, 86);
    make_absent();
    CHECK(holds(s, MIB, 84) && holds(p, MIB, 85) && holds(n, MIB, 86));
    say("mappings ok");
    close(fd);
}

void section_advice(void)
{
    unsigned char *m = filled(2 * MIB, 90), *resident = fresh(512);
    make_absent();
    CHECK(madvise(m, 2 * MIB, MADV_WILLNEED) == 0 && madvise(m, 2 * MIB, MADV_SEQUENTIAL) == 0 && madvise(m, 2 * MIB, MADV_NORMAL) == 0);
    CHECK(holds(m, 2 * MIB, 90));
    CHECK(madvise(m, 2 * MIB, MADV_DONTFORK) == 0 && madvise(m, 2 * MIB, MADV_DOFORK) == 0 && madvise(m, 2 * MIB, MADV_DONTDUMP) == 0);
    make_absent();
    /* A reservation of which little was touched, as engines of languages make them for code: what is not touched takes no memory. */
    size_t pages = 64 * MIB / PAGE, there = 0;
    unsigned char *sparse = fresh(64 * MIB), *map = fresh(pages);
    fill(sparse + 3 * MIB, MIB, 93);
    make_absent();
    CHECK(madvise(sparse, 64 * MIB, MADV_DONTFORK) == 0 && mincore(sparse, 64 * MIB, map) == 0);
    for (size_t i = 0; i < pages; i++) there += map[i] & 1;
    /* (Under Farshore what was touched stays managed, and is out.) */
    CHECK(there < 2 * MIB / PAGE && holds(sparse + 3 * MIB, MIB, 93));
    for (size_t i = 0; i < 64 * MIB; i += PAGE) CHECK(i / MIB == 3 || sparse[i] == 0);
    CHECK(munmap(sparse, 64 * MIB) == 0 && munmap(map, pages) == 0);
    CHECK(madvise(m + MIB, MIB, MADV_DONTNEED) == 0 && holds(m, MIB, 90));
    for (size_t i = MIB; i < 2 * MIB; i++) CHECK(m[i] == 0);
    say("madvise errors: %s, %s, length 0: %s", ended(madvise(m + 1, PAGE, MADV_DONTNEED)), ended(madvise(m, PAGE, 9999)), ended(madvise(m, 0, MADV_DONTNEED)));
    CHECK(munmap(m + 64 * PAGE, PAGE) == 0);
    fill(m, 64 * PAGE, 91);
    make_absent();
    say("madvise over a hole: %s", ended(madvise(m, 128 * PAGE, MADV_DONTNEED)));
    CHECK(m[0] == 0 && m[70 * PAGE] == 0);
    say("mincore of nothing: %s, ok: %s", ended(mincore(m + 64 * PAGE, PAGE, resident)), ended(mincore(m, 64 * PAGE, resident)));
    unsigned char *locked = filled(256 * 1024, 92);
    make_absent();
    int r = mlock(locked, 64 * 1024);
    say("mlock: %s, mincore says resident: %d", ended(r), mincore(locked, 64 * 1024, resident) == 0 && (r != 0 || resident[3] & 1));
    CHECK(holds(locked, 256 * 1024, 92) && munlock(locked, 64 * 1024) == 0);
    make_absent();
    CHECK(holds(locked, 256 * 1024, 92));
}

/* ------------------------------------------------------------------------------ brk, malloc and its kin */

void section_heap(void)
{
    unsigned char *start_of = sbrk(0), *grown = sbrk(3 * (intptr_t)MIB);
    CHECK(grown == start_of);
    for (size_t i = 0; i < 3 * MIB; i++) CHECK(grown[i] == 0);
    fill(grown, 3 * MIB, 100);
    make_absent();
    CHECK(holds(grown, 3 * MIB, 100));
    CHECK(sbrk(-2 * (intptr_t)MIB) != (void *)-1 && sbrk(2 * (intptr_t)MIB) != (void *)-1);
    make_absent();
    size_t edge = (((uintptr_t)grown + MIB + PAGE - 1) & ~(PAGE - 1)) - (uintptr_t)grown;
    for (size_t i = edge; i < 3 * MIB; i++) CHECK(grown[i] == 0);
    CHECK(holds(grown, MIB, 100));
    say("brk ok, absurd growth: %s", sbrk((intptr_t)1 << 46) == (void *)-1 ? strerror(errno) : "granted?");
    uint64_t h = 0;
    struct rng r = { 9 };
    unsigned char *kept[64] = { 0 };
    size_t lengths[64] = { 0 };
    for (int i = 0; i < 6000; i++) {
        size_t k = rng_below(&r, 64), length = (size_t)1 << rng_below(&r, 19);
        if (kept[k] != NULL) CHECK(kept[k][0] == (unsigned char)k && kept[k][lengths[k] - 1] == (unsigned char)k);
        kept[k] = realloc(kept[k], length);
        CHECK(kept[k] != NULL);
        kept[k][0] = kept[k][length - 1] = (unsigned char)k;
        lengths[k] = length;
        h += length;
        if (i % 1500 == 0) {
            make_absent();
            malloc_trim(0);
        }
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    malloc_trim(0);
    say("malloc storm ok, %llu", (unsigned long long)h);
}

void section_code(void)
{
#if defined(__x86_64__)
    /* mov eax, imm32; ret - written, made executable, called, changed, called again. */
    unsigned char *code = fresh(MIB);
    uint64_t sum = 0;
    for (size_t page = 0; page < MIB / PAGE; page++) {
        unsigned char body[] = { 0xb8, (unsigned char)page, (unsigned char)(page >> 8), 1, 0, 0xc3 };
        memcpy(code + page * PAGE, body, sizeof body);
    }
    make_absent();
    CHECK(mprotect(code, MIB, PROT_READ | PROT_EXEC) == 0);
    make_absent();
    for (size_t page = 0; page < MIB / PAGE; page++) sum += ((unsigned (*)(void))(uintptr_t)(code + page * PAGE))();
    CHECK(mprotect(code, MIB, PROT_READ | PROT_WRITE) == 0);
    make_absent();
    for (size_t page = 0; page < MIB / PAGE; page++) code[page * PAGE + 3] = 2;
    CHECK(mprotect(code, MIB, PROT_READ | PROT_EXEC) == 0);
    make_absent();
    for (size_t page = 0; page < MIB / PAGE; page++) sum += ((unsigned (*)(void))(uintptr_t)(code + page * PAGE))();
    say("generated code ok, %llu", (unsigned long long)sum);
#else
    say("generated code ok, not tested here");
#endif
}

/* --------------------------------------------------------------------------- stacks in managed memory */

static ucontext_t scheduler, coroutines[8];
static uint64_t coroutine_sums[8];

static __attribute__((noinline)) uint64_t recurse(int levels, uint64_t salt)
{
    volatile uint64_t room[256];
    for (int i = 0; i < 256; i++) room[i] = mix(salt + (uint64_t)(levels * 256 + i));
    uint64_t below = levels > 0 ? recurse(levels - 1, salt) : 0;
    for (int i = 0; i < 256; i++) below += room[i];
    return below;
}

static void coroutine(int number)
{
    unsigned char local[30000];
    fill(local, sizeof local, (uint64_t)number);
    for (int i = 0; i < 5; i++) {
        coroutine_sums[number] += recurse(30, (uint64_t)number);
        swapcontext(&coroutines[number], &scheduler);
        CHECK(holds(local, sizeof local, (uint64_t)number));
    }
    int null = open("/dev/null", O_WRONLY);
    CHECK(write(null, local, sizeof local) == (ssize_t)sizeof local);
    close(null);
}

void section_stacks(void)
{
    for (int i = 0; i < 8; i++) {
        getcontext(&coroutines[i]);
        coroutines[i].uc_stack.ss_sp = fresh(256 * 1024);
        coroutines[i].uc_stack.ss_size = 256 * 1024;
        coroutines[i].uc_link = &scheduler;
        makecontext(&coroutines[i], (void (*)(void))coroutine, 1, i);
    }
    for (int round = 0; round < 6; round++) {
        make_absent();
        for (int i = 0; i < 8; i++) swapcontext(&scheduler, &coroutines[i]);
    }
    uint64_t total = 0;
    for (int i = 0; i < 8; i++) total += coroutine_sums[i] ^ recurse(30, (uint64_t)i) * 5;
    say("coroutines: %s", total == 0 ? "right" : "WRONG");
}

static void *on_own_stack(void *argument)
{
    unsigned char local[60000];
    uint64_t number = (uintptr_t)argument;
    fill(local, sizeof local, number);
    uint64_t sum = recurse(60, number);
    make_absent();
    CHECK(holds(local, sizeof local, number) && recurse(60, number) == sum);
    int null = open("/dev/null", O_WRONLY);
    make_absent();
    CHECK(write(null, local, sizeof local) == (ssize_t)sizeof local);
    close(null);
    return NULL;
}

void section_setstack(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, filled(MIB, i), MIB) == 0);
        make_absent();
        CHECK(pthread_create(&threads[i], &attributes, on_own_stack, (void *)i) == 0);
        pthread_attr_destroy(&attributes);
    }
    for (int i = 0; i < 4; i++) join(threads[i]);
    say("threads on stacks of our own ok");
}
