/* What the test programs share: errors, sizes, time, numbers that look random and a digest of memory.
 *
 * The programs are ordinary C for glibc. They know nothing of Farshore: each is run natively and under `farshore run`,
 * and must print the same. So nothing here prints an address, a time or a process id on stdout unless its name says so. */
#ifndef FARSHORE_TESTS_COMMON_H
#define FARSHORE_TESTS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

/* Ends the program: a test that cannot go on must not look like one that passed. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
    int saved = errno;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "failed: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, " (errno %d: %s)\n", saved, strerror(saved));
    va_end(args);
    fflush(stdout);
    _exit(99);
}

/* Reads a size such as 64M or 2G; plain numbers are bytes. */
static inline size_t parse_size(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    switch (*end) {
    case 'K': case 'k': value <<= 10; end++; break;
    case 'M': case 'm': value <<= 20; end++; break;
    case 'G': case 'g': value <<= 30; end++; break;
    default: break;
    }
    if (*end != 0 || end == text) die("cannot read the size %s: use a number with K, M or G", text);
    return (size_t)value;
}

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* splitmix64's finisher: a fixed value for each input, used for patterns that depend on place and version. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* One stream of numbers a thread, from a seed. */
struct rng { uint64_t state; };

static inline uint64_t rng_next(struct rng *r)
{
    r->state += 0x9e3779b97f4a7c15u;
    return mix(r->state);
}

/* A number below `bound` (bound > 0), without a division. */
static inline uint64_t rng_below(struct rng *r, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)rng_next(r) * bound) >> 64);
}

/* Adds `length` bytes to a digest; not a cryptographic one, but every bit counts. */
static inline uint64_t digest(uint64_t h, const void *data, size_t length)
{
    const unsigned char *p = data;
    for (; length >= 8; p += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x9fb21c651e98df25u;
        h ^= h >> 29;
    }
    for (; length > 0; p++, length--) {
        h = (h ^ *p) * 0x100000001b3u;
        h ^= h >> 31;
    }
    return h;
}

/* Anonymous memory, at page granularity: at or above 128 KiB this is what Farshore manages. */
static inline void *map_anonymous(size_t length)
{
    void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("mmap of %zu bytes", length);
    return p;
}

#endif
