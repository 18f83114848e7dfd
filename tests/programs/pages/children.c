/* Memory that a program keeps from its children: gone there, or zeros; and as it was in the parent. */
#include "pages.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

enum { WIPEONFORK = 18, KEEPONFORK = 19, GUARD_INSTALL = 102, GUARD_REMOVE = 103 };

static sigjmp_buf back;
static volatile sig_atomic_t code, looking;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (!looking) _exit(99);
    code = signal * 100 + info->si_code;
    siglongjmp(back, 1);
}

/* What the pages are: how many end with a signal (and with which), are zero, hold the pattern of `salt`. */
static void look(const char *what, unsigned char *at, size_t bytes, uint64_t salt)
{
    volatile size_t signals = 0, zeros = 0, right = 0;
    volatile int which = 0;
    /* Not from the heap, which may take the addresses of what is gone. */
    static unsigned char pattern[6 * MIB];
    CHECK(bytes <= sizeof pattern);
    fill(pattern, bytes, salt);
    looking = 1;
    for (volatile size_t i = 0; i < bytes; i += PAGE) {
        if (sigsetjmp(back, 1) != 0) {
            signals++;
            which = code;
            continue;
        }
        if (memcmp(at + i, pattern + i, PAGE) == 0) right++;
        else if (at[i] == 0 && memcmp(at + i, at + i + 1, PAGE - 1) == 0) zeros++;
    }
    looking = 0;
    say("%s: %zu signals (%d), %zu zeros, %zu right", what, signals, which, zeros, right);
}

static struct { const char *name; unsigned char *at; size_t bytes; uint64_t salt; } places[32];
static size_t count;

static void remember(const char *name, void *at, size_t bytes, uint64_t salt)
{
    CHECK(at != MAP_FAILED && count < sizeof places / sizeof *places);
    places[count].name = name, places[count].at = at, places[count].bytes = bytes, places[count++].salt = salt;
}

/* `fill` writes a pattern that depends on offsets alone: a part of a place is checked against its own. */
static void look_everywhere(const char *who)
{
    char what[128];
    for (size_t i = 0; i < count; i++) {
        snprintf(what, sizeof what, "%s: %s", who, places[i].name);
        look(what, places[i].at, places[i].bytes, places[i].salt);
    }
}

/* A system call finds what an access finds. */
static void ask_kernel(const char *who)
{
    int null = open("/dev/null", O_WRONLY), pipes[2];
    CHECK(null >= 0 && pipe(pipes) == 0);
    for (size_t i = 0; i < count; i++) {
        long answer = write(pipes[1], places[i].at, PAGE);
        say("%s: write of %s: %ld, %s", who, places[i].name, answer, answer < 0 ? strerror(errno) : "");
        char page[PAGE];
        if (answer > 0) CHECK(read(pipes[0], page, PAGE) == PAGE);
    }
    close(null), close(pipes[0]), close(pipes[1]);
}

static void in_child(const char *who, void (*then)(void))
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ask_kernel(who);
        look_everywhere(who);
        make_absent();
        look_everywhere(who);
        if (then != NULL) then();
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    say("%s ended: %d", who, status);
}

/* The child uses what it has, and forks. */
static void grandchild(void)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char *at = places[i].at;
        if (strcmp(places[i].name, "part") == 0) continue;
        if (strncmp(places[i].name, "gone", 4) == 0) {
            /* Its addresses are free. */
            unsigned char *now = mmap(at, places[i].bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            CHECK(now == at);
        }
        if (strcmp(places[i].name, "wiped, unreadable") == 0) CHECK(mprotect(at, places[i].bytes, PROT_READ | PROT_WRITE) == 0);
        fill(at, places[i].bytes, places[i].salt + 100);
        places[i].salt += 100;
    }
    make_absent();
    look_everywhere("child, written");
    in_child("grandchild", NULL);
    look_everywhere("child, afterwards");
}

static unsigned char *advised(size_t bytes, uint64_t salt, int advice)
{
    unsigned char *at = filled(bytes, salt);
    CHECK(madvise(at, bytes, advice) == 0);
    return at;
}

void section_children(void)
{
    const struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    remember("plain", filled(3 * MIB, 1), 3 * MIB, 1);
    remember("gone", advised(4 * MIB, 2, MADV_DONTFORK), 4 * MIB, 2);
    remember("wiped", advised(4 * MIB, 3, WIPEONFORK), 4 * MIB, 3);

    /* Taken back. */
    unsigned char *at = advised(MIB, 4, MADV_DONTFORK);
    CHECK(madvise(at, MIB, MADV_DOFORK) == 0);
    remember("there again", at, MIB, 4);
    at = advised(MIB, 5, WIPEONFORK);
    CHECK(madvise(at, MIB, KEEPONFORK) == 0);
    remember("kept again", at, MIB, 5);
    /* Both: the one does not take the other back. */
    at = advised(MIB, 6, WIPEONFORK);
    CHECK(madvise(at, MIB, MADV_DONTFORK) == 0 && madvise(at, MIB, KEEPONFORK) == 0);
    remember("gone, once wiped", at, MIB, 6);
    at = advised(MIB, 7, WIPEONFORK);
    CHECK(madvise(at, MIB, MADV_DONTFORK) == 0 && madvise(at, MIB, MADV_DOFORK) == 0);
    remember("wiped, once gone", at, MIB, 7);

    /* A part, within pieces of the page table, and what else happens to mappings. */
    at = filled(3 * MIB, 8);
    CHECK(madvise(at + MIB / 2, MIB, MADV_DONTFORK) == 0);
    say("a part: %d", has_flag(at + MIB / 2, "dc"));
    remember("part", at, 3 * MIB, 8);
    at = advised(2 * MIB, 9, MADV_DONTFORK);
    CHECK(mprotect(at + MIB, PAGE, PROT_READ) == 0 && mprotect(at + MIB, PAGE, PROT_READ | PROT_WRITE) == 0);
    remember("gone, protected", at, 2 * MIB, 9);
    at = advised(2 * MIB, 10, MADV_DONTFORK);
    CHECK(mmap(at + MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + MIB);
    fill(at + MIB, MIB, 11);
    remember("replaced", at + MIB, MIB, 11);
    at = advised(2 * MIB, 12, WIPEONFORK);
    CHECK(mprotect(at, 2 * MIB, PROT_NONE) == 0);
    remember("wiped, unreadable", at, 2 * MIB, 12);

    /* Moved: the advice goes with it, and comes to no neighbour. */
    unsigned char *target = fresh(6 * MIB);
    fill(target, 6 * MIB, 13);
    CHECK(madvise(target, 2 * MIB, MADV_DONTFORK) == 0);
    at = advised(2 * MIB, 13, MADV_DONTFORK);
    at = mremap(at, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + 2 * MIB);
    CHECK(at == target + 2 * MIB);
    make_absent();
    remember("gone, before what moved", target, 2 * MIB, 13);
    remember("gone, moved", at, 2 * MIB, 13);
    say("behind it: %d, moved: %d", has_flag(target + 4 * MIB, "dc"), has_flag(at, "dc"));
    at = advised(MIB, 15, WIPEONFORK);
    at = mremap(at, MIB, 3 * MIB, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    fill(at, 3 * MIB, 15);
    remember("wiped, grown", at, 3 * MIB, 15);
    at = advised(MIB, 16, MADV_DONTFORK);
    unsigned char *stays = mremap(at, MIB, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(stays != MAP_FAILED && stays != at);
    fill(at, MIB, 17);
    remember("gone, copied", stays, MIB, 16);
    remember("gone, left behind", at, MIB, 17);
    /* A move that fails takes nothing away. */
    at = advised(MIB, 18, MADV_DONTFORK);
    CHECK(mremap(at, MIB, (size_t)1 << 46, MREMAP_MAYMOVE) == MAP_FAILED);
    remember("gone, not moved", at, MIB, 18);

    /* Over a hole: what is before it and behind it is advised. */
    at = filled(3 * MIB, 19);
    CHECK(munmap(at + MIB, MIB) == 0);
    int answer = madvise(at, 3 * MIB, MADV_DONTFORK);
    say("over a hole: %d, %s", answer, strerror(errno));
    remember("gone, before a hole", at, MIB, 19);

    make_absent();
    look_everywhere("parent");
    in_child("child", grandchild);
    make_absent();
    look_everywhere("parent, afterwards");
    CHECK(mprotect(places[10].at, places[10].bytes, PROT_READ | PROT_WRITE) == 0);
    look_everywhere("parent, readable");
    in_child("second child", NULL);
}

/* Guards are wiped too. */
void section_childrenguards(void)
{
    const struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    unsigned char *wiped = filled(6 * MIB, 1), *gone = filled(2 * MIB, 2);
    if (madvise(wiped + MIB, 8 * PAGE, GUARD_INSTALL) != 0) {
        say("no guards");
        return;
    }
    CHECK(madvise(wiped + 2 * MIB, 3 * MIB, GUARD_INSTALL) == 0 && madvise(gone + MIB, 8 * PAGE, GUARD_INSTALL) == 0);
    /* To guards alone, and to the rest. */
    CHECK(madvise(wiped + MIB, 8 * PAGE, WIPEONFORK) == 0 && madvise(wiped, 6 * MIB, WIPEONFORK) == 0);
    CHECK(madvise(gone + MIB, 8 * PAGE, MADV_DONTFORK) == 0 && madvise(gone, 2 * MIB, MADV_DONTFORK) == 0);
    remember("wiped", wiped, 6 * MIB, 1);
    remember("gone", gone, 2 * MIB, 2);
    make_absent();
    look_everywhere("parent");
    in_child("child", grandchild);
    make_absent();
    look_everywhere("parent, afterwards");
}

/* Much of it, most of the time out of RAM; children have none of it. */
void section_childrenleave(void)
{
    static const int advices[] = { MADV_DONTFORK, WIPEONFORK };
    unsigned char *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = fresh(48 * MIB);
        CHECK(madvise(at[i], 48 * MIB, advices[i]) == 0);
        fill(at[i], 48 * MIB, (uint64_t)i);
    }
    for (int round = 0; round < 3; round++) {
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            unsigned char in_core = 0;
            int there = mincore(at[0], PAGE, &in_core);
            say("gone: %d, %s", there, strerror(errno));
            for (size_t i = 0; i < 48 * MIB; i += PAGE) CHECK(at[1][i] == 0);
            fflush(stdout);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        for (int i = 0; i < 2; i++) say("bytes: %d", holds(at[i], 48 * MIB, (uint64_t)i));
    }
}
