/* What the test programs share: errors, sizes, time, numbers that look random and a digest of memory.
 *
 * The programs are ordinary C for glibc. They know nothing of Farshore: each is run natively and under `farshore run`,
 * and must print the same. So nothing here prints an address, a time or a process id on stdout unless its name says so. */
#ifndef FARSHORE_TESTS_COMMON_H
#define FARSHORE_TESTS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

/* Reads a size such as 64M or 1.5G; plain numbers are bytes. It reads and refuses as crates/product/config/src/size.rs does. */
static inline size_t parse_size(const char *text)
{
    static const char space[] = " \t\n\v\f\r", digits[] = "0123456789", letters[] = "KMGT";
    const char *number = text + strspn(text, space), *why = NULL;
    size_t whole_length = strspn(number, digits), length = strspn(number, "0123456789.");
    const char *unit = number + length + strspn(number + length, space);
    size_t unit_length = strlen(unit);
    while (unit_length > 0 && strchr(space, unit[unit_length - 1])) unit_length--;
    const char *letter = unit_length > 0 ? strchr(letters, toupper((unsigned char)*unit)) : NULL;
    unsigned shift = letter ? 10 * (unsigned)(letter - letters + 1) : 0;
    if (letter) unit++, unit_length--;
    int known = unit_length == 0 || (unit_length == 1 && strncasecmp(unit, "B", 1) == 0) || (letter && unit_length == 2 && strncasecmp(unit, "IB", 2) == 0);
    const char *fraction = number + whole_length + (number[whole_length] == '.');
    size_t fraction_length = (size_t)(number + length - fraction);
    if (*number == 0) why = "it is empty";
    else if (*number == '-') why = "a size cannot be negative";
    else if (whole_length == 0) why = "it does not begin with a digit";
    else if (!known) why = "its unit is not known";
    else if (number[length - 1] == '.' || strspn(fraction, digits) != fraction_length) why = "its number is not complete";
    else if (fraction_length > 0 && shift == 0) why = "it is not a whole number of bytes";
    unsigned __int128 bytes = 0;
    uint64_t part = 0;
    for (size_t n = 0; !why && n < whole_length; n++) {
        bytes = bytes * 10 + (unsigned)(number[n] - '0');
        if (bytes > UINT64_MAX) why = "it is larger than 16E - 1";
    }
    /* From the last digit up: what is below a byte is dropped at each, and nothing is lost by that. */
    for (size_t n = fraction_length; !why && n-- > 0;) part = (((uint64_t)(fraction[n] - '0') << shift) + part) / 10;
    bytes = (bytes << shift) + part;
    if (!why && bytes > UINT64_MAX) why = "it is larger than 16E - 1";
    if (why) die("invalid size \"%s\": %s; write a number with K, M, G or T (powers of 1024), such as 64M, 2G or 1.5G", text, why);
    return (size_t)bytes;
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
