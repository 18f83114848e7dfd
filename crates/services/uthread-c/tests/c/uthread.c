/* The C interface, used as a program would. Prints "ok" at the end; any other end is a failure. */
#include "farshore_uthread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);                                                       \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

static __thread int of_thread;
static int pipes[2];
static volatile int go;

static void *square(void *argument)
{
    long number = (long)argument;
    int *place = &of_thread, worker = farshore_uthread_worker();
    CHECK(worker >= 0);
    for (int i = 0; i < 10; i++) {
        errno = (int)number;
        farshore_uthread_yield();
        CHECK(errno == (int)number);
        CHECK(&of_thread == place && farshore_uthread_worker() == worker);
        farshore_uthread_checkpoint();
    }
    return (void *)(number * number);
}

static void *parent(void *argument)
{
    farshore_uthread_t children[50];
    long sum = 0;
    (void)argument;
    for (long i = 0; i < 50; i++)
        CHECK(farshore_uthread_spawn(&children[i], square, (void *)i) == 0);
    for (int i = 0; i < 50; i++) {
        void *result;
        CHECK(farshore_uthread_join(children[i], &result) == 0);
        sum += (long)result;
    }
    CHECK(farshore_uthread_shutdown(0) == -EDEADLK);
    return (void *)sum;
}

static void *reader(void *argument)
{
    char text[6] = "";
    (void)argument;
    CHECK(farshore_uthread_read(pipes[0], text, 5, -1) == 5);
    CHECK(strcmp(text, "hello") == 0);
    CHECK(farshore_uthread_read(-1, text, 5, -1) == -EBADF);
    CHECK(farshore_uthread_read(pipes[1], text, 5, -1) == -EBADF);
    return NULL;
}

static void *writer(void *argument)
{
    (void)argument;
    farshore_uthread_hold();
    CHECK(farshore_uthread_write(pipes[1], "hello", 5, -1) == 5);
    farshore_uthread_release();
    return NULL;
}

static void *sleeper(void *argument)
{
    (void)argument;
    go = 1;
    CHECK(farshore_uthread_sleep(3600ull * 1000000000) == -ECANCELED);
    CHECK(farshore_uthread_stopping());
    return NULL;
}

int main(void)
{
    struct farshore_uthread_config config = {.workers = 2, .unithreads = 64, .stack_bytes = 128 << 10, .policy = FARSHORE_UTHREAD_ROUND_ROBIN};
    struct farshore_uthread_config bad = {.wait = 7};
    farshore_uthread_t thread, other;
    void *result;

    CHECK(farshore_uthread_spawn(&thread, square, NULL) == -ESHUTDOWN);
    CHECK(farshore_uthread_start(&bad) == -EINVAL);
    CHECK(farshore_uthread_start(&config) == 0);
    CHECK(farshore_uthread_start(NULL) == -EBUSY);
    CHECK(farshore_uthread_worker() == -1);
    CHECK(farshore_uthread_spawn(&thread, parent, NULL) == 0);
    CHECK(farshore_uthread_join(thread, &result) == 0);
    CHECK((long)result == 49 * 50 * 99 / 6);
    CHECK(pipe(pipes) == 0);
    CHECK(farshore_uthread_spawn(&thread, reader, NULL) == 0);
    CHECK(farshore_uthread_spawn(&other, writer, NULL) == 0);
    farshore_uthread_detach(other);
    CHECK(farshore_uthread_join(thread, NULL) == 0);
    CHECK(farshore_uthread_spawn(NULL, sleeper, NULL) == 0);
    while (!go)
        usleep(1000);
    CHECK(farshore_uthread_shutdown(0) == 0);
    CHECK(farshore_uthread_shutdown(0) == -ESHUTDOWN);
    CHECK(farshore_uthread_start(NULL) == 0);
    CHECK(farshore_uthread_shutdown(60ull * 1000000000) == 0);
    puts("ok");
    return 0;
}
