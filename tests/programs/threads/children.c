/* Children that share their parent's memory, and what they do not share. */
#include "threads.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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

/* ------------------------------------------------------------------------------------------- guests */

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
    make_absent();
    CHECK(holds(memory, 16 * MIB, 94));
}
