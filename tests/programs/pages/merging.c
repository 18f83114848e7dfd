/* KSM: the kernel merges equal pages, and the program goes on writing to them. The driver has switched it on. */
#include "pages.h"
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SET = 67, GET = 68, MERGEABLE = 12 };

/* All pages of a region are equal, leave and come back by reading; ksmd has time to merge them; then each is written. Every write must be there
 * when the pages have left again. */
static void write_to_merged(unsigned char *at, size_t pages)
{
    make_absent();
    for (size_t i = 0; i < pages; i++) CHECK(at[i * PAGE + 100] == 42);
    const char *scans = "/sys/kernel/mm/ksm/full_scans";
    long first = number_in(scans, "");
    for (int i = 0; i < 1000 && number_in(scans, "") < first + 4; i++) sleep_ms(10);
    for (size_t i = 0; i < pages; i++) memcpy(at + i * PAGE, &i, sizeof i);
    make_absent();
    size_t lost = 0;
    for (size_t i = 0; i < pages; i++) lost += memcmp(at + i * PAGE, &i, sizeof i) != 0 || at[i * PAGE + 100] != 42;
    say("%zu of %zu writes lost", lost, pages);
}

static unsigned char *equal_pages(size_t pages)
{
    unsigned char *at = fresh(pages * PAGE);
    memset(at, 42, pages * PAGE);
    return at;
}

static void tell_setting(const char *when)
{
    say("%s: %d", when, prctl(GET, 0, 0, 0, 0));
}

/* The setting goes on to a child, whose writes must be there as well. */
static void in_child(unsigned char *at, size_t pages)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        tell_setting("in a child");
        memset(at, 42, pages * PAGE);
        write_to_merged(at, pages);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    say("the child ends with %d", status);
}

void section_merged(void)
{
    const size_t pages = 2048;
    tell_setting("at first");
    CHECK(prctl(SET, 1, 1, 0, 0) == -1 && errno == EINVAL);
    CHECK(prctl(GET, 1, 0, 0, 0) == -1 && errno == EINVAL);
    tell_setting("after odd arguments");
    unsigned char *before = equal_pages(pages);
    CHECK(prctl(SET, 1, 0, 0, 0) == 0);
    tell_setting("switched on");
    write_to_merged(before, pages);
    unsigned char *after = equal_pages(pages);
    write_to_merged(after, pages);
    in_child(after, pages);
    CHECK(prctl(SET, 0, 0, 0, 0) == 0);
    tell_setting("switched off");
}

void section_advised(void)
{
    const size_t pages = 2048;
    unsigned char *at = equal_pages(pages);
    CHECK(madvise(at, pages * PAGE, MERGEABLE) == 0);
    write_to_merged(at, pages);
    /* A mapping that is too small to be managed is the kernel's to merge; it becomes a part of one that is not. */
    unsigned char *small = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(small != MAP_FAILED && madvise(small, 16 * PAGE, MERGEABLE) == 0);
    unsigned char *large = mremap(small, 16 * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED);
    memset(large, 42, pages * PAGE);
    write_to_merged(large, pages);
}

void section_inherited(void)
{
    const size_t pages = 2048;
    tell_setting("at first");
    write_to_merged(equal_pages(pages), pages);
}
