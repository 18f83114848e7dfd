/* Waiting: poll and its kin, futexes and what is built from them, threads. */
#include "check.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

struct wake { int fd; long after_ms; };

static void *write_later(void *argument)
{
    struct wake *w = argument;
    sleep_ms(w->after_ms);
    make_absent();
    CHECK(write(w->fd, "!", 1) == 1);
    return NULL;
}

void section_polling(void)
{
    enum { PIPES = 40 };
    int (*pipes)[2] = fresh(PIPES * sizeof *pipes);
    struct pollfd *polled = fresh(PIPES * sizeof *polled);
    for (int i = 0; i < PIPES; i++) {
        CHECK(pipe2(pipes[i], O_CLOEXEC) == 0);
        polled[i] = (struct pollfd){ .fd = pipes[i][0], .events = POLLIN };
    }
    struct wake first = { pipes[17][1], 60 };
    make_absent();
    pthread_t helper = start(write_later, &first);
    int ready = poll(polled, PIPES, -1);
    join(helper);
    say("poll: %d ready, revents %d %d", ready, polled[17].revents, polled[16].revents);

    struct timespec wait = { 2, 0 }, *timeout = placed(&wait, sizeof wait);
    sigset_t empty, *mask;
    sigemptyset(&empty);
    mask = placed(&empty, sizeof empty);
    make_absent();
    say("ppoll: %d", ppoll(polled, PIPES, timeout, mask));

    fd_set set, *readable;
    FD_ZERO(&set);
    for (int i = 0; i < PIPES; i++) FD_SET(pipes[i][0], &set);
    readable = placed(&set, sizeof set);
    struct timeval seconds = { 2, 0 }, *limit = placed(&seconds, sizeof seconds);
    make_absent();
    ready = select(pipes[PIPES - 1][1] + 1, readable, NULL, NULL, limit);
    say("select: %d, the right one %d, another %d", ready, FD_ISSET(pipes[17][0], readable) != 0, FD_ISSET(pipes[3][0], readable) != 0);
    readable = placed(&set, sizeof set);
    make_absent();
    say("pselect: %d", pselect(pipes[PIPES - 1][1] + 1, readable, NULL, NULL, timeout, mask));

    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < PIPES; i++) {
        struct epoll_event event = { .events = EPOLLIN, .data = { .u32 = (uint32_t)i } }, *heap_event = placed(&event, sizeof event);
        if (i % 20 == 0) make_absent();
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[i][0], heap_event) == 0);
    }
    char *byte = fresh(1);
    make_absent();
    CHECK(read(pipes[17][0], byte, 1) == 1 && *byte == '!');
    struct wake second = { pipes[31][1], 60 };
    struct epoll_event *events = fresh(PIPES * sizeof *events);
    helper = start(write_later, &second);
    make_absent();
    ready = epoll_wait(epoll, events, PIPES, -1);
    join(helper);
    say("epoll_wait: %d, number %u", ready, events[0].data.u32);
    make_absent();
    say("epoll_pwait: %d", epoll_pwait(epoll, events, PIPES, 1000, mask));
    memset(polled, 0, sizeof *polled);
    polled[0].fd = -1;
    make_absent();
    say("poll that times out: %d", poll(polled, 1, 20));
}

/* ------------------------------------------------------------------------------------------ futexes */

/* Each of these lies on pages of its own, so that waiting and waking threads find the words absent. */
struct shared {
    pthread_mutex_t mutex __attribute__((aligned(4096)));
    pthread_cond_t changed __attribute__((aligned(4096)));
    pthread_rwlock_t rwlock __attribute__((aligned(4096)));
    pthread_barrier_t barrier __attribute__((aligned(4096)));
    sem_t semaphore __attribute__((aligned(4096)));
    uint64_t counter __attribute__((aligned(4096)));
    uint64_t turn __attribute__((aligned(4096)));
    uint32_t word __attribute__((aligned(4096)));
    uint32_t other __attribute__((aligned(4096)));
};

enum { WORKERS = 6, ROUNDS = 200 };
static struct shared *shared;

static void *locked_work(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&shared->mutex);
        shared->counter++;
        pthread_mutex_unlock(&shared->mutex);
        if (i % 10 == 0) {
            /* Everyone in turn, so that each round has real waiting in it. */
            pthread_mutex_lock(&shared->mutex);
            while (shared->turn % WORKERS != number) pthread_cond_wait(&shared->changed, &shared->mutex);
            shared->turn++;
            pthread_cond_broadcast(&shared->changed);
            pthread_mutex_unlock(&shared->mutex);
        }
        if (i % 25 == 0) pthread_barrier_wait(&shared->barrier);
        sem_wait(&shared->semaphore);
        pthread_rwlock_rdlock(&shared->rwlock);
        uint64_t seen = shared->counter;
        pthread_rwlock_unlock(&shared->rwlock);
        CHECK(seen > 0);
        sem_post(&shared->semaphore);
    }
    return NULL;
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout, uint32_t *other, uint32_t value3)
{
    return syscall(SYS_futex, word, operation, value, timeout, other, value3);
}

static void *futex_waiter(void *unused)
{
    (void)unused;
    long r = futex(&shared->word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 2);
    CHECK(r == 0);
    return NULL;
}

static void raw_futexes(void)
{
    struct timespec soon = { 0, 20000000 }, *timeout = placed(&soon, sizeof soon);
    shared->word = 1;
    make_absent();
    long r = futex(&shared->word, FUTEX_WAIT, 0, timeout, NULL, 0);
    say("wait on another value: %s", r < 0 ? strerror(errno) : "0");
    make_absent();
    r = futex(&shared->word, FUTEX_WAIT, 1, timeout, NULL, 0);
    say("wait until the time is over: %s", r < 0 ? strerror(errno) : "0");
    make_absent();
    say("wake nobody: %ld", futex(&shared->word, FUTEX_WAKE, 9, NULL, NULL, 0));
    pthread_t waiters[4];
    for (int i = 0; i < 4; i++) waiters[i] = start(futex_waiter, NULL);
    /* Until all four wait, requeueing two of them is not possible: try till it is. */
    long moved = 0, woken = 0;
    for (int i = 0; i < 2000 && moved < 2; i++) {
        sleep_ms(2);
        make_absent();
        r = futex(&shared->word, FUTEX_CMP_REQUEUE | FUTEX_PRIVATE_FLAG, 0, (void *)(uintptr_t)(2 - moved), &shared->other, 1);
        CHECK(r >= 0);
        moved += r;
    }
    while (woken < 4) {
        make_absent();
        long a = futex(&shared->word, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, 4, NULL, NULL, 2);
        long b = futex(&shared->other, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, 4, NULL, NULL, 2);
        CHECK(a >= 0 && b >= 0);
        woken += a + b;
    }
    for (int i = 0; i < 4; i++) join(waiters[i]);
    say("requeued %ld, woken %ld", moved, woken);
}

void section_futexes(void)
{
    shared = fresh(sizeof *shared);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
    CHECK(pthread_mutex_init(&shared->mutex, &attributes) == 0 && pthread_cond_init(&shared->changed, NULL) == 0);
    CHECK(pthread_rwlock_init(&shared->rwlock, NULL) == 0 && pthread_barrier_init(&shared->barrier, NULL, WORKERS) == 0);
    CHECK(sem_init(&shared->semaphore, 0, 2) == 0);
    pthread_t threads[WORKERS];
    churn_start();
    for (uintptr_t i = 0; i < WORKERS; i++) threads[i] = start(locked_work, (void *)i);
    for (int i = 0; i < WORKERS; i++) join(threads[i]);
    churn_stop();
    say("counter %llu, turns %llu", (unsigned long long)shared->counter, (unsigned long long)shared->turn);
    raw_futexes();
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec = (until.tv_nsec + 30000000) % 1000000000;
    until.tv_sec += until.tv_nsec < 30000000;
    pthread_mutex_lock(&shared->mutex);
    make_absent();
    int r = pthread_cond_timedwait(&shared->changed, &shared->mutex, placed(&until, sizeof until));
    say("timed wait: %s", strerror(r));
    pthread_mutex_unlock(&shared->mutex);
}

/* ------------------------------------------------------- robust mutexes: the kernel writes at a thread's end */

static pthread_mutex_t *robust;

static void *die_with_lock(void *unused)
{
    (void)unused;
    CHECK(pthread_mutex_lock(robust) == 0);
    make_absent();
    return NULL;
}

static void *inherit_priority(void *argument)
{
    pthread_mutex_t *mutex = argument;
    for (int i = 0; i < 50; i++) {
        CHECK(pthread_mutex_lock(mutex) == 0);
        sched_yield();
        CHECK(pthread_mutex_unlock(mutex) == 0);
    }
    return NULL;
}

void section_robust(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    robust = fresh(sizeof *robust);
    CHECK(pthread_mutex_init(robust, &attributes) == 0);
    join(start(die_with_lock, NULL));
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 3;
    make_absent();
    int r = pthread_mutex_timedlock(robust, &until);
    say("the owner died: %s", strerror(r));
    if (r == EOWNERDEAD) CHECK(pthread_mutex_consistent(robust) == 0 && pthread_mutex_unlock(robust) == 0);
    pthread_mutexattr_init(&attributes);
    CHECK(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    pthread_mutex_t *inheriting = fresh(sizeof *inheriting);
    CHECK(pthread_mutex_init(inheriting, &attributes) == 0);
    pthread_t threads[4];
    churn_start();
    for (int i = 0; i < 4; i++) threads[i] = start(inherit_priority, inheriting);
    for (int i = 0; i < 4; i++) join(threads[i]);
    churn_stop();
    say("priority inheritance ok");
}

/* ----------------------------------------------------------------------------------- many short threads */

static unsigned char *common;

static void *short_thread(void *argument)
{
    uintptr_t number = (uintptr_t)argument;
    uint64_t *mine = malloc(3000);
    CHECK(mine != NULL);
    for (int i = 0; i < 375; i++) mine[i] = number + (uintptr_t)i;
    size_t at = number * 37 % (8 * MIB / PAGE) * PAGE;
    CHECK(holds(common + at, 8, 40 ^ at));
    uint64_t sum = 0;
    for (int i = 0; i < 375; i++) sum += mine[i];
    free(mine);
    return (void *)(uintptr_t)sum;
}

void section_threads(void)
{
    common = filled(8 * MIB, 40);
    uint64_t total = 0;
    enum { TOTAL = 3000, AT_ONCE = 20 };
    for (uintptr_t i = 0; i < TOTAL; i += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        for (uintptr_t j = 0; j < AT_ONCE; j++) threads[j] = start(short_thread, (void *)(i + j));
        for (int j = 0; j < AT_ONCE; j++) {
            void *sum;
            CHECK(pthread_join(threads[j], &sum) == 0);
            total += (uintptr_t)sum;
        }
        if (i % 500 == 0) make_absent();
    }
    say("%d threads, total %llu", TOTAL, (unsigned long long)total);
}
