/* Calls about the whole process: users, limits, locked memory, prctl, libraries. */
#include "threads.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static volatile int stop;

/* ------------------------------------------------------------------------------------------- setxid */

static void *ids(void *argument)
{
    uint64_t *words = argument;
    while (!stop) {
        for (size_t i = 0; i < MIB / 8; i += 512) words[i] = mix(words[i]);
    }
    gid_t groups[4];
    int count = getgroups(4, groups);
    return (void *)(uintptr_t)((uint64_t)geteuid() * 1000000 + getegid() * 10 + (uint64_t)count);
}

/* libc makes every thread change, by a signal of its own, while they are in the middle of faults. */
void section_setxid(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    uint64_t *memory = filled(THREADS * MIB, 80);
    for (int i = 0; i < THREADS; i++) threads[i] = start(ids, memory + (size_t)i * MIB / 8);
    churn_start();
    sleep_ms(30);
    if (geteuid() == 0) {
        gid_t group = 65534;
        CHECK(setgroups(1, &group) == 0);
        for (int i = 0; i < 6; i++) CHECK(setresgid(65534, i % 2 ? 0 : 65534, 0) == 0);
        CHECK(setgid(65534) == 0);
        CHECK(seteuid(65534) == 0 && seteuid(0) == 0);
        CHECK(setuid(65534) == 0);
    }
    stop = 1;
    churn_stop();
    uint64_t same = 0;
    for (int i = 0; i < THREADS; i++) same += (uint64_t)(uintptr_t)join(threads[i]) == 65534ull * 1000000 + 65534 * 10 + 1;
    say("%llu threads changed, dumpable %d, back to root: %s", (unsigned long long)same, prctl(PR_GET_DUMPABLE), setuid(0) < 0 ? strerror(errno) : "yes");
    make_absent();
    uint64_t *more = filled(8 * MIB, 81);
    make_absent();
    CHECK(holds(more, 8 * MIB, 81));
}

/* ------------------------------------------------------------------------------------------- limits */

static void limit(const char *name, int resource, rlim_t soft)
{
    struct rlimit *now = fresh(sizeof *now), *new = fresh(sizeof *new);
    CHECK(getrlimit(resource, now) == 0);
    *new = (struct rlimit){ soft, now->rlim_max };
    if (now->rlim_max != RLIM_INFINITY && soft > now->rlim_max) new->rlim_cur = now->rlim_max;
    make_absent();
    int result = setrlimit(resource, new);
    CHECK(getrlimit(resource, now) == 0);
    say("%s: %d, read back %s", name, result, now->rlim_cur == new->rlim_cur ? "the same" : "OTHER");
    /* Faults, evictions and new threads go on. */
    uint64_t *memory = filled(4 * MIB, 82);
    make_absent();
    CHECK(holds(memory, 4 * MIB, 82));
    CHECK(munmap(memory, 4 * MIB) == 0);
}

static void *nothing(void *argument)
{
    return argument;
}

void section_limits(void)
{
    limit("FSIZE", RLIMIT_FSIZE, 4096);
    /* A file that grows too far gets a signal, ours does not. */
    signal(SIGXFSZ, SIG_IGN);
    char path[] = "/tmp/farshore-threads-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    char *bytes = filled(MIB, 83);
    ssize_t n = write(fd, bytes, 8192);
    say("write past the limit: %zd", n);
    n = write(fd, bytes, 1);
    say("again: %zd %s", n, strerror(errno));
    close(fd);
    limit("CORE", RLIMIT_CORE, 0);
    limit("MEMLOCK", RLIMIT_MEMLOCK, 0);
    limit("STACK", RLIMIT_STACK, 512 * 1024);
    limit("CPU", RLIMIT_CPU, 3600);
    limit("SIGPENDING", RLIMIT_SIGPENDING, 0);
    limit("NPROC", RLIMIT_NPROC, 0);
    limit("RTPRIO", RLIMIT_RTPRIO, 0);
    join(start(nothing, NULL));
}

void section_space(void)
{
    struct rlimit address_space;
    limit("AS", RLIMIT_AS, (rlim_t)1 << 40);
    CHECK(getrlimit(RLIMIT_AS, &address_space) == 0);
    limit("DATA", RLIMIT_DATA, (rlim_t)1 << 40);
    void *too_much = mmap(NULL, (size_t)1 << 42, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    say("mapping more than allowed: %s", too_much == MAP_FAILED ? strerror(errno) : "it went");
    /* Less than there is now: nothing new can be mapped, and what is there works. */
    uint64_t *memory = filled(16 * MIB, 84);
    address_space.rlim_cur = 1 << 20;
    CHECK(setrlimit(RLIMIT_AS, &address_space) == 0);
    make_absent();
    CHECK(holds(memory, 16 * MIB, 84));
    for (size_t i = 0; i < 16 * MIB / 8; i++) memory[i] = ~memory[i];
    make_absent();
    for (size_t i = 0; i < 16 * MIB / 8; i++) CHECK(memory[i] == ~mix(84 ^ i * 8));
    too_much = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("mapping with nothing left: %s", too_much == MAP_FAILED ? strerror(errno) : "it went");
}

/* ------------------------------------------------------------------------------------------- nofile */

static int highest(void)
{
    int last = -1;
    for (int i = 0; i < 100000; i++) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0) return last;
        last = fd;
    }
    return last;
}

/* A lower limit of files: the program gets as many as natively, and Farshore keeps its own. */
void section_nofile(void)
{
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int last = highest();
    say("last of 64 files: %d, then %s", last, strerror(errno));
    for (int i = 3; i <= last; i++) close(i);
    uint64_t *memory = filled(16 * MIB, 85);
    make_absent();
    CHECK(holds(memory, 16 * MIB, 85));
    files.rlim_cur = files.rlim_max = 32;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    last = highest();
    say("last of 32 files: %d, then %s", last, strerror(errno));
    make_absent();
    CHECK(holds(memory, 16 * MIB, 85));
    for (int i = 3; i <= last; i++) close(i);
    closefrom(3);
    make_absent();
    CHECK(holds(memory, 16 * MIB, 85));
}

/* -------------------------------------------------------------------------------------------- mlock */

void section_mlock(void)
{
    unsigned char *memory = filled(2 * MIB, 86);
    make_absent();
    say("mlock: %d, mlock2: %d", mlock(memory, 64 * 1024), mlock2(memory + MIB, 64 * 1024, MLOCK_ONFAULT));
    make_absent();
    CHECK(holds(memory, 2 * MIB, 86));
    say("munlock: %d, munlockall: %d", munlock(memory, 64 * 1024), munlockall());
    make_absent();
    CHECK(holds(memory, 2 * MIB, 86));
    int error = mlockall(0) < 0 ? errno : 0;
    say("mlockall without flags: %s", strerror(error));
    error = mlockall(64) < 0 ? errno : 0;
    say("mlockall with odd flags: %s", strerror(error));
    error = mlockall(MCL_ONFAULT) < 0 ? errno : 0;
    say("mlockall with MCL_ONFAULT alone: %s", strerror(error));
}

/* -------------------------------------------------------------------------------------------- prctl */

void section_prctl(void)
{
    char *name = fresh(64);
    strcpy(name, "renamed");
    make_absent();
    int result = prctl(PR_SET_NAME, name);
    memset(name, 0, 64);
    make_absent();
    CHECK(prctl(PR_GET_NAME, name) == 0);
    say("name: %d %s", result, name);
    result = prctl(PR_SET_DUMPABLE, 0);
    say("dumpable: %d, now %d", result, prctl(PR_GET_DUMPABLE));
    /* /proc/self belongs to root now; pages that leave and come must not depend on it. */
    uint64_t *memory = filled(16 * MIB, 87);
    CHECK(mprotect(memory, 8 * MIB, PROT_NONE) == 0);
    make_absent();
    CHECK(mprotect(memory, 8 * MIB, PROT_READ | PROT_WRITE) == 0 && holds(memory, 16 * MIB, 87));
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
    int *number = fresh(sizeof *number);
    *number = 77;
    make_absent();
    result = prctl(PR_SET_PDEATHSIG, SIGUSR2);
    CHECK(prctl(PR_GET_PDEATHSIG, number) == 0);
    say("pdeathsig: %d, now %d", result, *number);
    CHECK(prctl(PR_SET_PDEATHSIG, 0) == 0);
    result = prctl(PR_SET_CHILD_SUBREAPER, 1);
    make_absent();
    CHECK(prctl(PR_GET_CHILD_SUBREAPER, number) == 0);
    say("child_subreaper: %d, now %d", result, *number);
    say("no_new_privs: %d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    result = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("no_new_privs: %d, now %d", result, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    say("keepcaps: %d, timerslack: %d, securebits %s", prctl(PR_SET_KEEPCAPS, 1), prctl(PR_SET_TIMERSLACK, 100000), prctl(PR_GET_SECUREBITS) >= 0 ? "ok" : "error");
    result = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    say("thp: %d, now %d", result, prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    say("seccomp: %d", prctl(PR_GET_SECCOMP));
    result = prctl(54321, 1, 2, 3, 4);
    say("unknown: %d %s", result, strerror(errno));
    make_absent();
    CHECK(holds(memory, 16 * MIB, 87));
}

/* ------------------------------------------------------------------------------------------ plugins */

static void *use_plugin(void *argument)
{
    int (*count)(int) = (int (*)(int))(uintptr_t)argument;
    int sum = 0;
    for (int i = 0; i < 50; i++) sum = count(i);
    return (void *)(uintptr_t)sum;
}

/* A library that is loaded and unloaded, with thread-local storage and constructors, while its memory is absent. */
void section_plugins(void)
{
    const char *path = getenv("THREADS_PLUGIN");
    if (path == NULL) die("THREADS_PLUGIN is not set");
    churn_start();
    for (int round = 0; round < 6; round++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) die("dlopen: %s", dlerror());
        void *count = dlsym(library, "plugin_count");
        uint64_t (*state)(void) = (uint64_t (*)(void))(uintptr_t)dlsym(library, "plugin_state");
        CHECK(count != NULL && state != NULL);
        int sum = 0;
        for (int i = 0; i < 8; i++) sum += (int)(uintptr_t)join(start(use_plugin, count));
        say("round %d: sum %d, state %016llx", round, sum, (unsigned long long)state());
        CHECK(dlclose(library) == 0);
    }
    churn_stop();
}
