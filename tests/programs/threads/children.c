/* Children that share their parent's memory, and what they do not share. */
#include "threads.h"
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif

static char child_stack[256 << 10] __attribute__((aligned(64)));

static int waited(pid_t child)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

/* ------------------------------------------------------------------------------------------ vforked */

static volatile int came;

static void note(int number, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    came = number;
}

/* A vforked child is the first that runs short of memory; what it changes of its signals is not its parent's. */
void section_vforked(void)
{
    enum { SIZE = 16 * MIB };
    uint64_t *memory = fresh(SIZE);
    pid_t child = vfork();
    if (child == 0) {
        fill(memory, SIZE, 90);
        _exit(holds(memory, SIZE, 90) ? 3 : 4);
    }
    say("the child filled its parent's memory: %x", waited(child));
    CHECK(holds(memory, SIZE, 90));
    fill(memory, SIZE, 91);
    CHECK(holds(memory, SIZE, 91));

    static char alternate[64 << 10];
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate }, none = { .ss_flags = SS_DISABLE }, now;
    CHECK(sigaltstack(&stack, NULL) == 0);
    block(SIGBUS);
    handle(SIGSEGV, note, SA_ONSTACK);
    child = vfork();
    if (child == 0) {
        stack_t seen;
        sigset_t mask, both = set_of(SIGSEGV);
        sigaddset(&both, SIGUSR1);
        int same = sigaltstack(NULL, &seen) == 0 && seen.ss_sp == alternate;
        sigprocmask(SIG_BLOCK, &both, &mask);
        same &= sigismember(&mask, SIGBUS) && !sigismember(&mask, SIGSEGV);
        mask = set_of(SIGBUS);
        sigprocmask(SIG_UNBLOCK, &mask, NULL);
        /* One that waits for the child alone. */
        kill(getpid(), SIGSEGV);
        sigpending(&mask);
        same &= sigismember(&mask, SIGSEGV) && came == 0;
        sigaltstack(&none, NULL);
        _exit(same ? 5 : 6);
    }
    say("the child inherits mask and stack: %x", waited(child));
    sigset_t mask, pending;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && sigpending(&pending) == 0 && sigaltstack(NULL, &now) == 0);
    say("blocked: SIGBUS %d SIGSEGV %d SIGUSR1 %d; pending %d, came %d", sigismember(&mask, SIGBUS), sigismember(&mask, SIGSEGV), sigismember(&mask, SIGUSR1), sigismember(&pending, SIGSEGV), came);
    say("stack: %d %d %zu", now.ss_sp == alternate, now.ss_flags, now.ss_size);
    make_absent();
    CHECK(holds(memory, SIZE, 91));
}

/* ------------------------------------------------------------------------------------------ cleared */

/* Not by a function: a vforked child must not return from one that its parent is in. */
__attribute__((always_inline)) static inline long clone3_with(uint64_t flags)
{
    uint64_t arguments[11] = { [0] = flags | CLONE_CLEAR_SIGHAND, [4] = SIGCHLD };
    long result = SYS_clone3;
    __asm__ volatile("syscall" : "+a"(result) : "D"(arguments), "S"(sizeof arguments) : "rcx", "r11", "memory");
    return result;
}

/* What a child finds of its actions: a digit for each signal, 0 the default, 1 ignored, 2 a handler. */
static int actions_now(void)
{
    static const int numbers[] = { SIGUSR1, SIGUSR2, SIGSEGV, SIGBUS, SIGSYS };
    int found = 0;
    for (int i = 0; i < 5; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) < 0) return 255;
        found = found * 3 + (action.sa_handler == SIG_DFL ? 0 : action.sa_handler == SIG_IGN ? 1 : 2);
    }
    return found;
}

static int sum(const unsigned char *bytes)
{
    int sum = 0;
    for (size_t i = 0; i < 2 * MIB; i += 4096) sum += bytes[i];
    return sum & 127;
}

/* Children without their parent's handlers, on absent memory, with calls that are not libc's. */
void section_cleared(void)
{
    unsigned char *memory = filled(2 * MIB, 95);
    const int expected = sum(memory);
    handle(SIGUSR1, note, 0);
    handle(SIGSEGV, note, SA_ONSTACK);
    handle(SIGBUS, note, SA_ONSTACK | SA_RESTART);
    CHECK(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    say("actions here: %d", actions_now());
    const struct { const char *name; uint64_t flags; } ways[] = { { "forked", 0 }, { "vforked", CLONE_VM | CLONE_VFORK } };
    for (int i = 0; i < 2; i++) {
        make_absent();
        pid_t child = (pid_t)clone3_with(ways[i].flags);
        if (child == 0) _exit(actions_now());
        say("%s: actions %x", ways[i].name, waited(child));
        make_absent();
        child = (pid_t)clone3_with(ways[i].flags);
        if (child == 0) _exit(sum(memory) == expected ? 8 : 9);
        say("%s: reads %x", ways[i].name, waited(child));
        child = (pid_t)clone3_with(ways[i].flags);
        if (child == 0) {
            long pid = SYS_getpid;
            __asm__ volatile("syscall" : "+a"(pid) : : "rcx", "r11", "memory");
            _exit(pid == getpid() ? 10 : 11);
        }
        say("%s: calls %x", ways[i].name, waited(child));
        child = (pid_t)clone3_with(ways[i].flags);
        if (child == 0) {
            struct rlimit none = { 0, 0 };
            setrlimit(RLIMIT_CORE, &none);
            kill(getpid(), SIGSEGV);
            _exit(12);
        }
        say("%s: ends by %d", ways[i].name, WTERMSIG(waited(child)));
    }
    say("both at once: %ld", clone3_with(CLONE_VM | CLONE_SIGHAND));
    say("actions here: %d, came %d", actions_now(), came);
    raise(SIGUSR1);
    say("came %d", came);
    CHECK(came == SIGUSR1);
}

/* ------------------------------------------------------------------------------------------- guests */

static void note_more(int number, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    came = number + 100;
}

/* A process with actions of its own: its handlers run, and its parent's stay. */
static int handles(void *memory)
{
    handle(SIGUSR1, note_more, 0);
    handle(SIGSEGV, note_more, SA_ONSTACK);
    int first = raise(SIGUSR1) == 0 ? came : 0, second = raise(SIGSEGV) == 0 ? came : 0;
    CHECK(signal(SIGUSR2, SIG_DFL) != SIG_ERR);
    fill(memory, MIB, 96);
    _exit(first == SIGUSR1 + 100 && second == SIGSEGV + 100 ? 13 : 14);
}

static int fills(void *memory)
{
    fill(memory, 16 * MIB, 92);
    _exit(7);
}

static int fills_for_ever(void *memory)
{
    for (;;) fill(memory, MIB, 93);
    return 0;
}

/* Other processes on this memory: the first that runs short, and some that are killed. */
void section_guests(void)
{
    uint64_t *memory = fresh(16 * MIB);
    say("the other process filled it: %x", waited(clone(fills, child_stack + sizeof child_stack, CLONE_VM | SIGCHLD, memory)));
    CHECK(holds(memory, 16 * MIB, 92));
    make_absent();
    fill(memory, 16 * MIB, 94);
    /* Within what stays, so that none is killed in the middle of a page. */
    uint64_t *hot = fresh(MIB);
    for (int i = 0; i < 4; i++) {
        fill(hot, MIB, 93);
        pid_t child = clone(fills_for_ever, child_stack + sizeof child_stack, CLONE_VM | SIGCHLD, hot);
        sleep_ms(20);
        CHECK(child > 0 && kill(child, SIGKILL) == 0);
        say("killed: %x", waited(child));
    }
    CHECK(holds(memory, 16 * MIB, 94) && holds(hot, MIB, 93));
    handle(SIGUSR1, note, 0);
    handle(SIGSEGV, note, 0);
    CHECK(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    say("its own handlers: %x", waited(clone(handles, child_stack + sizeof child_stack, CLONE_VM | SIGCHLD, hot)));
    pid_t child = vfork();
    if (child == 0) handles(hot);
    say("a vforked child's: %x", waited(child));
    int first = raise(SIGUSR1) == 0 ? came : 0, second = raise(SIGSEGV) == 0 ? came : 0;
    say("its parent's: %d %d, ignored %d", first, second, raise(SIGUSR2));
    make_absent();
    CHECK(holds(memory, 16 * MIB, 94));
}
