/* What the sections of `syscalls` share. A section is a list of system calls on memory that is absent when the kernel looks at it. */
#ifndef FARSHORE_TESTS_CHECK_H
#define FARSHORE_TESTS_CHECK_H

#include "common.h"
#include <pthread.h>

/* Ends the program when a promise is broken; errno is part of the message. */
#define CHECK(condition) \
    do { \
        if (!(condition)) die("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* One line of output: the same natively and under Farshore. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Touches other memory (the ballast) until everything else has become cold; natively this does nothing that can be seen. */
void make_absent(void);

/* A thread that keeps touching the ballast between `churn_start` and `churn_stop`, so that pages leave while calls run. */
void churn_start(void);
void churn_stop(void);

/* Managed memory: an anonymous mapping of at least 128 KiB. `fresh` has never been touched; `filled` holds the pattern of `salt`. */
void *fresh(size_t length);
void *filled(size_t length, uint64_t salt);
/* A copy of `data` that lies alone in a managed mapping, so that it can be absent. */
void *placed(const void *data, size_t length);
char *placed_text(const char *text);

void fill(void *at, size_t length, uint64_t salt);
int holds(const void *at, size_t length, uint64_t salt);

/* A path in the test's own directory, in ordinary memory that nobody frees. */
char *path_of(const char *name);
/* Makes a file of `length` bytes of pattern and returns its descriptor, at offset 0. */
int file_of(const char *name, size_t length, uint64_t salt);
/* The path of this program. */
extern const char *self;

/* A thread that runs `body`; ends the program when it cannot be started. */
pthread_t start(void *(*body)(void *), void *argument);
void join(pthread_t thread);
void sleep_ms(long milliseconds);

void section_files(void);
void section_big(void);
void section_direct(void);
void section_storm(void);
void section_structs(void);
void section_stdio(void);
void section_names(void);
void section_datagrams(void);
void section_streams(void);
void section_messages(void);
void section_polling(void);
void section_futexes(void);
void section_robust(void);
void section_threads(void);
void section_stacks(void);
void section_setstack(void);
void section_altstack(void);
void section_masks(void);
void section_sigbus(void);
void section_handlers(void);
void section_jumps(void);
void section_efault(void);
void section_raw(void);
void section_mappings(void);
void section_advice(void);
void section_heap(void);
void section_code(void);
void section_spawn(void);
void section_fork(void);
void section_forkabsent(void);
void section_exec(void);

#endif
