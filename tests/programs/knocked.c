/* Calls that wait, while somebody asks the process for its counters: they must not notice.
 *
 *     knocked CALL [itself | child] [end | restart | busy]
 *
 * Prints `waits in NUMBER PID` when it is about to make CALL, the system call NUMBER, and then how it ended: the same natively. With `child` a forked process that has written to its memory waits.
 * Each call ends by itself after 1.5 seconds or more, and a time that is less is a failure.
 * With `end`, `restart` and `busy` signal 40 has a handler. `restart`'s has SA_RESTART; `busy`'s has all signals blocked, and computes until there is something on the standard input. The call ends by that signal or with the standard input, not
 * by itself before minutes are over, so that what is printed does not tell how fast the machine is. The process ends with its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct timespec span = { 1, 600000000 };
static int nobody[2];
static volatile sig_atomic_t alarms, signals;
static int busy, signalled;

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

static void on_signal(int number)
{
    (void)number;
    const int error = errno;
    struct pollfd in = { 0, POLLIN, 0 };
    while (busy && poll(&in, 1, 0) == 0)
        for (volatile int spin = 0; spin < 1000000; spin++) continue;
    errno = error;
    signals++;
}

/* By the raw call, so that no library goes on by itself. */
static long nanosleep_call(void) { return syscall(SYS_nanosleep, &span, NULL); }
static long clock_call(void) { return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &span, NULL); }
static long until_call(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += span.tv_sec + 1;
    return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
}
static long poll_call(void)
{
    struct pollfd fd = { nobody[0], POLLIN, 0 };
    return syscall(SYS_poll, &fd, 1, (int)(span.tv_sec * 1000 + 600));
}
static long ppoll_call(void)
{
    struct pollfd fd = { nobody[0], POLLIN, 0 };
    struct timespec time = span;
    sigset_t none;
    sigemptyset(&none);
    return syscall(SYS_ppoll, &fd, 1, &time, &none, 8);
}
static long select_call(void)
{
    fd_set set;
    struct timeval time = { span.tv_sec, 600000 };
    FD_ZERO(&set);
    FD_SET(nobody[0], &set);
    return syscall(SYS_select, nobody[0] + 1, &set, NULL, NULL, &time);
}
static long futex_call(void)
{
    uint32_t word = 7;
    return syscall(SYS_futex, &word, FUTEX_WAIT, 7, &span, NULL, 0);
}
static long pause_call(void)
{
    signal(SIGALRM, on_alarm);
    alarm((unsigned)span.tv_sec + 1);
    long result = syscall(SYS_pause);
    int error = errno;
    printf("%d alarm\n", (int)alarms);
    errno = error;
    return result;
}
/* A child that sleeps, or waits for the end of the standard input, then writes a byte. */
static void fork_writer(void)
{
    if (fork() != 0) return;
    if (signalled) {
        while (read(0, &(char){ 0 }, 1) != 0) continue;
    } else {
        sleep(2);
    }
    _exit(write(nobody[1], "x", 1) == 1 ? 3 : 1);
}
static long read_call(void)
{
    fork_writer();
    char byte;
    long n = syscall(SYS_read, nobody[0], &byte, 1);
    wait(NULL);
    return n;
}
static long epoll_call(void)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN }, got;
    epoll_ctl(epoll, EPOLL_CTL_ADD, nobody[0], &event);
    fork_writer();
    long n = syscall(SYS_epoll_wait, epoll, &got, 1, -1);
    wait(NULL);
    return n;
}
static long wait_call(void)
{
    fork_writer();
    int status = 0;
    long pid = syscall(SYS_wait4, -1, &status, 0, NULL);
    printf("status %x\n", status);
    return pid > 0;
}
static long sigtimedwait_call(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    alarm((unsigned)span.tv_sec + 1);
    return syscall(SYS_rt_sigtimedwait, &set, NULL, NULL, 8);
}

static const struct { const char *name; int number; long (*make)(void); } calls[] = {
    { "nanosleep", SYS_nanosleep, nanosleep_call }, { "clock", SYS_clock_nanosleep, clock_call }, { "until", SYS_clock_nanosleep, until_call },
    { "poll", SYS_poll, poll_call }, { "ppoll", SYS_ppoll, ppoll_call }, { "select", SYS_select, select_call }, { "futex", SYS_futex, futex_call },
    { "pause", SYS_pause, pause_call }, { "read", SYS_read, read_call }, { "epoll", SYS_epoll_wait, epoll_call }, { "wait", SYS_wait4, wait_call },
    { "sigtimedwait", SYS_rt_sigtimedwait, sigtimedwait_call },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof calls / sizeof *calls;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(calls[i].name);
        return 0;
    }
    size_t i = 0;
    while (i < count && (argc < 2 || strcmp(calls[i].name, argv[1]) != 0)) i++;
    if (i == count || pipe(nobody) != 0) return 2;
    if (argc > 3) {
        struct sigaction action = { .sa_handler = on_signal, .sa_flags = strcmp(argv[3], "restart") == 0 ? SA_RESTART : 0 };
        busy = strcmp(argv[3], "busy") == 0;
        if (busy) sigfillset(&action.sa_mask);
        sigaction(40, &action, NULL);
        signalled = 1;
        span.tv_sec = 300;
    }
    if (argc > 2 && strcmp(argv[2], "child") == 0) {
        pid_t child = fork();
        if (child != 0) {
            int status;
            while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
        }
        char *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int page = 0; page < 8; page++) memory[page * 4096] = 1;
    }
    printf("waits in %d %d\n", calls[i].number, (int)getpid());
    fflush(stdout);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    double values[4] = { 1.5, 2.5, 3.5, 4.5 };
    long result = calls[i].make();
    int error = errno;
    clock_gettime(CLOCK_MONOTONIC, &after);
    double seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    const char *when = signalled ? "when it should" : seconds > 1.4 ? "in its time" : "TOO EARLY";
    printf("%s: %ld %s, %s, %d signals\n", argv[1], result, result < 0 ? strerror(error) : "", when, (int)signals);
    fflush(stdout);
    while (getchar() != EOF) continue;
    return values[0] + values[3] == 6 ? 0 : 1;
}
