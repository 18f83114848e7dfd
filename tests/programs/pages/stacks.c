/* Memory of a special kind: it grows down by itself, under a thread; the kernel may drop it; its addresses are high. And who looks at page tables. */
#include "pages.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { HOLE = 1024, STACK = 16 };

/* A hole of the address space, and at its upper end a small mapping that grows down into it. */
static unsigned char *growing(void)
{
    /* The hole shall be the first one that whoever maps memory next would get: those above it are filled. */
    for (int i = 0; i < 400; i++) CHECK(mmap(NULL, 32 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    unsigned char *at = mmap(NULL, (HOLE + STACK) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED && munmap(at, (HOLE + STACK) * PAGE) == 0);
    unsigned char *stack = mmap(at + HOLE * PAGE, STACK * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
    CHECK(stack == at + HOLE * PAGE);
    return stack;
}

/* Goes down by itself, with calls on the way, until `lowest`. */
static __attribute__((noinline)) size_t deeper(const unsigned char *lowest)
{
    volatile unsigned char room[2048];
    room[0] = room[2047] = 7;
    if ((const unsigned char *)room <= lowest) return syscall(SYS_getppid) > 0;
    size_t depth = deeper(lowest) + 1;
    return room[0] == 7 && room[2047] == 7 ? depth : 0;
}

static void *run(void *lowest)
{
    return deeper(lowest) > 100 ? lowest : NULL;
}

static void on_growing_stack(void)
{
    unsigned char *stack = growing();
    void *lowest = stack - 700 * PAGE;
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK * PAGE) == 0);
    CHECK(pthread_create(&thread, &attributes, run, lowest) == 0);
    CHECK(join(thread) == lowest);
}

void section_growsdown(void)
{
    on_growing_stack();
    say("a thread's stack has grown");
    /* Written from above, page by page, without a stack pointer there. */
    unsigned char *stack = growing();
    for (size_t i = 0; i < 700; i++) stack[-(long)(i * PAGE) - 1] = (unsigned char)i;
    make_absent();
    size_t right = 0;
    for (size_t i = 0; i < 700; i++) right += stack[-(long)(i * PAGE) - 1] == (unsigned char)i;
    say("%zu of 700 pages", right);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        on_growing_stack();
        _exit(5);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    say("in a child: %#x", status);
    /* Next to another mapping it does not grow. */
    child = fork();
    if (child == 0) {
        stack = growing();
        CHECK(mmap(stack - 64 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == stack - 64 * PAGE);
        signal(SIGSEGV, SIG_DFL);
        stack[-(long)PAGE] = 1;
        _exit(5);
    }
    CHECK(waitpid(child, &status, 0) == child);
    say("next to a mapping: signal %d", WTERMSIG(status));
}

/* Memory that the kernel may drop at any time: bytes as they were, or zeros. */
void section_droppable(void)
{
    enum { DROPPABLE = 8 };
    const size_t bytes = 8 * MIB, small = 16 * PAGE;
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        say("this kernel has none");
        return;
    }
    memset(at, 'A', bytes);
    make_absent();
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) wrong += at[i] != 'A' && at[i] != 0;
    say("%zu wrong bytes, flag %d", wrong, strstr(flags_at(at), "dp") != NULL);
    unsigned char *grown = mmap(NULL, small, PROT_READ | PROT_WRITE, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    CHECK(grown != MAP_FAILED);
    memset(grown, 'A', small);
    grown = mremap(grown, small, bytes, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED);
    say("grown: flag %d", strstr(flags_at(grown), "dp") != NULL);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (size_t i = 0; i < bytes; i++) CHECK(at[i] == 0);
        memset(at, 'B', bytes);
        _exit(5);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    say("in a child: %#x", status);
}

/* Soft-dirty bits tell nothing of pages that have left: they cannot be cleared. */
void section_softdirty(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY);
    say("clear_refs: %s", fd < 0 ? strerror(errno) : "open");
    int map = open("/proc/self/pagemap", O_RDONLY);
    say("pagemap: %d", map >= 0);
}

/* Hints at addresses beyond 47 bits: the memory is as good as any. */
void section_high(void)
{
    const size_t bytes = 4 * MIB;
    unsigned char *at = mmap((void *)(1ul << 52), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, bytes, 21);
    make_absent();
    say("bytes: %d", holds(at, bytes, 21));
    void *there = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(1ul << 47));
    say("moved beyond: %d", there != MAP_FAILED);
    if (there == MAP_FAILED) there = at;
    say("bytes: %d", holds(there, bytes, 21));
    there = mmap((void *)(1ul << 47), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    say("fixed beyond: %d", there != MAP_FAILED);
}
