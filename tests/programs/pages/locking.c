/* Memory that is locked, or has another attribute, and what becomes of it when it grows or cannot be locked. */
#include "pages.h"
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { WIPEONFORK = 18, SMALL = 16 };

static void *small_mapping(void)
{
    void *at = mmap(NULL, SMALL * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 3, SMALL * PAGE);
    return at;
}

static unsigned char *grown(void *at, size_t bytes)
{
    unsigned char *to = mremap(at, SMALL * PAGE, bytes, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED && to[0] == 3 && to[SMALL * PAGE - 1] == 3 && to[SMALL * PAGE] == 0);
    return to;
}

/* A small mapping with an attribute grows to a size that is managed: the attribute stays. */
void section_grown(void)
{
    const size_t bytes = 2 * MIB;
    void *at = small_mapping();
    CHECK(mlock(at, SMALL * PAGE) == 0);
    long before = number_in("/proc/self/status", "VmLck:");
    at = grown(at, bytes);
    say("locked: %d, %ld kB more", has_flag(at, "lo"), number_in("/proc/self/status", "VmLck:") - before);
    CHECK(munmap(at, bytes) == 0);

    at = small_mapping();
    CHECK(madvise(at, SMALL * PAGE, MADV_DONTDUMP) == 0);
    at = grown(at, bytes);
    say("left out of dumps: %d", has_flag(at, "dd"));

    unsigned char *wiped = small_mapping();
    CHECK(madvise(wiped, SMALL * PAGE, WIPEONFORK) == 0);
    wiped = grown(wiped, bytes);
    memset(wiped, 5, bytes);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        say("wiped in a child: %d %d", wiped[0], wiped[bytes - 1]);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);

    unsigned char *plain = small_mapping();
    plain = grown(plain, bytes);
    memset(plain, 6, bytes);
    make_absent();
    say("plain: %d %d", plain[0], plain[bytes - 1]);
}

/* More than may be locked: nothing is brought in for it, and nothing changes. */
void section_mlocklimit(void)
{
    const size_t bytes = 64 * MIB;
    const struct rlimit limit = { MIB, MIB };
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct sets[2];
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(syscall(SYS_capget, &header, sets) == 0);
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    CHECK(syscall(SYS_capset, &header, sets) == 0);
    unsigned char *at = filled(bytes, 11);
    int answer = mlock(at, bytes);
    say("mlock: %d, %s", answer, strerror(errno));
    answer = mlock2(at, bytes, MLOCK_ONFAULT);
    say("mlock2: %d, %s", answer, strerror(errno));
    CHECK(mlock2(at, PAGE, 8) == -1 && errno == EINVAL);
    say("locked: %ld kB", number_in("/proc/self/status", "VmLck:"));
    say("bytes: %d", holds(at, bytes, 11));
    answer = mlock(at + MIB, 256 * 1024);
    say("a part that may be: %d, %ld kB", answer, number_in("/proc/self/status", "VmLck:"));
    make_absent();
    say("bytes: %d", holds(at, bytes, 11));
}

/* More than there is memory for it: as mlockall. */
void section_mlockmore(void)
{
    const size_t bytes = 64 * MIB;
    unsigned char *at = filled(bytes, 11);
    int answer = mlock(at, bytes);
    say("mlock: %d", answer);
    say("bytes: %d", holds(at, bytes, 11));
}

/* The same piece by piece. */
void section_mlockpieces(void)
{
    enum { PIECES = 64 };
    unsigned char *pieces[PIECES];
    int locked = 0;
    while (locked < PIECES) {
        pieces[locked] = filled(MIB, (uint64_t)locked);
        if (mlock(pieces[locked++], MIB) != 0) break;
    }
    say("some: %d, all: %d", locked > 4, locked == PIECES);
    make_absent();
    int right = 1;
    for (int i = 0; i < locked; i++) right &= holds(pieces[i], MIB, (uint64_t)i);
    say("bytes: %d", right);
    /* What has been unlocked does not count. */
    for (int i = 0; i < 4; i++) CHECK(munlock(pieces[i], MIB) == 0);
    say("again: %d", mlock(filled(2 * MIB, 70), 2 * MIB));
}
