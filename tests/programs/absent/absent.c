#include "absent.h"
#include <signal.h>

const char *section = "";
static volatile unsigned char *ballast;
static size_t ballast_pages;
static volatile int churning;
static pthread_t churner;

void say(const char *format, ...)
{
    char line[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("%s: %s\n", section, line);
    fflush(stdout);
}

void make_ballast(const char *mib)
{
    ballast_pages = (size_t)atoi(mib) * MIB / PAGE;
    ballast = map_anonymous(ballast_pages * PAGE);
}

void make_absent(void)
{
    for (size_t i = 0; i < ballast_pages; i++) __atomic_fetch_add(&ballast[i * PAGE], 1, __ATOMIC_RELAXED);
}

static void *churn(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    while (churning) {
        for (size_t i = 0; i < ballast_pages && churning; i++) __atomic_fetch_add(&ballast[i * PAGE], 1, __ATOMIC_RELAXED);
    }
    return unused;
}

void churn_start(void)
{
    churning = 1;
    churner = start(churn, NULL);
}

void churn_stop(void)
{
    churning = 0;
    join(churner);
}

void *fresh(size_t length)
{
    return map_anonymous(length < 128 * 1024 ? 128 * 1024 : (length + PAGE - 1) / PAGE * PAGE);
}

void fill(void *at, size_t length, uint64_t salt)
{
    unsigned char *p = at;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        memcpy(p + i, &word, length - i < 8 ? length - i : 8);
    }
}

void *filled(size_t length, uint64_t salt)
{
    void *at = fresh(length);
    fill(at, length, salt);
    return at;
}

int holds(const void *at, size_t length, uint64_t salt)
{
    const unsigned char *p = at;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        if (memcmp(p + i, &word, length - i < 8 ? length - i : 8) != 0) return 0;
    }
    return 1;
}

pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, argument);
    if (error != 0) die("pthread_create: %s", strerror(error));
    return thread;
}

void *join(pthread_t thread)
{
    void *result;
    int error = pthread_join(thread, &result);
    if (error != 0) die("pthread_join: %s", strerror(error));
    return result;
}

void sleep_ms(long milliseconds)
{
    struct timespec t = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}
