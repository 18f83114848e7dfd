/* What the parts of the test program share.
 *
 * The program checks what a caught system call must preserve. It passes natively too: it says nothing of how the
 * call was caught. The library under test (crates/testing/net-rig/src/lib.rs) answers two calls that Linux does not have. */
#ifndef NETTEST_H
#define NETTEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                         \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            fprintf(stderr, "failed: %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);                            \
            _exit(1);                                                                                                            \
        }                                                                                                                        \
    } while (0)

/* The library's own calls: what its dispatcher spoils; which way calls take. */
static inline void spoil(long level) { syscall(0x7001, level); }
enum way { DISPATCHED, PLAIN, QUICK, WAYS };
static inline void set_way(long number, enum way way) { syscall(0x7003, number, way); }

/* A call by an instruction of our own: never at a patched site. */
static inline long inline_read(int fd, void *buffer, size_t size)
{
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(SYS_read), "D"(fd), "S"(buffer), "d"(size) : "rcx", "r11", "memory");
    return result;
}

void test_registers(void);
void test_clone_registers(void);
void test_red_zone(void);
void test_threads(void);
void test_processes(void);
void test_restart(void);
void test_longjmp(void);
void test_cancel(void);
void test_altstack(void);
void test_storm(void);
void test_unwind(void);
void test_steps(void);

/* A call with all registers loaded: by an instruction of our own, or by a function of libc's. Then what it gave. */
void load_call(long number, long a, long b, long c);
void make_loaded_call(void *function);
long check_loaded_call(const char *what);

/* For the storm: threads and processes while signals come. */
void many_threads(int rounds);
void many_processes(void);
#endif
