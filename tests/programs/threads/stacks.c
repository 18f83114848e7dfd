/* Stacks that have hardly room for the program itself, as coroutines of many runtimes have them: below lies somebody else's memory, and no
 * guard page. What a call of the program's takes of its stack is what the kernel takes: nothing. */
#include "threads.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#define PATTERN 0xa5
#define ROOM 32768

static unsigned char *room;
static int ends[2];

/* Calls `function` on a stack that ends at `top`. */
void on_stack(void (*function)(void *), void *argument, void *top);
asm(".text\n"
    ".globl on_stack\n"
    ".type on_stack, @function\n"
    "on_stack:\n"
    "    push %rbp\n"
    "    mov %rsp, %rbp\n"
    "    mov %rdx, %rsp\n"
    "    mov %rdi, %rax\n"
    "    mov %rsi, %rdi\n"
    "    call *%rax\n"
    "    mov %rbp, %rsp\n"
    "    pop %rbp\n"
    "    ret\n"
    ".size on_stack, . - on_stack\n");

static inline long raw(long number, long a, long b, long c)
{
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

/* Bytes below the `size` uppermost that are not the pattern any more. */
static size_t changed(size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < ROOM - size; i++) count += room[i] != PATTERN;
    return count;
}

/* Calls of many kinds by instructions of the program's own: they need no stack at all. */
static void raw_calls(void *argument)
{
    static char buffer[4096];
    static struct timespec no_time = { 0, 1000 };
    static struct pollfd wait;
    static long words[8];
    long *results = argument;
    results[0] = raw(SYS_getppid, 0, 0, 0) > 0;
    results[1] = raw(SYS_write, ends[1], (long)"abc", 3);
    results[2] = raw(SYS_read, ends[0], (long)buffer, 3);
    results[3] = raw(SYS_nanosleep, (long)&no_time, 0, 0);
    wait.fd = ends[0];
    results[4] = raw(SYS_poll, (long)&wait, 1, 0);
    results[5] = raw(SYS_uname, (long)buffer, 0, 0);
    long memory = raw(SYS_mmap, 0, 0, 0) == -EINVAL;
    results[6] = memory + (raw(SYS_madvise, (long)room, 4096, 0) == 0);
    /* A cold page of managed memory. */
    results[7] = raw(SYS_pread64, words[0], -1, 0);
}

/* Calls by libc, which uses some itself. */
static void libc_calls(void *argument)
{
    long *results = argument;
    static char buffer[4096];
    results[0] = getppid() > 0;
    results[1] = write(ends[1], "abcd", 4);
    results[2] = read(ends[0], buffer, 4);
    results[3] = fcntl(ends[0], F_GETFD);
    static struct timespec no_time = { 0, 1000 };
    results[4] = nanosleep(&no_time, NULL);
    static sigset_t mask;
    results[5] = sigprocmask(SIG_BLOCK, NULL, &mask);
    results[6] = dup(ends[0]) > 0;
    results[7] = close(-1);
}

static void tell(const char *what, const long *results, size_t size)
{
    say("%s on %zu bytes: %ld %ld %ld %ld %ld %ld %ld %ld, %zu bytes below are changed", what, size, results[0], results[1], results[2], results[3], results[4],
        results[5], results[6], results[7], changed(size));
}

/* ---- where a handler finds its thread ---- */

/* As glibc does since 2.41: who is to be cancelled looks, calls, and is sent away by the handler if its instruction pointer is from the look to the call. Wherever the
 * signal comes, it is not lost: -ECANCELED, or the flag is seen. */
long cancellable(long number, long a, long b, long c, volatile int *flag);
extern char cancellable_start[], cancellable_end[], cancellable_out[];
asm(".text\n"
    ".globl cancellable, cancellable_start, cancellable_end, cancellable_out\n"
    ".type cancellable, @function\n"
    "cancellable:\n"
    "    mov %rdi, %rax\n"
    "    mov %rsi, %rdi\n"
    "    mov %rdx, %rsi\n"
    "    mov %rcx, %rdx\n"
    "cancellable_start:\n"
    "    cmpl $0, (%r8)\n"
    "    jne cancellable_out\n"
    "    syscall\n"
    "cancellable_end:\n"
    "    ret\n"
    "cancellable_out:\n"
    "    mov $-125, %rax\n"
    "    ret\n"
    ".size cancellable, . - cancellable\n");

static volatile int cancelled, in_libc;

static void on_cancel(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    cancelled = 1;
    if (*rip >= (greg_t)cancellable_start && *rip < (greg_t)cancellable_end) *rip = (greg_t)cancellable_out;
}

/* In a call of libc's: whether the instruction pointer is in libc. */
static void on_call(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    Dl_info found;
    void *rip = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    in_libc = dladdr(rip, &found) != 0 && found.dli_fname != NULL && strstr(found.dli_fname, "libc") != NULL;
}

struct waiter {
    int fd, by_libc;
    long result;
    volatile int ended;
};

static void *wait_for_byte(void *argument)
{
    struct waiter *waiter = argument;
    char byte;
    waiter->result = waiter->by_libc ? read(waiter->fd, &byte, 1) : cancellable(SYS_read, waiter->fd, (long)&byte, 1, &cancelled);
    waiter->ended = 1;
    return NULL;
}

static void cancel_waiters(void)
{
    int pipe_of_none[2], count = 0, interrupted = 0, libcs = 0;
    CHECK(pipe(pipe_of_none) == 0);
    handle(SIGUSR2, on_cancel, SA_RESTART);
    for (int i = 0; i < 200; i++) {
        struct waiter waiter = { .fd = pipe_of_none[0] };
        cancelled = 0;
        pthread_t thread = start(wait_for_byte, &waiter);
        /* Some at any moment, the others for certain in the call. */
        if (i % 10 == 0) sleep_ms(20);
        for (volatile int j = 0; j < i * 500; j++) {}
        CHECK(pthread_kill(thread, SIGUSR2) == 0);
        join(thread);
        count += waiter.result == -ECANCELED;
    }
    handle(SIGUSR2, on_call, 0);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = { .fd = pipe_of_none[0], .by_libc = 1 };
        pthread_t thread = start(wait_for_byte, &waiter);
        /* Again, should one have come before the call. */
        do {
            sleep_ms(50);
            CHECK(pthread_kill(thread, SIGUSR2) == 0);
            for (int ms = 0; !waiter.ended && ms < 2000; ms++) sleep_ms(1);
        } while (!waiter.ended);
        join(thread);
        interrupted += waiter.result == -1;
        libcs += in_libc;
    }
    say("cancelled %d of 200; in libc %d, interrupted %d of 5", count, libcs, interrupted);
}

/* ---- an alternate stack that is as small as can be ---- */

static stack_t seen;
static int inside, calls;
static unsigned char *alternate;

static void on_small(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    unsigned char here;
    inside += &here > alternate && &here < alternate + seen.ss_size;
    /* What Go's runtime and .NET's look at. */
    stack_t now;
    inside += sigaltstack(NULL, &now) == 0 && now.ss_sp == alternate && now.ss_flags == SS_ONSTACK && now.ss_size == seen.ss_size;
    stack_t *noted = &((ucontext_t *)context)->uc_stack;
    inside += noted->ss_sp == alternate && noted->ss_size == seen.ss_size;
    char byte;
    calls += (int)raw(SYS_write, ends[1], (long)"y", 1) + (int)raw(SYS_read, ends[0], (long)&byte, 1);
    calls += getppid() > 0;
}

void section_stacks(void)
{
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED && pipe(ends) == 0);
    long results[8];
    /* libc's functions are bound at their first call. */
    libc_calls(results);
    const size_t sizes[] = { 128, 256, 1024, 2048 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = sizes[s];
        memset(room, PATTERN, ROOM);
        on_stack(raw_calls, results, room + ROOM);
        tell("raw calls", results, size);
        if (size < 1024) continue;
        memset(room, PATTERN, ROOM);
        on_stack(libc_calls, results, room + ROOM);
        tell("calls of libc's", results, size);
    }

    /* The frame of a signal alone has up to 3.5 KiB. */
    size_t smallest = (size_t)sysconf(_SC_MINSIGSTKSZ), most = smallest + 1024;
    memset(room, PATTERN, ROOM);
    alternate = room + ROOM - most;
    seen = (stack_t){ .ss_sp = alternate, .ss_size = most };
    CHECK(sigaltstack(&seen, NULL) == 0);
    handle(SIGUSR1, on_small, SA_ONSTACK);
    for (int i = 0; i < 100; i++) CHECK(raise(SIGUSR1) == 0);
    cancel_waiters();
    say("handlers on a small stack: %d %d, %zu bytes below are changed", inside, calls, changed(most));
}
