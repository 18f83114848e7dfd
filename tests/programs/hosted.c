// A program that is linked without a dynamic linker, or with another libc: what it finds, whether it is itself, and data that leave.
//
//   hosted found           what a program can know of itself: name, environment, auxiliary vector, signals, children, descriptors
//   hosted again           the same, after an exec of itself
//   hosted children        children by fork and vfork that execute it, and a failed exec
//   hosted threads-exec    an exec by a thread that is not the first one, while others run
//   hosted data            threads with data of their own, signals, a static array, forked children: everything is checked
//   hosted stops           children that are stopped and continued in the middle of their start
//   hosted killed          children that are killed in the middle of their start
//   hosted low             memory that the program maps at addresses below its own
//   hosted calls           thread-local storage and errno around thousands of calls, with a signal in the middle of many
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); _exit(99); } } while (0)

extern char **environ;
static char array[24 << 20];
static __thread uint64_t canary = 0x1234;
static volatile sig_atomic_t ticks;

static void show(const char *path, const char *prefix) {
    char line[4096];
    FILE *file = fopen(path, "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, prefix, strlen(prefix))) printf("%s", line);
    fclose(file);
}

static void found(char **argv) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    CHECK(length > 0);
    path[length] = 0;
    printf("%s %s\n", path, argv[0]);
    show("/proc/self/comm", "");
    show("/proc/self/status", "TracerPid");
    show("/proc/self/status", "SigBlk");
    show("/proc/self/status", "SigIgn");
    show("/proc/self/status", "SigPnd");
    int entries = 0;
    for (char **entry = environ; *entry; entry++, entries++)
        if (!strncmp(*entry, "HOSTED_", 7) || !strncmp(*entry, "LD_", 3) || strstr(*entry, "FARSHORE") == *entry) puts(*entry);
    printf("%d variables\n", entries);
    printf("%s secure %lu headers %lu\n", (char *)getauxval(AT_EXECFN), getauxval(AT_SECURE), getauxval(AT_PHNUM));
    errno = 0;
    printf("child %d %d\n", waitpid(-1, NULL, __WALL | WNOHANG), errno);
    for (int number = 1; number < 32; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL) printf("action %d %p\n", number, (void *)action.sa_handler);
    }
    for (int number = 0; number < 64; number++)
        if (fcntl(number, F_GETFD) >= 0) printf("descriptor %d\n", number);
    fflush(stdout);
    // The heap grows where the kernel has put it, in one piece. (By the call itself: musl's own function refuses. Nothing allocates afterwards.)
    char *start = (char *)syscall(SYS_brk, 0), *end = start + (1 << 20);
    CHECK((char *)syscall(SYS_brk, end) == end && (char *)syscall(SYS_brk, 0) == end);
    memset(start, 7, end - start);
}

static void ended(pid_t child, int wanted) {
    int status;
    pid_t got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR) {}
    CHECK(got == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == wanted);
}

static void children(char **argv) {
    char *again[] = {argv[0], "leaf", NULL}, *nobody[] = {"/nonexistent/program", NULL};
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        if (child == 0) { execv(argv[0], again); _exit(98); }
        ended(child, 3);
        child = vfork();
        if (child == 0) { execv(argv[0], again); _exit(98); }
        ended(child, 3);
        child = vfork();
        if (child == 0) { execv(nobody[0], nobody); _exit(errno == ENOENT ? 4 : 98); }
        ended(child, 4);
    }
    CHECK(execv(nobody[0], nobody) == -1 && errno == ENOENT);
    printf("children ended\n");
    found(argv);
}

// Each child begins the program again, which waits for a byte: it must stop, go on, and end.
static void stops(char **argv) {
    int bell[2];
    char number[16], *again[] = {argv[0], "naps", number, NULL};
    CHECK(pipe(bell) == 0 && snprintf(number, sizeof number, "%d", bell[0]) > 0);
    int stopped = 0;
    for (int n = 0; n < 24; n++) {
        pid_t child = n % 2 ? fork() : vfork();
        if (child == 0) { execv(argv[0], again); _exit(98); }
        int status;
        usleep(n * 257 % 4000);
        CHECK(kill(child, SIGSTOP) == 0);
        CHECK(waitpid(child, &status, WUNTRACED) == child);
        stopped += WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
        CHECK(kill(child, SIGCONT) == 0 && write(bell[1], "x", 1) == 1);
        ended(child, 3);
    }
    printf("stopped %d\n", stopped);
}

static void killed(char **argv) {
    char *again[] = {argv[0], "sleeps", NULL};
    for (int n = 0; n < 100; n++) {
        pid_t child = fork();
        if (child == 0) { execv(argv[0], again); _exit(98); }
        int status;
        usleep(n * 37 % 3000);
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    }
    printf("killed\n");
}

// A program at fixed addresses begins at 4 MiB, and what lies below is its own to use.
static void low(void) {
    uintptr_t end = (uintptr_t)low < 16 << 20 ? 0x3f0000 : 0;
    if (end) {
        size_t length = end - 0x20000;
        char *place = mmap((void *)0x20000, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(place == (char *)0x20000);
        memset(place, 7, length);
    }
    for (int n = 0; n < 1000; n++) CHECK(getppid() > 0 && close(-1) == -1);
    printf("low memory is there\n");
}

static void *spins(void *given) { for (;;) usleep(100); return given; }
static void *executes(void *argv) { execv(((char **)argv)[0], argv); return NULL; }

static void tick(int number) { (void)number; ticks++; CHECK(canary == 0x1234 || canary >= 1000000); }

static void *works(void *given) {
    uint64_t number = (uint64_t)given, sum = 0;
    canary = 1000000 + number;
    size_t words = (4 << 20) / 4;
    uint32_t *data = malloc(words * 4);
    CHECK(data);
    for (uint32_t round = 0; round < 4; round++) {
        for (size_t n = 0; n < words; n++) data[n] = n * 2654435761u + round;
        CHECK(open("/nonexistent/file", O_RDONLY) == -1 && errno == ENOENT);
        for (size_t n = 0; n < words; n++) { CHECK(data[n] == (uint32_t)(n * 2654435761u + round)); sum += data[n]; }
        CHECK(canary == 1000000 + number);
    }
    free(data);
    return (void *)sum;
}

static void data(void) {
    uint64_t total = 0;
    struct itimerval often = {{0, 2000}, {0, 2000}};
    CHECK(signal(SIGALRM, tick) != SIG_ERR && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        pthread_t threads[6];
        for (long n = 0; n < 6; n++) CHECK(pthread_create(&threads[n], NULL, works, (void *)n) == 0);
        for (size_t at = 0; at < sizeof array; at += 4096) array[at] = (char)(at >> 12) + round;
        pid_t child = fork();
        if (child == 0) {
            for (size_t at = 0; at < sizeof array; at += 4096) if (array[at] != (char)((char)(at >> 12) + round)) _exit(98);
            array[0] = 1;
            _exit(5);
        }
        ended(child, 5);
        for (int n = 0; n < 6; n++) { void *sum; CHECK(pthread_join(threads[n], &sum) == 0); total += (uint64_t)sum; }
        for (size_t at = 0; at < sizeof array; at += 4096) CHECK(array[at] == (char)((char)(at >> 12) + round));
    }
    printf("%llx, signals: %s\n", (unsigned long long)total, ticks ? "some" : "none");
}

static void *calls_much(void *given) {
    canary = 1000000 + (uint64_t)given;
    char bytes[4096];
    int zero = open("/dev/zero", O_RDONLY);
    for (int n = 0; n < 20000; n++) {
        errno = 1234;
        CHECK(pread(zero, bytes, sizeof bytes, 0) == sizeof bytes && errno == 1234);
        CHECK(syscall(SYS_gettid) > 0 && errno == 1234);
        CHECK(close(-1) == -1 && errno == EBADF);
        CHECK(canary == 1000000 + (uint64_t)given);
    }
    close(zero);
    return NULL;
}

static void calls(void) {
    struct itimerval often = {{0, 200}, {0, 200}};
    CHECK(signal(SIGALRM, tick) != SIG_ERR && setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t threads[3];
    for (long n = 0; n < 3; n++) CHECK(pthread_create(&threads[n], NULL, calls_much, (void *)n) == 0);
    for (int n = 0; n < 3; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    printf("errno and thread-locals stayed, signals: %s\n", ticks ? "some" : "none");
}

static _Atomic int chains;
static pthread_attr_t detached;

static void *makes_next(void *left);

/* Detached from its start: glibc's pthread_detach looks at the thread once more after it may have ended, and its stack be gone. */
static void makes_one(void *left) {
    pthread_t thread;
    CHECK(pthread_create(&thread, &detached, makes_next, left) == 0);
}

/* A thread that makes the next one, and ends at once: the next one may begin when nothing of it is left. */
static void *makes_next(void *left) {
    if (left == 0) { chains--; return NULL; }
    makes_one((void *)((uint64_t)left - 1));
    return NULL;
}

static void orphans(void) {
    chains = 8;
    CHECK(pthread_attr_init(&detached) == 0 && pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) == 0);
    for (int n = 0; n < 8; n++) makes_one((void *)1500);
    while (chains) usleep(1000);
    printf("each thread has made the next one\n");
}

/* A program that begins with SIGCHLD blocked hears of no child but its own. */
static void chld(char **argv, int own) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    pid_t child = own ? fork() : 0;
    if (own && child == 0) _exit(5);
    siginfo_t info = {0};
    if (own) CHECK(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    argv[1] = own ? "chld-own" : "chld-none";
    execv(argv[0], argv);
    exit(98);
}

static void chld_waits(int own) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    siginfo_t info = {0};
    struct timespec at_once = {0};
    int signal = sigtimedwait(&set, &info, &at_once), status = 0;
    pid_t child = wait(&status);
    printf("%d, child %d, its own %d, status %d\n", signal, child > 0, own && signal > 0 && info.si_pid == child && info.si_code == CLD_EXITED, status);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "found";
    if (!strcmp(what, "leaf")) return 3;
    char byte;
    if (!strcmp(what, "naps")) return argc > 2 && read(atoi(argv[2]), &byte, 1) == 1 ? 3 : 97;
    if (!strcmp(what, "sleeps")) return sleep(60), 3;
    if (!strcmp(what, "found")) found(argv);
    else if (!strcmp(what, "again")) { argv[1] = "found"; execv(argv[0], argv); return 98; }
    else if (!strcmp(what, "children")) children(argv);
    else if (!strcmp(what, "stops")) stops(argv);
    else if (!strcmp(what, "killed")) killed(argv);
    else if (!strcmp(what, "low")) low();
    else if (!strcmp(what, "threads-exec")) {
        pthread_t thread;
        argv[1] = "found";
        for (int n = 0; n < 3; n++) CHECK(pthread_create(&thread, NULL, spins, NULL) == 0);
        CHECK(pthread_create(&thread, NULL, executes, argv) == 0);
        pthread_join(thread, NULL);
        return 98;
    } else if (!strcmp(what, "data")) data();
    else if (!strcmp(what, "calls")) calls();
    else if (!strcmp(what, "orphans")) orphans();
    else if (!strcmp(what, "chld")) chld(argv, 0);
    else if (!strcmp(what, "chld-of-own")) chld(argv, 1);
    else if (!strncmp(what, "chld-", 5)) chld_waits(!strcmp(what, "chld-own"));
    else return 97;
    return 0;
}
