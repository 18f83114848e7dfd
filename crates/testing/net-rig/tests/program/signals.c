/* Signals that arrive in the middle of a call: restarts, and handlers that leave by a jump or end the thread. */
#include "nettest.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static volatile int signals;

static void on_alarm(int signal)
{
    (void)signal;
    signals++;
    getppid();
}

/* SIGALRM after `first` microseconds and then every `every`; 0: never. */
static void alarm_in(long first, long every)
{
    struct itimerval timer = {{0, every}, {0, first}};
    CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
}

/* ---- restart ---- */

static void *write_late(void *descriptor)
{
    while (!signals)
        usleep(1000);
    usleep(70000);
    CHECK(write(*(int *)descriptor, "x", 1) == 1);
    return NULL;
}

static void restart_one(int restart, int raw)
{
    int ends[2], error;
    char byte;
    long result;
    CHECK(!pipe(ends));
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = restart ? SA_RESTART : 0};
    CHECK(!sigaction(SIGALRM, &action, NULL));
    /* The writer inherits a mask that keeps the signals with us. */
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    signals = 0;
    pthread_t writer;
    CHECK(!pthread_create(&writer, NULL, write_late, &ends[1]));
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    alarm_in(10000, 10000);
    if (raw) {
        result = inline_read(ends[0], &byte, 1);
        error = (int)-result;
    } else {
        result = read(ends[0], &byte, 1);
        error = errno;
    }
    if (restart)
        CHECK(result == 1 && byte == 'x');
    else
        CHECK(result < 0 && error == EINTR);
    alarm_in(0, 0);
    CHECK(signals >= 1);
    CHECK(!pthread_join(writer, NULL));
    close(ends[0]);
    close(ends[1]);

    /* Again and again: the first may come before the call. */
    struct timespec time = {100, 0}, left;
    alarm_in(10000, 10000);
    CHECK(nanosleep(&time, &left) == -1 && errno == EINTR);
    alarm_in(0, 0);
}

void test_restart(void)
{
    for (int round = 0; round < 2; round++)
        for (int restart = 0; restart < 2; restart++)
            for (int raw = 0; raw < 2; raw++)
                restart_one(restart, raw);
}

/* ---- siglongjmp ---- */

static sigjmp_buf jump;

static void on_jump(int signal)
{
    (void)signal;
    siglongjmp(jump, 1);
}

void test_longjmp(void)
{
    int ends[2];
    char byte;
    CHECK(!pipe(ends));
    signal(SIGALRM, on_jump);
    /* Out of a call that waits. */
    for (volatile int i = 0; i < 200; i++) {
        if (!sigsetjmp(jump, 1)) {
            alarm_in(500, 0);
            if (i & 1)
                CHECK(read(ends[0], &byte, 1) == 2);
            else
                CHECK(inline_read(ends[0], &byte, 1) == 2);
        }
    }
    /* At any moment. */
    volatile unsigned calls = 0;
    volatile int jumps = 0;
    sigsetjmp(jump, 1);
    if (jumps++ < 300) {
        alarm_in(300 + jumps, 0);
        for (;;) {
            getppid();
            inline_read(-1, NULL, 0);
            calls++;
        }
    }
    CHECK(calls > 300);
}

/* ---- cancellation ---- */

enum how { READ, ASYNC_READ, ASYNC_CALLS, ASYNC_INLINE, ASYNC_INLINE_READ, HOWS };
struct cancelled {
    int descriptor;
    enum how how;
};
static volatile int cleaned, begun;

static void clean(void *argument)
{
    (void)argument;
    cleaned++;
}

static void *be_cancelled(void *argument)
{
    struct cancelled *self = argument;
    char byte;
    pthread_cleanup_push(clean, NULL);
    begun = 1;
    if (self->how != READ)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    while (self->how == ASYNC_CALLS)
        getppid();
    while (self->how == ASYNC_INLINE)
        inline_read(-1, NULL, 0);
    if (self->how == ASYNC_INLINE_READ)
        inline_read(self->descriptor, &byte, 1);
    else
        CHECK(read(self->descriptor, &byte, 1) == 2);
    pthread_cleanup_pop(0);
    return NULL;
}

void test_cancel(void)
{
    for (enum how how = 0; how < HOWS; how++) {
        for (int i = 0; i < 60; i++) {
            int ends[2];
            CHECK(!pipe(ends));
            struct cancelled argument = {ends[0], how};
            pthread_t thread;
            void *value;
            cleaned = begun = 0;
            CHECK(!pthread_create(&thread, NULL, be_cancelled, &argument));
            /* The first ones within the call, the others at any moment. */
            while (i < 5 && !begun)
                usleep(1000);
            usleep(i < 5 ? 20000 : 100 + i * 7);
            CHECK(!pthread_cancel(thread));
            CHECK(!pthread_join(thread, &value));
            CHECK(value == PTHREAD_CANCELED);
            if (i < 5)
                CHECK(cleaned == 1);
            close(ends[0]);
            close(ends[1]);
        }
    }
}

/* ---- an alternate stack ---- */

#define STACK 65536
static volatile int handled;
static char *stack;

static void on_stack(int signal)
{
    (void)signal;
    char here;
    handled += &here > stack && &here < stack + STACK;
    double number = handled * 0.5;
    inline_read(-1, &here, 1);
    getppid();
    handled += number < 0;
}

void test_altstack(void)
{
    stack = malloc(STACK);
    stack_t new = {.ss_sp = stack, .ss_size = STACK}, now;
    CHECK(stack && !sigaltstack(&new, NULL));
    struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    volatile double factor = 1.5;
    double product = factor * 3;
    for (int i = 0; i < 500; i++) {
        CHECK(!raise(SIGUSR1));
        CHECK(product == 4.5);
        product = factor * 3;
    }
    CHECK(handled == 500);
    CHECK(!sigaltstack(NULL, &now) && now.ss_sp == stack && !(now.ss_flags & SS_ONSTACK));
    sigset_t mask;
    CHECK(!sigprocmask(SIG_BLOCK, NULL, &mask));
    CHECK(!sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2));
}

/* ---- signals all the time ---- */

/* In a child: whether the mask of its parent came along. */
static int mask_is_right(void)
{
    sigset_t mask;
    return !sigprocmask(SIG_BLOCK, NULL, &mask) && !sigismember(&mask, SIGINT) && !sigismember(&mask, SIGALRM);
}

void test_storm(void)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGALRM, &action, NULL));
    alarm_in(200, 200);
    many_processes();
    many_threads(50);
    CHECK(mask_is_right());
    int status;
    pid_t child = fork();
    if (!child)
        _exit(!mask_is_right());
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = vfork();
    if (!child)
        _exit(!mask_is_right());
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    alarm_in(0, 0);
    CHECK(signals > 10);
}
