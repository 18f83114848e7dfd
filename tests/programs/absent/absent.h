/* Memory that is absent when it is needed, and threads: what the programs of several sections share.
 *
 * A section is run natively and under Farshore, and must print the same lines and end with the same status. */
#ifndef FARSHORE_TESTS_ABSENT_H
#define FARSHORE_TESTS_ABSENT_H

#include "common.h"
#include <pthread.h>

/* Ends the program when a promise is broken; errno is part of the message. */
#define CHECK(condition) \
    do { \
        if (!(condition)) die("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* The section that runs: begins each line of output. */
extern const char *section;
/* One line of output: the same natively and under Farshore. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Maps the ballast: memory whose touch makes all other memory cold. */
void make_ballast(const char *mib);
/* Touches the ballast until everything else has become cold; natively this does nothing that can be seen. */
void make_absent(void);
/* A thread that keeps touching the ballast between the two, so that pages leave at any moment. It takes no signals. */
void churn_start(void);
void churn_stop(void);

/* Managed memory: an anonymous mapping of at least 128 KiB. `fresh` has never been touched; `filled` holds the pattern of `salt`. */
void *fresh(size_t length);
void *filled(size_t length, uint64_t salt);
void fill(void *at, size_t length, uint64_t salt);
int holds(const void *at, size_t length, uint64_t salt);

/* A thread that runs `body`; ends the program when it cannot be started. */
pthread_t start(void *(*body)(void *), void *argument);
/* Waits for it; its result. */
void *join(pthread_t thread);
void sleep_ms(long milliseconds);

#endif
