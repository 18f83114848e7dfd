/* Holes of the address space that the program has made, and in which its calls find nothing, whoever mapped something there. */
#include "pages.h"
#include <sys/wait.h>

enum { HOLES = 4000 };

static unsigned char *hole[HOLES];

/* How many holes the call answers with this error; 0: none. */
static size_t answers(int (*call)(void *at), int error)
{
    size_t count = 0;
    for (size_t i = 0; i < HOLES; i++) {
        errno = 0;
        count += (call(hole[i]) == 0 ? 0 : errno) == error;
    }
    return count;
}

static int unmap(void *at) { return munmap(at, PAGE); }
/* The kernel ends at the hole: the page behind it stays as it is. */
static int protect(void *at) { return mprotect(at, 2 * PAGE, PROT_NONE); }
/* Memory that is to become shorter may have a hole at its end. */
static int shorten(void *at) { return mremap((unsigned char *)at - PAGE, 2 * PAGE, PAGE, 0) == MAP_FAILED ? -1 : 0; }
static int advise(void *at) { return madvise(at, PAGE, MADV_DONTNEED); }
static int move(void *at) { return mremap(at, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0; }
static int fixed(void *at) { return mmap(at, PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at ? 0 : -1; }

void section_holes(void)
{
    /* In a child, whose memory begins to leave when there are holes already. */
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        say("in a child: %#x", status);
        return;
    }
    for (size_t i = 0; i < HOLES; i++) {
        unsigned char *at = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && munmap(at + PAGE, PAGE) == 0);
        at[0] = at[2 * PAGE] = (unsigned char)i;
        hole[i] = at + PAGE;
    }
    unsigned char *kept = filled(8 << 20, 5);
    make_absent();
    say("protected: %zu, advised: %zu, moved: %zu", answers(protect, ENOMEM), answers(advise, ENOMEM), answers(move, EFAULT));
    size_t same = 0;
    for (size_t i = 0; i < HOLES; i++) same += hole[i][PAGE] == (unsigned char)i;
    say("pages behind: %zu, shorter: %zu", same, answers(shorten, 0));
    make_absent();
    say("unmapped: %zu", answers(unmap, 0));
    make_absent();
    size_t whole = 0;
    for (size_t i = 0; i < HOLES; i++) {
        CHECK(munmap(hole[i] - PAGE, PAGE) == 0 && munmap(hole[i] + PAGE, PAGE) == 0);
        whole += munmap(hole[i] - PAGE, 3 * PAGE) == 0;
    }
    say("in one piece: %zu", whole);
    /* Where something is that the program knows nothing of, it may be told that there is no memory. */
    say("mapped there, but for a few: %d", answers(fixed, 0) >= HOLES - 64);
    make_absent();
    say("bytes: %d", holds(kept, 8 << 20, 5));
    fflush(stdout);
    _exit(3);
}
