/* Buffers that are used again and again: a thread reads into one, or writes from it, while its pages leave, are thrown away, are mapped
 * anew or protected, and while the process forks. More threads than may keep a buffer pinned, one after the other. */
#include "threads.h"
#include <fcntl.h>
#include <sys/wait.h>

enum { THREADS = 40, WAVES = 2, ROUNDS = 60, BLOCKS = 64, BLOCK = 4096, AREA = 128 << 10 };

static int file, other;

static uint64_t word_of(long block, size_t word)
{
    return (uint64_t)block * 0x9e3779b97f4a7c15u + word * 7919;
}

/* Reads a block a few times by the same buffer, and compares. */
static void reads(unsigned char *buffer, long block)
{
    for (int times = 0; times < 4; times++) {
        long which = (block + times) % BLOCKS;
        CHECK(pread(file, buffer, BLOCK, which * BLOCK) == BLOCK);
        for (size_t word = 0; word < BLOCK / 8; word++) {
            uint64_t found;
            memcpy(&found, buffer + word * 8, 8);
            if (found != word_of(which, word)) die("block %ld, word %zu", which, word);
        }
    }
}

/* Writes a block from it a few times, to a place of the thread's own, and looks at what came there. */
static void writes(unsigned char *buffer, long number)
{
    static __thread unsigned char back[BLOCK];
    memset(buffer, (int)(number & 0xff), BLOCK);
    for (int times = 0; times < 3; times++) {
        buffer[times] ^= 0x55;
        CHECK(pwrite(other, buffer, BLOCK, number % THREADS * BLOCK) == BLOCK);
    }
    CHECK(pread(other, back, BLOCK, number % THREADS * BLOCK) == BLOCK);
    CHECK(memcmp(back, buffer, BLOCK) == 0);
}

static void in_a_child(unsigned char *buffer, unsigned char *area, long number)
{
    pid_t child = fork();
    if (child == 0) {
        reads(buffer, number);
        /* Everything leaves here too, but what a call has pinned, and comes back. */
        fill(area + AREA / 2, AREA / 2, (uint64_t)number);
        make_absent();
        reads(buffer, number + 1);
        _exit(holds(area + AREA / 2, AREA / 2, (uint64_t)number) ? 3 : 4);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static void *uses_a_buffer(void *argument)
{
    long number = (long)argument;
    unsigned char *area = fresh(AREA);
    /* On one page, or on two. */
    unsigned char *buffer = area + (number % 2 ? BLOCK : BLOCK + 512);
    for (long round = 0; round < ROUNDS; round++) {
        reads(buffer, number + round);
        if (round % 3 == 0) writes(buffer, number);
        switch ((number + round) % 6) {
        case 0:
            CHECK(madvise(area, AREA / 2, MADV_DONTNEED) == 0 && buffer[0] == 0 && buffer[BLOCK - 1] == 0);
            break;
        case 1:
            CHECK(mmap(area, AREA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area);
            CHECK(pread(file, buffer, BLOCK, 0) == -1 && errno == EFAULT);
            CHECK(mmap(area, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area);
            break;
        case 2:
            CHECK(mprotect(area, AREA, PROT_READ) == 0);
            CHECK(pread(file, buffer, BLOCK, 0) == -1 && errno == EFAULT);
            CHECK(mprotect(area, AREA, PROT_READ | PROT_WRITE) == 0);
            break;
        case 3:
            /* Another buffer in between, twice. */
            reads(area + AREA / 2, round);
            reads(area + AREA / 2, round);
            break;
        case 4: {
            unsigned char *moved = mremap(area, AREA, AREA, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
            CHECK(moved != MAP_FAILED && munmap(area, AREA) == 0);
            buffer = moved + (buffer - area), area = moved;
            break;
        }
        default:
            break;
        }
        if (number == 7 && round % 20 == 0) {
            reads(buffer, round);
            in_a_child(buffer, area, number);
        }
    }
    reads(buffer, number);
    /* The thread ends with a buffer that it has kept: the memory goes first, or is left. */
    if (number % 3) CHECK(munmap(area, AREA) == 0);
    return NULL;
}

/* What threads read and write by their buffers is right, whatever becomes of the pages in between. */
void section_buffers(void)
{
    char name[] = "/tmp/farshore-buffersXXXXXX", second[] = "/tmp/farshore-buffersXXXXXX";
    CHECK((file = mkstemp(name)) >= 0 && unlink(name) == 0 && (other = mkstemp(second)) >= 0 && unlink(second) == 0);
    for (long block = 0; block < BLOCKS; block++) {
        uint64_t words[BLOCK / 8];
        for (size_t word = 0; word < BLOCK / 8; word++) words[word] = word_of(block, word);
        CHECK(pwrite(file, words, BLOCK, block * BLOCK) == BLOCK);
    }
    churn_start();
    for (int wave = 0; wave < WAVES; wave++) {
        pthread_t threads[THREADS];
        for (long number = 0; number < THREADS; number++) threads[number] = start(uses_a_buffer, (void *)number);
        for (long number = 0; number < THREADS; number++) join(threads[number]);
        say("%d threads have used their buffers", THREADS);
    }
    churn_stop();
}
