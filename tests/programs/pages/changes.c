/* Calls that change memory and fail on the way, or stop there, or leave something special behind. */
#include "pages.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103, COLLAPSE = 25 };

static sigjmp_buf back;
static volatile sig_atomic_t got;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)context;
    got = signal * 100 + info->si_code;
    siglongjmp(back, 1);
}

static void catch_signals(void)
{
    const struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
}

/* The signal and its code that an access ends with; 0: none. */
static int touch(volatile unsigned char *at, int write)
{
    got = 0;
    if (sigsetjmp(back, 1) == 0) {
        if (write) *at = (unsigned char)(*at + 1);
        else (void)*at;
    }
    return got;
}

/* How many of the pages end with a signal, and how many are not zero. */
static void look(const char *what, unsigned char *at, size_t bytes)
{
    size_t signals = 0, others = 0;
    for (size_t i = 0; i < bytes; i += PAGE) {
        if (touch(at + i, 0)) signals++;
        else others += at[i] != 0 || at[i + 100] != 0 || at[i + PAGE - 1] != 0;
    }
    say("%s: %zu signals, %zu pages are not zero", what, signals, others);
}

/* Fresh memory where a call has failed. */
static void anew(unsigned char *at, size_t bytes)
{
    unsigned char *now = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(now == at);
    look("mapped anew", at, bytes);
    fill(at, bytes, 8);
    make_absent();
    say("its bytes: %d", holds(at, bytes, 8));
    CHECK(munmap(at, bytes) == 0);
}

/* A mapping over managed memory that the kernel refuses, if `late` when what was there has gone. `absent`: the memory is out at that time. */
static void fails_over(const char *what, int flags, int fd, int late, int absent)
{
    const size_t bytes = 4 * MIB, total = bytes + 6 * MIB;
    unsigned char *all = filled(total, 5);
    /* Huge pages have places of their own; elsewhere its ends lie within a piece of the page table of which the rest stays. */
    unsigned char *at = (unsigned char *)(((uintptr_t)all + 2 * MIB - 1) & ~(2 * MIB - 1)) + (flags & MAP_HUGETLB ? 0 : 4 * PAGE);
    if (absent) make_absent();
    void *answer = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);
    if (answer != MAP_FAILED) {
        say("%s: mapped", what);
        CHECK(munmap(all, total) == 0);
        return;
    }
    say("%s: %s", what, strerror(errno));
    look("what was there", at, bytes);
    if (late) anew(at, bytes);
    else CHECK(munmap(at, bytes) == 0);
    make_absent();
    look("below it", all, (size_t)(at - all));
    look("above it", at + bytes, (size_t)(all + total - at) - bytes);
    CHECK(munmap(all, total) == 0);
}

void section_mapfails(void)
{
    catch_signals();
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connection >= 0);
    for (int absent = 0; absent < 2; absent++) {
        fails_over("a socket", MAP_SHARED, connection, 1, absent);
        fails_over("huge pages", MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 1, absent);
        fails_over("nothing open", MAP_SHARED, 987, 0, absent);
    }
}

/* The same for a move onto managed memory. */
void section_movefails(void)
{
    const size_t bytes = 4 * MIB;
    catch_signals();
    for (int absent = 0; absent < 2; absent++) {
        unsigned char *onto = filled(bytes, 5), *from = filled(bytes, 6);
        if (absent) make_absent();
        struct rlimit before, limit;
        CHECK(getrlimit(RLIMIT_DATA, &before) == 0);
        limit = before;
        limit.rlim_cur = (rlim_t)(number_in("/proc/self/status", "VmData:") * 1024 - (long)bytes - (long)MIB);
        CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
        void *answer = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, onto);
        int why = errno;
        CHECK(setrlimit(RLIMIT_DATA, &before) == 0);
        say("a move: %s", answer == MAP_FAILED ? strerror(why) : "done");
        look("the target", onto, bytes);
        anew(onto, bytes);
        say("the source: %d", holds(from, bytes, 6));
        make_absent();
        say("the source: %d", holds(from, bytes, 6));
        CHECK(munmap(from, bytes) == 0);
    }
}

/* A target that overlaps the source. */
void section_overlaps(void)
{
    const long by[] = { 512 * 1024, -512 * 1024, 0, PAGE };
    unsigned char *at = filled(8 * MIB, 7);
    make_absent();
    for (size_t i = 0; i < sizeof by / sizeof *by; i++) {
        unsigned char *from = at + 2 * MIB;
        void *answer = mremap(from, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, from + by[i]);
        say("by %ld: %s", by[i], answer == MAP_FAILED ? strerror(errno) : "moved");
    }
    say("bytes: %d", holds(at, 8 * MIB, 7));
}

static size_t zeros(const unsigned char *at, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i += PAGE) count += at[i] == 0 && at[i + PAGE / 2] == 0 && at[i + PAGE - 1] == 0;
    return count;
}

/* An advice goes as far as the first mapping that does not take it. */
void section_advisedpart(void)
{
    unsigned char *at = fresh(8 * MIB);
    memset(at, 9, 8 * MIB);
    CHECK(mlock(at + MIB, 64 * 1024) == 0);
    make_absent();
    int answer = madvise(at, 8 * MIB, MADV_DONTNEED);
    say("across locked pages: %d, %s: %zu pages are zero", answer, strerror(errno), zeros(at, 8 * MIB));

    int file = (int)memfd_create("file", 0);
    CHECK(file >= 0 && ftruncate(file, MIB) == 0);
    at = fresh(8 * MIB);
    memset(at, 9, 8 * MIB);
    CHECK(mmap(at + MIB, 64 * 1024, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at + MIB);
    make_absent();
    answer = madvise(at, 8 * MIB, MADV_FREE);
    make_absent();
    say("across a file: %d, %s: %zu pages behind it are zero", answer, strerror(errno), zeros(at + 2 * MIB, 6 * MIB));

    at = fresh(8 * MIB);
    memset(at, 9, 8 * MIB);
    CHECK(munmap(at + MIB, 64 * 1024) == 0);
    make_absent();
    answer = madvise(at, 8 * MIB, MADV_DONTNEED);
    say("across a hole: %d, %s: %zu pages behind it are zero", answer, strerror(errno), zeros(at + 2 * MIB, 6 * MIB));
}

static void accesses(const char *what, unsigned char *at, size_t pages, int write)
{
    char line[512];
    size_t used = 0;
    for (size_t i = 0; i < pages; i++) used += (size_t)snprintf(line + used, sizeof line - used, " %d", touch(at + i * PAGE, write));
    say("%s:%s", what, line);
}

/* Guards among pages that come and go. */
static void guards_in(unsigned char *at, size_t first)
{
    unsigned char *guarded = at + first * PAGE;
    int file = open("/dev/zero", O_RDONLY);
    CHECK(file >= 0);
    CHECK(madvise(guarded, 4 * PAGE, GUARD_INSTALL) == 0);
    for (size_t i = 1; i < 4 && i <= first; i++) guarded[-(long)(i * PAGE)] = 1;
    size_t lead = first < 4 ? first : 4;
    accesses("with guards", guarded - lead * PAGE, lead + 8, 1);
    long answer = read(file, guarded, PAGE);
    say("read into one: %ld, %s", answer, strerror(errno));
    if (first > 0) say("read as far as one: %ld", (long)read(file, guarded - PAGE, 3 * PAGE));
    CHECK(madvise(at, 8 * MIB, MADV_DONTNEED) == 0);
    answer = madvise(guarded, PAGE, MADV_POPULATE_WRITE);
    say("populated: %ld, %s", answer, strerror(errno));
    make_absent();
    accesses("as before", guarded, 5, 0);
    CHECK(madvise(guarded, 4 * PAGE, GUARD_INSTALL) == 0);
    accesses("put there again", guarded, 5, 1);
    CHECK(madvise(at, 8 * MIB, GUARD_REMOVE) == 0);
    accesses("without", guarded, 5, 1);
    fill(at, 8 * MIB, 12);
    make_absent();
    say("bytes: %d", holds(at, 8 * MIB, 12));
    close(file);
}

void section_guards(void)
{
    unsigned char *at = fresh(8 * MIB);
    catch_signals();
    if (madvise(at, PAGE, GUARD_INSTALL) != 0) {
        say("this kernel has no guards");
        return;
    }
    CHECK(madvise(at, PAGE, GUARD_REMOVE) == 0);
    guards_in(at, 4);
    guards_in(at, 0);
    guards_in(fresh(8 * MIB), 700);
    /* Whole pieces of the page table. */
    at = filled(8 * MIB, 3);
    CHECK(madvise(at, 8 * MIB, GUARD_INSTALL) == 0);
    accesses("everywhere", at, 3, 1);
    CHECK(madvise(at + MIB, 6 * MIB, GUARD_REMOVE) == 0);
    look("less", at, 8 * MIB);
    CHECK(madvise(at, 8 * MIB, GUARD_REMOVE) == 0);
    fill(at, 8 * MIB, 4);
    make_absent();
    say("bytes: %d", holds(at, 8 * MIB, 4));
    CHECK(madvise(at, 8 * MIB, GUARD_INSTALL) == 0 && munmap(at, 8 * MIB) == 0);
    CHECK(mmap(at, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
    look("mapped anew", at, 8 * MIB);
}

/* A mapping with guards grows, moves, is locked. */
void section_guardsmove(void)
{
    catch_signals();
    unsigned char *at = fresh(8 * MIB), *to = fresh(32 * MIB);
    if (madvise(at, PAGE, GUARD_INSTALL) != 0) {
        say("this kernel has no guards");
        return;
    }
    memset(at + PAGE, 6, 8 * MIB - PAGE);
    CHECK(madvise(at + 600 * PAGE, 2 * PAGE, GUARD_INSTALL) == 0);
    CHECK(madvise(at + 4 * MIB, 3 * MIB, GUARD_INSTALL) == 0);
    make_absent();
    at = mremap(at, 8 * MIB, 8 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to + 3 * PAGE);
    CHECK(at == to + 3 * PAGE);
    look("moved", at, 8 * MIB);
    unsigned char *stays = at;
    at = mremap(at, 8 * MIB, 8 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to + 16 * MIB);
    CHECK(at == to + 16 * MIB);
    look("moved again", at, 8 * MIB);
    look("what it left", stays, 8 * MIB);
    fill(stays, 8 * MIB, 5);
    at = mremap(at, 8 * MIB, 64 * MIB, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    look("grown", at, 64 * MIB);
    make_absent();
    look("grown", at, 64 * MIB);
    CHECK(madvise(at, 64 * MIB, GUARD_REMOVE) == 0);
    look("without", at, 64 * MIB);
    fill(at, 8 * MIB, 13);
    make_absent();
    say("bytes: %d %d", holds(at, 8 * MIB, 13), holds(stays, 8 * MIB, 5));
    CHECK(madvise(at + MIB, PAGE, GUARD_INSTALL) == 0);
    say("locked: %d", mlock2(at + MIB - 2 * PAGE, 4 * PAGE, MLOCK_ONFAULT));
    accesses("locked", at + MIB - 2 * PAGE, 4, 1);
    CHECK(madvise(at + MIB, PAGE, GUARD_REMOVE) == 0);
    accesses("without", at + MIB - 2 * PAGE, 4, 1);
    make_absent();
    accesses("without", at + MIB - 2 * PAGE, 4, 0);
}

static void advice(const char *what, void *at, size_t bytes, int which)
{
    errno = 0;
    int answer = madvise(at, bytes, which);
    say("%s: %d, %s", what, answer, strerror(errno));
}

/* Advice about a hole, and about memory that may not be accessed so. */
void section_adviceanswers(void)
{
    unsigned char *at = fresh(8 * MIB);
    fill(at, 2 * MIB, 4);
    CHECK(munmap(at + 4 * MIB, MIB) == 0);
    advice("populate for reads, a hole", at, 8 * MIB, MADV_POPULATE_READ);
    advice("populate for writes, a hole", at, 8 * MIB, MADV_POPULATE_WRITE);
    advice("populate for writes", at, 4 * MIB, MADV_POPULATE_WRITE);
    CHECK(mprotect(at + MIB, MIB, PROT_READ) == 0);
    advice("populate for writes, read-only", at, 2 * MIB, MADV_POPULATE_WRITE);
    advice("populate for reads, read-only", at, 2 * MIB, MADV_POPULATE_READ);
    CHECK(mprotect(at + MIB, MIB, PROT_NONE) == 0);
    advice("populate for reads, not readable", at, 2 * MIB, MADV_POPULATE_READ);
    CHECK(mprotect(at + MIB, MIB, PROT_READ | PROT_WRITE) == 0);
    const struct { const char *name; int number; } all[] = {
        { "needed", MADV_WILLNEED }, { "cold", MADV_COLD }, { "to be paged out", MADV_PAGEOUT }, { "huge", MADV_HUGEPAGE },
        { "not huge", MADV_NOHUGEPAGE }, { "collapse", COLLAPSE }, { "free", MADV_FREE }, { "not needed", MADV_DONTNEED },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) advice(all[i].name, at + 3 * MIB, 4 * MIB, all[i].number);
    for (size_t i = 0; i < 5; i++) advice(all[i].name, at, 2 * MIB, all[i].number);
    make_absent();
    say("bytes: %d", holds(at, 2 * MIB, 4));
}

/* What shrinks only loses its end, also where a page of it was locked. */
void section_shrinks(void)
{
    for (int unlocked = 0; unlocked < 2; unlocked++) {
        unsigned char *at = filled(4 * MIB, 2);
        CHECK(mlock(at + 3 * MIB, PAGE) == 0);
        if (unlocked) CHECK(munlock(at + 3 * MIB, PAGE) == 0);
        make_absent();
        unsigned char *now = mremap(at, 4 * MIB, MIB, MREMAP_MAYMOVE);
        say("shrunk: %d", now == at);
        make_absent();
        unsigned char *rest = mmap(at + MIB, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        say("free behind it: %d, zero: %zu", rest == at + MIB, zeros(rest, 3 * MIB));
    }
}
