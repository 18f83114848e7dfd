/* Transparent huge pages: fresh memory comes in them where the program asks, and what happens to parts of them. */
#include "pages.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { HUGE = 2 << 20, COUNT = 16, MORE = 160 << 20 };

static void *nothing(void *argument)
{
    return argument;
}

/* From here on memory is managed. */
static void have_a_thread(void)
{
    join(start(nothing, NULL));
}

/* So many huge pages of fresh memory that is aligned to them, all or none of it asked for. It is a mapping of its own: nothing can be touched behind it. */
static unsigned char *granules(size_t count, int advice)
{
    unsigned char *at = mmap(NULL, (count + 2) * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    at = (unsigned char *)(((uintptr_t)at + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    CHECK(mprotect(at + count * HUGE, PAGE, PROT_NONE) == 0);
    CHECK(madvise(at, count * HUGE, advice) == 0);
    return at;
}

/* Whether there are huge pages in `bytes` from `at` on: more than half of them. */
static int is_huge(const unsigned char *at, size_t bytes)
{
    char line[4096];
    unsigned long from = 0, to = 0, a, b, kib, sum = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) from = a, to = b;
        if (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1 && from < (uintptr_t)at + bytes && (uintptr_t)at < to) sum += kib;
    }
    fclose(file);
    return sum * 1024 > bytes / 2;
}

/* Whether `length` bytes at `at` are those from `offset` on of what was filled. */
static int holds_as(const unsigned char *at, size_t length, size_t offset, uint64_t salt)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ (offset + i));
        if (memcmp(at + i, &word, 8) != 0) return 0;
    }
    return 1;
}

static int holds_from(const unsigned char *start, size_t offset, size_t length, uint64_t salt)
{
    return holds_as(start + offset, length, offset, salt);
}

/* A part of a huge page goes, changes, moves: its neighbours stay. */
void section_huge(void)
{
    have_a_thread();
    unsigned char *at = granules(COUNT, MADV_HUGEPAGE), *plain = granules(COUNT, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < COUNT; i++) {
        /* The first touch may be anywhere, and a read. */
        volatile unsigned char *first = at + i * HUGE + (i * 37 % 512) * PAGE;
        if (i % 2) *first = 1;
        else (void)*first;
        *(volatile unsigned char *)(plain + i * HUGE) = 1;
    }
    /* Reads alone bring the kernel's page of zeros natively: so written, before it is looked at. */
    for (size_t i = 0; i < COUNT * HUGE; i += PAGE) at[i] = (unsigned char)i;
    say("huge pages: %d, where they are not wanted: %d", is_huge(at, COUNT * HUGE), is_huge(plain, COUNT * HUGE));
    fill(at, COUNT * HUGE, 1);
    say("all: %d", holds(at, COUNT * HUGE, 1));

    unsigned char *second = at + HUGE, *third = at + 2 * HUGE, *fifth = at + 4 * HUGE, *eighth = at + 7 * HUGE;
    CHECK(madvise(second + 100 * PAGE, 200 * PAGE, MADV_DONTNEED) == 0);
    size_t zeros = 0;
    for (size_t i = 0; i < 200 * PAGE; i++) zeros += second[100 * PAGE + i] == 0;
    say("thrown away: %d, before it %d, behind it %d", zeros == 200 * PAGE, holds_from(at, HUGE, 100 * PAGE, 1), holds_from(at, HUGE + 300 * PAGE, 212 * PAGE, 1));
    CHECK(mprotect(third + 8 * PAGE, 8 * PAGE, PROT_READ) == 0 && mprotect(third + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    third[9 * PAGE] ^= 1;
    third[9 * PAGE] ^= 1;
    say("protected and back: %d", holds_from(at, 2 * HUGE, HUGE, 1));
    CHECK(munmap(fifth + 10 * PAGE, 20 * PAGE) == 0);
    say("beside a hole: %d %d", holds_from(at, 4 * HUGE, 10 * PAGE, 1), holds_from(at, 4 * HUGE + 30 * PAGE, HUGE - 30 * PAGE, 1));

    /* A huge page and two halves, out of step with huge pages. */
    unsigned char *room = granules(4, MADV_HUGEPAGE);
    unsigned char *moved = mremap(eighth + HUGE / 2, 2 * HUGE, 2 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 3 * PAGE);
    CHECK(moved == room + 3 * PAGE);
    say("moved: %d, left: %d %d", holds_as(moved, 2 * HUGE, eighth + HUGE / 2 - at, 1), holds_from(at, 7 * HUGE, HUGE / 2, 1),
        holds_from(at, 9 * HUGE + HUGE / 2, HUGE / 2, 1));

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int right = holds_from(at, 10 * HUGE, 6 * HUGE, 1);
        fill(at + 12 * HUGE, HUGE, 2);
        _exit(right && holds(at + 12 * HUGE, HUGE, 2) && holds_from(at, 13 * HUGE, HUGE, 1) ? 0 : 1);
    }
    at[11 * HUGE] ^= 1;
    at[11 * HUGE] ^= 1;
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    say("child: %x, parent: %d", status, holds_from(at, 10 * HUGE, 6 * HUGE, 1));
    make_absent();
    say("in the end: %d %d %d", holds_from(at, 10 * HUGE, 6 * HUGE, 1), holds_as(moved, 2 * HUGE, eighth + HUGE / 2 - at, 1), holds_from(at, 2 * HUGE, 2 * HUGE, 1));
}

/* All fits at first, and then it does not. */
void section_hugeleaves(void)
{
    have_a_thread();
    unsigned char *at = granules(COUNT, MADV_HUGEPAGE), *room = granules(COUNT, MADV_HUGEPAGE);
    fill(at, COUNT * HUGE, 3);
    say("huge pages: %d", is_huge(at, COUNT * HUGE));
    /* In step, and out of step. */
    CHECK(mremap(at, 4 * HUGE, 4 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK(mremap(at + 4 * HUGE, 4 * HUGE, 4 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 5 * HUGE + PAGE) == room + 5 * HUGE + PAGE);
    for (int round = 0; round < 2; round++) {
        unsigned char *more = filled(MORE, 4);
        say("more: %d", holds(more, MORE, 4));
        CHECK(munmap(more, MORE) == 0);
        say("moved in step %d, out of step %d, not moved %d", holds(room, 4 * HUGE, 3), holds_as(room + 5 * HUGE + PAGE, 4 * HUGE, 4 * HUGE, 3),
            holds_from(at, 8 * HUGE, 8 * HUGE, 3));
    }
}

/* Huge pages that were there before memory was managed. */
void section_hugebefore(void)
{
    unsigned char *at = granules(COUNT, MADV_HUGEPAGE);
    fill(at, COUNT * HUGE, 5);
    int before = is_huge(at, COUNT * HUGE);
    have_a_thread();
    say("huge pages: %d %d", before, is_huge(at, COUNT * HUGE));
    unsigned char *more = filled(MORE, 6);
    say("more: %d", holds(more, MORE, 6));
    say("all: %d", holds(at, COUNT * HUGE, 5));
}

/* A filter of the program's that knows which requests of ioctl it needs. */
void section_hugefiltered(void)
{
    have_a_thread();
    const unsigned nr = offsetof(struct seccomp_data, nr), request = offsetof(struct seccomp_data, args[1]);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 4), BPF_STMT(BPF_LD | BPF_W | BPF_ABS, request),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc028aa05, 1, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xc0606610, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    say("filter: %ld", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
    unsigned char *at = granules(COUNT, MADV_HUGEPAGE);
    fill(at, COUNT * HUGE, 7);
    say("all: %d", holds(at, COUNT * HUGE, 7));
}
