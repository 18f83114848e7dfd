/* Threads that end: by cancellation, by pthread_exit, by thousands. */
#include "threads.h"
#include <semaphore.h>
#include <sys/socket.h>

static int pair[2];
static uint64_t *cleaned;
static volatile int started, cleanups, told;

static void clean(void *argument)
{
    /* What is touched here is absent. */
    uint64_t *place = argument;
    *place = mix(*place);
    __atomic_fetch_add(&cleanups, 1, __ATOMIC_RELAXED);
}

static void *deferred(void *argument)
{
    char *in = fresh(MIB);
    pthread_cleanup_push(clean, argument);
    pthread_cleanup_push(clean, (uint64_t *)argument + 512);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    for (;;) CHECK(read(pair[0], in, MIB) > 0);
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *asynchronous(void *argument)
{
    uint64_t *words = filled(4 * MIB, 40);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    pthread_cleanup_push(clean, argument);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    for (;;) {
        for (size_t i = 0; i < 4 * MIB / 8; i += 64) words[i] = mix(words[i]);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static pthread_mutex_t *lock;
static pthread_cond_t *condition;

static void give_up(void *unused)
{
    (void)unused;
    CHECK(pthread_mutex_unlock(lock) == 0);
    __atomic_fetch_add(&cleanups, 1, __ATOMIC_RELAXED);
}

static void *in_condition(void *unused)
{
    CHECK(pthread_mutex_lock(lock) == 0);
    pthread_cleanup_push(give_up, NULL);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    for (;;) CHECK(pthread_cond_wait(condition, lock) == 0);
    pthread_cleanup_pop(0);
    return unused;
}

static void *in_semaphore(void *argument)
{
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    pthread_cleanup_push(clean, (uint64_t *)argument + 1024);
    CHECK(sem_wait(argument) == 0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *masked(void *argument)
{
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    __atomic_fetch_add(&started, 1, __ATOMIC_RELAXED);
    while (!told) sleep_ms(1);
    make_absent();
    *(uint64_t *)argument = 99;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
    pthread_testcancel();
    *(uint64_t *)argument = 100;
    return NULL;
}

static void cancel_all(const char *name, void *(*body)(void *), void *argument, int count)
{
    pthread_t threads[16];
    started = cleanups = told = 0;
    for (int i = 0; i < count; i++) threads[i] = start(body, (char *)argument + (size_t)i * 16 * PAGE);
    while (__atomic_load_n(&started, __ATOMIC_RELAXED) < count) sleep_ms(1);
    make_absent();
    int ended = 0;
    for (int i = 0; i < count; i++) CHECK(pthread_cancel(threads[i]) == 0);
    told = 1;
    for (int i = 0; i < count; i++) ended += join(threads[i]) == PTHREAD_CANCELED;
    say("%s: %d cancelled, %d cleanups", name, ended, cleanups);
}

void section_cancel(void)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    cleaned = filled(MIB, 41);
    lock = fresh(sizeof *lock);
    condition = fresh(sizeof *condition);
    CHECK(pthread_mutex_init(lock, NULL) == 0 && pthread_cond_init(condition, NULL) == 0);
    cancel_all("in a read", deferred, cleaned, 8);
    for (int round = 0; round < 4; round++) cancel_all("at any place", asynchronous, cleaned, 6);
    cancel_all("in a condition", in_condition, cleaned, 8);
    CHECK(pthread_mutex_trylock(lock) == 0);
    sem_t *semaphores = fresh(MIB);
    for (int i = 0; i < 8; i++) CHECK(sem_init((sem_t *)((char *)semaphores + (size_t)i * 16 * PAGE), 0, 0) == 0);
    cancel_all("in a semaphore", in_semaphore, semaphores, 8);
    cancel_all("late", masked, cleaned, 4);
    for (int i = 0; i < 8; i++) {
        say("place %d: %016llx %016llx", i, (unsigned long long)cleaned[i * 8192], (unsigned long long)cleaned[i * 8192 + 512]);
    }
    say("digest %016llx", (unsigned long long)digest(0, cleaned, MIB));
}

/* -------------------------------------------------------------------------------------------- short */

static uint64_t *sums;

static void *brief(void *argument)
{
    size_t i = (size_t)(uintptr_t)argument;
    sums[i * 97 % (4 * MIB / 8)] += i;
    return (void *)(uintptr_t)(sums[(i * 31) % 512] & 1);
}

void section_short(void)
{
    enum { COUNT = 3000, AT_ONCE = 12 };
    sums = fresh(4 * MIB);
    churn_start();
    pthread_t threads[AT_ONCE];
    for (size_t i = 0; i < COUNT; i++) {
        if (i >= AT_ONCE) join(threads[i % AT_ONCE]);
        threads[i % AT_ONCE] = start(brief, (void *)(uintptr_t)i);
    }
    for (size_t i = COUNT; i < COUNT + AT_ONCE; i++) join(threads[i % AT_ONCE]);
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 64 * 1024) == 0);
    for (size_t i = COUNT; i < COUNT + 500; i++) {
        pthread_t thread;
        int error;
        while ((error = pthread_create(&thread, &attributes, brief, (void *)(uintptr_t)i)) == EAGAIN) sleep_ms(1);
        CHECK(error == 0);
    }
    uint64_t sum = 0;
    for (int tries = 0; tries < 5000 && sum != (COUNT + 500ull) * (COUNT + 499ull) / 2; tries++) {
        sleep_ms(1);
        sum = 0;
        for (size_t i = 0; i < COUNT + 500; i++) sum += ((volatile uint64_t *)sums)[i * 97 % (4 * MIB / 8)];
    }
    churn_stop();
    say("sum %llu", (unsigned long long)sum);
}

/* -------------------------------------------------------------------------------------------- exits */

static pthread_key_t key;

static void destroy(void *value)
{
    uint64_t *place = value;
    __atomic_fetch_add(&cleanups, 1, __ATOMIC_RELAXED);
    /* Sets itself again, a few times, as destructors may. */
    if (++*place % 4 != 0) CHECK(pthread_setspecific(key, value) == 0);
}

static volatile int none = -1;
static __thread uint64_t of_thread[512];

static __attribute__((noinline)) void leave_from(int level, uint64_t *place)
{
    volatile char room[512];
    room[0] = (char)level;
    pthread_cleanup_push(clean, place + level * 512);
    if (level == 0) pthread_exit((void *)(uintptr_t)(of_thread[7] + (uint64_t)room[0]));
    if (level != none) leave_from(level - 1, place);
    pthread_cleanup_pop(0);
}

static void *leaves(void *argument)
{
    uint64_t *place = argument;
    of_thread[7] = place[9];
    *place = 0;
    CHECK(pthread_setspecific(key, place) == 0);
    make_absent();
    leave_from(6, place + 512);
    return NULL;
}

static void *outlives(void *places)
{
    sleep_ms(20);
    make_absent();
    say("the last thread: digest %016llx", (unsigned long long)digest(0, places, MIB));
    return NULL;
}

void section_exits(void)
{
    CHECK(pthread_key_create(&key, destroy) == 0);
    uint64_t *places = filled(MIB, 44);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) threads[i] = start(leaves, places + i * 16384);
    uint64_t results = 0;
    for (int i = 0; i < 8; i++) results = results * 31 + (uint64_t)(uintptr_t)join(threads[i]);
    say("results %016llx, %d cleanups, digest %016llx", (unsigned long long)results, cleanups, (unsigned long long)digest(0, places, MIB));
    /* The main thread leaves first: the process goes on until the last thread is through. */
    CHECK(pthread_create(&threads[0], NULL, outlives, places) == 0);
    pthread_exit(NULL);
}
