/* A process that restricts itself, and looks at the threads that it has.
 *
 *     sandbox LIMIT_MIB BEFORE SECTION
 *
 * BEFORE is `early` or `late`: the restriction comes before or after memory of three times LIMIT_MIB was written (natively that changes nothing). After
 * the restriction that is done once more, and all that was written is read. What is printed must be the same natively and under Farshore: how many kinds of
 * threads there are, by users, groups, capabilities, filters and the like (one, or as many as the program has made itself). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LOAD BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define DENY(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static size_t bytes;
static int late;
static uint64_t *memory[2];

static void check(int good, const char *what)
{
    if (!good) {
        printf("FAILED: %s: %s\n", what, strerror(errno));
        fflush(stdout);
        _exit(1);
    }
}

static uint64_t mix(uint64_t n)
{
    return n * 0x9e3779b97f4a7c15u ^ n >> 29;
}

static void fill(int which)
{
    memory[which] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory[which] != MAP_FAILED, "mmap");
    for (size_t i = 0; i < bytes / 8; i += 64) memory[which][i] = mix(i + (size_t)which);
}

static void look(int which)
{
    for (size_t i = 0; i < bytes / 8; i += 64) check(memory[which][i] == mix(i + (size_t)which), "a wrong word");
}

/* The lines of each thread's status that tell of rights; how many kinds there are. `/proc` is opened early: a restriction may forbid it. */
static DIR *tasks;

static int kinds(int *threads)
{
    enum { MOST = 256, ROOM = 2048 };
    static char seen[MOST][ROOM];
    static const char *const names[] = { "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "Speculation_Store_Bypass:" };
    int count = 0;
    *threads = 0;
    rewinddir(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.') continue;
        char path[300], text[8192], mine[ROOM] = "";
        snprintf(path, sizeof path, "%s/status", entry->d_name);
        int fd = openat(dirfd(tasks), path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        if (n <= 0) continue;
        text[n] = 0;
        ++*threads;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                if (strncmp(line, names[i], strlen(names[i])) == 0) strncat(mine, line, sizeof mine - strlen(mine) - 1);
            }
        }
        int known = 0;
        for (int i = 0; i < count; i++) known |= strcmp(seen[i], mine) == 0;
        if (!known && count < MOST) strcpy(seen[count++], mine);
    }
    return count;
}

static void tell(const char *when)
{
    int threads, count = kinds(&threads);
    printf("%s: kinds of threads: %d\n", when, count);
    fflush(stdout);
}

static long install(struct sock_filter *filter, size_t count, unsigned flags, int by_prctl)
{
    struct sock_fprog program = { .len = (unsigned short)count, .filter = filter };
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    return by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#define INSTALL(flags, by_prctl, ...) \
    install((struct sock_filter[]){ __VA_ARGS__ }, sizeof(struct sock_filter[]){ __VA_ARGS__ } / sizeof(struct sock_filter), flags, by_prctl)

static void filter_by_prctl(void) { check(INSTALL(0, 1, LOAD, DENY(SYS_getpgid), ALLOW) == 0, "prctl"); }
static void filter_plain(void) { check(INSTALL(0, 0, LOAD, DENY(SYS_getpgid), ALLOW) == 0, "seccomp"); }
static void filter_all(void) { check(INSTALL(SECCOMP_FILTER_FLAG_TSYNC, 0, LOAD, DENY(SYS_getpgid), ALLOW) == 0, "seccomp"); }
/* Afterwards no thread can be made. */
static void filter_clone(void) { check(INSTALL(0, 0, LOAD, DENY(SYS_clone), DENY(SYS_clone3), ALLOW) == 0, "seccomp"); }
static void filter_clone_then_users(void)
{
    filter_clone();
    check(syscall(SYS_setresgid, 65534, 65534, 65534) == 0 && syscall(SYS_setresuid, 65534, 65534, 65534) == 0, "users");
}
static void nonewprivs(void) { check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "prctl"); }
static void keepcaps(void) { check(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0, "prctl"); }
static void bounding(void) { check(prctl(PR_CAPBSET_DROP, 21, 0, 0, 0) == 0, "prctl"); }
static void securebits(void) { check(prctl(PR_SET_SECUREBITS, 0x2f, 0, 0, 0) == 0, "prctl"); }
static void speculation(void) { prctl(53, 0, 4, 0, 0); }

static void capabilities(void)
{
    struct { uint32_t version; int pid; } header = { 0x20080522, 0 };
    uint32_t sets[6] = { 0x20, 0x20, 0 };
    check(syscall(SYS_capset, &header, sets) == 0, "capset");
}

static void users(void)
{
    gid_t group = 7;
    check(setgroups(1, &group) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "users");
}

/* As setpriv(1) does it. */
static void users_with_capabilities(void)
{
    bounding();
    keepcaps();
    users();
    capabilities();
}

static void landlock(void)
{
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_REG };
    int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    check(fd >= 0, "landlock_create_ruleset");
    nonewprivs();
    check(syscall(SYS_landlock_restrict_self, fd, 0) == 0, "landlock_restrict_self");
    close(fd);
    check(open("/tmp/farshore-sandbox-must-not-be", O_CREAT | O_WRONLY, 0600) < 0 && errno == EACCES, "Landlock does not hold");
}

static void own_user_namespace(void) { check(unshare(CLONE_NEWUSER) == 0, "unshare"); }
static void own_files(void) { check(unshare(CLONE_FILES | CLONE_FS) == 0, "unshare"); }
static void all_of_one_thread(void) { check(unshare(CLONE_THREAD | CLONE_SIGHAND | CLONE_VM) == 0, "unshare"); }

static void enter_namespaces(void)
{
    int up[2], down[2];
    char byte;
    check(pipe(up) == 0 && pipe(down) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        check(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write(up[1], "x", 1) == 1, "unshare in a child");
        byte = (char)read(down[0], &byte, 1);
        _exit(0);
    }
    check(child > 0 && read(up[0], &byte, 1) == 1, "fork");
    const char *const names[] = { "user", "mnt" };
    int fds[2];
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", child, names[i]);
        fds[i] = open(path, O_RDONLY);
        check(fds[i] >= 0, path);
    }
    for (int i = 0; i < 2; i++) check(setns(fds[i], 0) == 0, names[i]);
    close(down[1]);
    write(down[1], "x", 1);
    kill(child, SIGKILL);
    check(waitpid(child, NULL, 0) == child, "waitpid");
}

/* Several threads: the restriction of one is its own; when the last has it, ours have it too. */
static pthread_barrier_t barrier;

static void *by_thread(void *unused)
{
    pthread_barrier_wait(&barrier);
    nonewprivs();
    filter_plain();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

static void one_after_the_other(void)
{
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    check(pthread_create(&thread, NULL, by_thread, NULL) == 0, "pthread_create");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    tell("one of two");
    nonewprivs();
    filter_plain();
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
}

/* The thread with more rights ends. */
static void *drops(void *unused)
{
    nonewprivs();
    filter_plain();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    /* The first has ended; its entry stays as long as the process. */
    usleep(200000);
    if (memory[0] == NULL) fill(0);
    fill(1);
    look(0);
    look(1);
    printf("the one that is left\n");
    fflush(stdout);
    _exit(0);
    return unused;
}

static void leaves(void)
{
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    check(pthread_create(&thread, NULL, drops, NULL) == 0, "pthread_create");
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    syscall(SYS_exit, 0);
}

/* No thread can be had. */
static void no_processes(void)
{
    struct rlimit none = { 0, 0 };
    check(setrlimit(RLIMIT_NPROC, &none) == 0, "setrlimit");
}

static void no_processes_then_users(void)
{
    no_processes();
    check(syscall(SYS_setresgid, 65534, 65534, 65534) == 0 && syscall(SYS_setresuid, 65534, 65534, 65534) == 0, "users");
}

static void no_signals_then_users(void)
{
    struct rlimit none = { 0, 0 };
    check(setrlimit(RLIMIT_SIGPENDING, &none) == 0, "setrlimit");
    users();
}

static void nothing(void) {}

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "nothing", nothing }, { "filterprctl", filter_by_prctl }, { "filter", filter_plain }, { "filterall", filter_all }, { "filterclone", filter_clone },
    { "filtercloneusers", filter_clone_then_users }, { "nonewprivs", nonewprivs }, { "keepcaps", keepcaps }, { "bounding", bounding },
    { "securebits", securebits }, { "speculation", speculation }, { "capset", capabilities }, { "users", users }, { "setpriv", users_with_capabilities },
    { "landlock", landlock }, { "userns", own_user_namespace }, { "files", own_files }, { "alone", all_of_one_thread }, { "setns", enter_namespaces },
    { "threads", one_after_the_other }, { "leaves", leaves }, { "nproc", no_processes }, { "nprocusers", no_processes_then_users },
    { "sigpending", no_signals_then_users },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 4) return 2;
    bytes = 3 * MIB * strtoul(argv[1], NULL, 10);
    late = strcmp(argv[2], "late") == 0;
    tasks = opendir("/proc/self/task");
    check(tasks != NULL, "/proc/self/task");
    int threads;
    kinds(&threads);
    printf("%d thread at the start\n", threads);
    if (late) fill(0);
    tell("before");
    size_t i = 0;
    while (i < count && strcmp(sections[i].name, argv[3]) != 0) i++;
    check(i < count, "there is such a section");
    if (!late) bytes = 3 * MIB * strtoul(argv[1], NULL, 10);
    sections[i].run();
    tell("restricted");
    if (!late) fill(0);
    tell("pressed");
    fill(1);
    look(0);
    look(1);
    tell("at the end");
    return 0;
}
