/* Signals: stacks, masks and handlers of the program go on as natively, SIGBUS included. */
#include "check.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>

static void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction *action = fresh(sizeof *action), *old = fresh(sizeof *old);
    *action = (struct sigaction){ .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
    sigemptyset(&action->sa_mask);
    make_absent();
    CHECK(sigaction(number, action, old) == 0);
    CHECK(sigaction(number, NULL, old) == 0 && old->sa_sigaction == handler);
    munmap(action, 128 * 1024);
    munmap(old, 128 * 1024);
}

/* --------------------------------------------------------------------- an alternate stack on the heap */

enum { STACK = 256 * 1024 };
static unsigned char *alternate;
static volatile int ran_there, handled;
static volatile uint64_t deep_sum;

static __attribute__((noinline)) void go_deep(int levels)
{
    volatile unsigned char room[4096];
    for (size_t i = 0; i < sizeof room; i += 64) room[i] = (unsigned char)levels;
    if (levels > 0) go_deep(levels - 1);
    for (size_t i = 0; i < sizeof room; i += 64) deep_sum += room[i];
}

static void on_heap_stack(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    unsigned char here;
    ran_there = (unsigned char *)&here >= alternate && (unsigned char *)&here < alternate + STACK;
    go_deep(20);
    handled++;
}

static void *on_thread(void *unused)
{
    (void)unused;
    stack_t stack = { .ss_sp = malloc(STACK), .ss_size = STACK };
    alternate = stack.ss_sp;
    memset(stack.ss_sp, 0x5a, STACK);
    CHECK(sigaltstack(&stack, NULL) == 0);
    make_absent();
    CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0 && ran_there);
    stack.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&stack, NULL) == 0);
    free(alternate);
    return NULL;
}

void section_altstack(void)
{
    alternate = filled(STACK, 50);
    stack_t wanted = { .ss_sp = alternate, .ss_size = STACK }, *stack = placed(&wanted, sizeof wanted), *old = fresh(sizeof *old);
    make_absent();
    CHECK(sigaltstack(stack, old) == 0);
    handle(SIGUSR1, on_heap_stack, SA_ONSTACK);
    for (int i = 0; i < 5; i++) {
        ran_there = 0;
        make_absent();
        raise(SIGUSR1);
        CHECK(ran_there);
    }
    make_absent();
    CHECK(sigaltstack(NULL, old) == 0 && old->ss_sp == alternate && old->ss_size == STACK);
    say("%d handlers ran there, sum %llu, flags %d", handled, (unsigned long long)deep_sum, old->ss_flags);
    stack->ss_flags = SS_DISABLE;
    CHECK(sigaltstack(stack, NULL) == 0);
    join(start(on_thread, NULL));
    say("%d handlers, also on a thread's own", handled);
}

/* --------------------------------------------------------------------------------------------- masks */

static volatile sig_atomic_t got_number, got_code;
static volatile uintptr_t got_address;
static volatile int got_value;

static void note(int number, siginfo_t *info, void *context)
{
    (void)context;
    got_number = number;
    got_code = info->si_code;
    got_value = info->si_value.sival_int;
}

static void *fully_blocked(void *argument)
{
    unsigned char *memory = argument;
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGBUS) && sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGSEGV));
    CHECK(holds(memory, MIB, 51));
    return NULL;
}

static void touch_in_handler(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    sigset_t mask;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGBUS));
    make_absent();
}

void section_masks(void)
{
    unsigned char *memory = filled(MIB, 51);
    sigset_t full, before, *heap_full, *pending = fresh(sizeof *pending);
    sigfillset(&full);
    heap_full = placed(&full, sizeof full);
    make_absent();
    CHECK(sigprocmask(SIG_SETMASK, heap_full, &before) == 0);
    CHECK(holds(memory, MIB, 51));
    make_absent();
    join(start(fully_blocked, memory));
    say("absent memory with all signals blocked ok");

    /* A blocked SIGBUS that somebody sends waits until it is unblocked. */
    got_number = 0;
    handle(SIGBUS, note, 0);
    CHECK(kill(getpid(), SIGBUS) == 0);
    make_absent();
    CHECK(sigpending(pending) == 0);
    say("sent while blocked: handled %d, pending %d", got_number == SIGBUS, sigismember(pending, SIGBUS));
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    say("unblocked: handled %d, code %s", got_number == SIGBUS, got_code == SI_USER ? "user" : "other");
    union sigval value = { .sival_int = 77 };
    got_value = 0;
    CHECK(sigqueue(getpid(), SIGBUS, value) == 0);
    say("queued: value %d, code %s", got_value, got_code == SI_QUEUE ? "queue" : "other");

    struct sigaction action = { .sa_sigaction = touch_in_handler, .sa_flags = SA_SIGINFO };
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    make_absent();
    raise(SIGUSR2);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &before) == 0);
    say("handler with a full mask ok, SIGBUS blocked after it %d", sigismember(&before, SIGBUS));
}

/* -------------------------------------------------------------------------------- SIGBUS of its own */

static sigjmp_buf back;

static void jump_back(int number, siginfo_t *info, void *context)
{
    (void)context;
    got_number = number;
    got_code = info->si_code;
    got_address = (uintptr_t)info->si_addr;
    siglongjmp(back, 1);
}

/* Runs a touch of `at` in a child and says how the child ended: its stack is not managed, and it touches nothing else. */
static void end_of_child(const char *what, volatile unsigned char *at, int ignore)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, ignore ? SIG_IGN : SIG_DFL);
        at[0] = 1;
        _exit(3);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    say("%s: %s %d", what, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void section_sigbus(void)
{
    int fd = file_of("short", 16 * PAGE, 60);
    unsigned char *mapped = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED && ftruncate(fd, 4 * PAGE) == 0);
    unsigned char *memory = filled(MIB, 61);
    handle(SIGBUS, jump_back, 0);
    churn_start();
    for (volatile int i = 0; i < 40; i++) {
        volatile size_t at = (size_t)(4 + i % 12) * PAGE + 8;
        got_number = 0;
        if (sigsetjmp(back, 1) == 0) {
            mapped[at] = 1;
            die("a page behind the file's end could be written");
        }
        CHECK(got_number == SIGBUS && got_code == BUS_ADRERR && got_address == (uintptr_t)(mapped + at));
        CHECK(holds(memory, 64 * 1024, 61) && mapped[0] != 0);
    }
    churn_stop();
    say("40 faults behind the end of a file came to our handler");
    end_of_child("default action", mapped + 8 * PAGE, 0);
    end_of_child("ignored", mapped + 8 * PAGE, 1);
    signal(SIGBUS, SIG_DFL);
    CHECK(holds(memory, MIB, 61));
    close(fd);
}

/* ------------------------------------------------------------------------------------------ handlers */

static unsigned char *page_of_ours;
static volatile int mended;

/* What a garbage collector does: the fault is answered by opening the page. */
static void mend(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_code != SEGV_ACCERR) die("code %d for a protected page", info->si_code);
    uintptr_t page = (uintptr_t)info->si_addr & ~(PAGE - 1);
    if (page < (uintptr_t)page_of_ours || page >= (uintptr_t)page_of_ours + MIB) die("a fault at %p", info->si_addr);
    CHECK(mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0);
    mended++;
}

static unsigned char *ticked;
static volatile int ticks;

static void tick(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    size_t page = mix((uint64_t)ticks) % (MIB / PAGE);
    ticked[page * PAGE]++;
    ticks++;
}

static void timers(void)
{
    ticked = fresh(MIB);
    memset(ticked, 0, MIB);
    unsigned char *memory = filled(4 * MIB, 62);
    handle(SIGALRM, tick, SA_RESTART);
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, *interval = placed(&every, sizeof every), *old = fresh(sizeof *old);
    make_absent();
    CHECK(setitimer(ITIMER_REAL, interval, old) == 0);
    for (int i = 0; ticks < 60 && i < 400; i++) {
        make_absent();
        CHECK(holds(memory, 4 * MIB, 62));
    }
    memset(interval, 0, sizeof *interval);
    CHECK(setitimer(ITIMER_REAL, interval, NULL) == 0);
    int seen = 0;
    for (size_t i = 0; i < MIB; i += PAGE) seen += ticked[i];
    say("timer handlers that fault: %s", ticks >= 60 && (seen & 255) == (ticks & 255) ? "right" : "WRONG");
}

static void interrupted(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    unsigned char *in = fresh(MIB);
    handle(SIGALRM, note, 0);
    /* Again, and not before the handler has ended: the first may come before the call. */
    struct itimerval often = { { 5, 0 }, { 0, 30000 } }, never = { { 0, 0 }, { 0, 0 } };
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    ssize_t n = read(ends[0], in, MIB);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    say("read that a signal ends: %s", n < 0 ? strerror(errno) : "bytes?");
    sigset_t set, *heap_set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGBUS);
    heap_set = placed(&set, sizeof set);
    CHECK(sigprocmask(SIG_BLOCK, heap_set, NULL) == 0);
    siginfo_t *info = fresh(sizeof *info);
    union sigval value = { .sival_int = 5 };
    CHECK(sigqueue(getpid(), SIGUSR1, value) == 0);
    make_absent();
    int number = sigwaitinfo(heap_set, info);
    say("sigwaitinfo: signal %d, value %d", number, info->si_value.sival_int);
    struct timespec soon = { 0, 20000000 }, *timeout = placed(&soon, sizeof soon);
    make_absent();
    number = sigtimedwait(heap_set, info, timeout);
    say("sigtimedwait: %s", number < 0 ? strerror(errno) : "a signal?");
    int fd = signalfd(-1, heap_set, SFD_CLOEXEC);
    struct signalfd_siginfo *record = fresh(sizeof *record);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    make_absent();
    CHECK(read(fd, record, sizeof *record) == sizeof *record);
    say("signalfd: signal %u", record->ssi_signo);
    close(fd);
    CHECK(sigprocmask(SIG_UNBLOCK, heap_set, NULL) == 0);
}

void section_handlers(void)
{
    page_of_ours = filled(MIB, 63);
    CHECK(mprotect(page_of_ours, MIB, PROT_READ) == 0);
    make_absent();
    handle(SIGSEGV, mend, 0);
    for (size_t i = 0; i < MIB; i += 8) {
        uint64_t *word = (uint64_t *)(page_of_ours + i);
        *word = ~*word;
    }
    for (size_t i = 0; i < MIB; i += 8) CHECK(*(uint64_t *)(page_of_ours + i) == ~mix(63 ^ i));
    say("%d write faults mended by mprotect in the handler", mended);
    CHECK(mprotect(page_of_ours, MIB, PROT_NONE) == 0);
    make_absent();
    for (size_t i = 0; i < MIB; i += PAGE) CHECK(*(uint64_t *)(page_of_ours + i) == ~mix(63 ^ i));
    say("%d faults mended with PROT_NONE", mended);
    signal(SIGSEGV, SIG_DFL);
    timers();
    interrupted();
}

/* --------------------------------------------------------------------------------------------- jumps */

static void jump_out(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    siglongjmp(back, 1);
}

void section_jumps(void)
{
    /* Out of a handler that interrupted a page fault, a system call on absent memory, or anything else. */
    unsigned char *memory = filled(2 * MIB, 64), *out = filled(MIB, 65);
    int null = open("/dev/null", O_WRONLY);
    handle(SIGALRM, jump_out, 0);
    volatile int jumps = 0;
    while (jumps < 200) {
        if (sigsetjmp(back, 1) != 0) {
            jumps++;
            continue;
        }
        struct itimerval once = { { 0, 0 }, { 0, 200 + (jumps * 37) % 1500 } };
        setitimer(ITIMER_REAL, &once, NULL);
        for (;;) {
            make_absent();
            ssize_t n = write(null, out, MIB);
            if (n != (ssize_t)MIB) die("write of 1 MiB returned %zd", n);
        }
    }
    CHECK(holds(memory, 2 * MIB, 64) && holds(out, MIB, 65));
    handle(SIGSEGV, jump_back, 0);
    volatile int wild = 0;
    for (volatile int i = 0; i < 50; i++) {
        if (sigsetjmp(back, 1) == 0) *(volatile int *)(uintptr_t)(8 + i * 4) = 1;
        else wild += got_number == SIGSEGV && got_code == SEGV_MAPERR && got_address == (uintptr_t)(8 + i * 4);
    }
    signal(SIGSEGV, SIG_DFL);
    say("%d jumps out of handlers, %d out of wild accesses", jumps, wild);
    close(null);
}
