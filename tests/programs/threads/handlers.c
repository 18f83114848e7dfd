/* Handlers: nested, on alternate stacks, in a storm of faults, left by jumps, over system calls. */
#include "threads.h"
#include <fcntl.h>
#include <setjmp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/ucontext.h>

static uint64_t sum_of(const uint64_t *words, size_t length)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < length / 8; i += 64) sum = sum * 31 + words[i];
    return sum;
}

/* ------------------------------------------------------------------------------------------- nested */

enum { STACK = 192 * 1024 };
static uint64_t *pieces[3];
static volatile uint64_t sums[3];
static volatile int depth, deepest, on_stack[3];
static unsigned char *alternate;

static int on_alternate(const void *at)
{
    const unsigned char *p = at;
    return p >= alternate && p < alternate + STACK;
}

static void nest(int number, siginfo_t *info, void *context)
{
    (void)context;
    static const int next[] = { SIGUSR2, SIGTERM, 0 };
    int level = depth++;
    if (depth > deepest) deepest = depth;
    unsigned char here;
    on_stack[level] = on_alternate(&here);
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0 && stack.ss_flags == (on_stack[level] ? SS_ONSTACK : 0));
    CHECK(info->si_signo == number && info->si_value.sival_int == 100 + level);
    sums[level] = sum_of(pieces[level], 4 * MIB);
    make_absent();
    if (next[level]) CHECK(sigqueue(getpid(), next[level], (union sigval){ .sival_int = 101 + level }) == 0);
    CHECK(sums[level] == sum_of(pieces[level], 4 * MIB));
    depth--;
}

void section_nested(void)
{
    for (int i = 0; i < 3; i++) pieces[i] = filled(4 * MIB, 10 + (unsigned)i);
    alternate = filled(STACK, 9);
    stack_t stack = { .ss_sp = alternate, .ss_size = STACK };
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGUSR1, nest, SA_ONSTACK);
    handle(SIGUSR2, nest, 0);
    handle(SIGTERM, nest, SA_ONSTACK);
    for (int round = 0; round < 4; round++) {
        make_absent();
        CHECK(sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 100 }) == 0);
    }
    say("depth %d, on the alternate stack %d%d%d, sums %016llx %016llx %016llx", deepest, on_stack[0], on_stack[1], on_stack[2],
        (unsigned long long)sums[0], (unsigned long long)sums[1], (unsigned long long)sums[2]);
}

/* -------------------------------------------------------------------------------------------- storm */

enum { WALKERS = 3, COUNTED = 16 };
static unsigned *counters;
static unsigned ticks;
static volatile int stop;

static void count(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    unsigned tick = __atomic_fetch_add(&ticks, 1, __ATOMIC_RELAXED);
    int saved = errno;
    size_t page = mix(tick) % (COUNTED * MIB / PAGE);
    __atomic_fetch_add(&counters[page * PAGE / 4], 1, __ATOMIC_RELAXED);
    errno = saved;
}

static void *walk(void *argument)
{
    uint64_t *words = argument;
    const size_t length = 4 * MIB / 8;
    uint64_t round = 0;
    while (!stop) {
        for (size_t i = 0; i < length; i += 32) {
            if (words[i] != (mix(i) ^ round)) die("word %zu of a walker in round %llu", i, (unsigned long long)round);
            words[i] = mix(i) ^ (round + 1);
        }
        round++;
    }
    return NULL;
}

/* A timer that fires every half millisecond, on whatever thread, most of which are in the middle of a fault. */
void section_storm(void)
{
    counters = fresh(COUNTED * MIB);
    pthread_t walkers[WALKERS];
    handle(SIGALRM, count, SA_RESTART);
    for (int i = 0; i < WALKERS; i++) {
        uint64_t *words = fresh(4 * MIB);
        for (size_t j = 0; j < 4 * MIB / 8; j += 32) words[j] = mix(j);
        walkers[i] = start(walk, words);
    }
    struct itimerval every = { { 0, 500 }, { 0, 500 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    while (__atomic_load_n(&ticks, __ATOMIC_RELAXED) < 1000) {
        for (int i = 0; i < WALKERS; i++) pthread_kill(walkers[i], SIGALRM);
        make_absent();
    }
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    stop = 1;
    for (int i = 0; i < WALKERS; i++) join(walkers[i]);
    unsigned seen = 0;
    for (size_t i = 0; i < COUNTED * MIB / 4; i += PAGE / 4) seen += counters[i];
    say("%s", seen == ticks && ticks >= 1000 ? "every handler has counted once" : "WRONG");
}

/* -------------------------------------------------------------------------------------------- flags */

static volatile int entered, most, mask_seen;

static void again(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    int level = ++entered;
    if (level > most) most = level;
    sigset_t now;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    mask_seen = sigismember(&now, number);
    if (level == 3) make_absent();
    if (level < 3) raise(number);
    entered--;
}

static void run_flags(int number)
{
    struct sigaction now;
    most = 0;
    handle(number, again, SA_NODEFER);
    raise(number);
    CHECK(sigaction(number, NULL, &now) == 0);
    say("signal %d, SA_NODEFER: depth %d, blocked %d, flags %x", number, most, mask_seen, (unsigned)now.sa_flags);
    most = 0;
    entered = 2;
    handle(number, again, SA_RESETHAND);
    raise(number);
    CHECK(sigaction(number, NULL, &now) == 0);
    say("signal %d, SA_RESETHAND: depth %d, blocked %d, then %s, flags %x", number, most, mask_seen,
        now.sa_handler == SIG_DFL ? "default" : "a handler", (unsigned)now.sa_flags);
    entered = 2;
    struct sigaction action = { .sa_sigaction = again, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    sigfillset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0 && sigaction(number, NULL, &now) == 0);
    say("signal %d, whole mask: reads back %d %d %d, flags %x", number, now.sa_sigaction == again, sigismember(&now.sa_mask, SIGSEGV),
        sigismember(&now.sa_mask, SIGKILL), (unsigned)now.sa_flags);
    raise(number);
    say("signal %d, whole mask: blocked %d", number, mask_seen);
    entered = 0;
    signal(number, SIG_IGN);
    raise(number);
    CHECK(sigaction(number, NULL, &now) == 0);
    say("signal %d, ignored: %d", number, now.sa_handler == SIG_IGN);
    signal(number, SIG_DFL);
}

void section_flags(void)
{
    const int numbers[] = { SIGUSR1, SIGBUS, SIGSEGV, SIGSYS, SIGRTMIN + 3 };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) run_flags(numbers[i]);
    CHECK(sigaction(SIGKILL, &(struct sigaction){ .sa_handler = SIG_IGN }, NULL) < 0 && errno == EINVAL);
    CHECK(sigaction(65, NULL, NULL) < 0 && errno == EINVAL);
}

/* ------------------------------------------------------------------------------------------ onstack */

static volatile int where_ran;
static volatile uintptr_t context_stack;

/* Far more than an alternate stack of the system's usual size. */
static __attribute__((noinline)) void go_deep(void)
{
    volatile unsigned char room[512 * 1024];
    for (size_t i = 0; i < sizeof room; i += PAGE) room[i] = (unsigned char)i;
}

static void where(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    ucontext_t *saved = context;
    unsigned char here;
    where_ran = on_alternate(&here);
    context_stack = (uintptr_t)saved->uc_stack.ss_sp;
    if (!where_ran) go_deep();
}

static void *wheres(void *unused)
{
    static const int numbers[] = { SIGUSR1, SIGBUS, SIGSEGV, SIGSYS };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        for (int flags = 0; flags < 2; flags++) {
            handle(numbers[i], where, flags ? SA_ONSTACK : 0);
            stack_t stack = { .ss_sp = alternate, .ss_size = STACK }, off = { .ss_flags = SS_DISABLE };
            CHECK(sigaltstack(&off, NULL) == 0);
            raise(numbers[i]);
            int without = where_ran;
            CHECK(context_stack == 0);
            CHECK(sigaltstack(&stack, NULL) == 0);
            make_absent();
            raise(numbers[i]);
            CHECK(context_stack == (uintptr_t)alternate);
            say("signal %d %s: on the alternate stack %d, %d", numbers[i], flags ? "with SA_ONSTACK" : "without", without, where_ran);
        }
    }
    return unused;
}

void section_onstack(void)
{
    alternate = filled(STACK, 19);
    wheres(NULL);
    join(start(wheres, NULL));
    stack_t small = { .ss_sp = alternate, .ss_size = 1024 }, odd = { .ss_sp = alternate, .ss_size = STACK, .ss_flags = 64 }, now;
    int error = sigaltstack(&small, NULL) < 0 ? errno : 0;
    say("too small: %s", strerror(error));
    error = sigaltstack(&odd, NULL) < 0 ? errno : 0;
    say("odd flags: %s", strerror(error));
    CHECK(sigaltstack(NULL, &now) == 0);
    say("stack kept: %d, flags %d", now.ss_sp == alternate && now.ss_size == STACK, now.ss_flags);
}

/* -------------------------------------------------------------------------------------------- jumps */

static sigjmp_buf back;
static volatile int jumps;
static uint64_t *touched;

static void jump(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    touched[(size_t)jumps * 4096 % (4 * MIB / 8)]++;
    siglongjmp(back, 1);
}

/* Out of handlers that interrupted a blocking call, a fault, a loop; the signal mask comes back. */
void section_jumps(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    touched = fresh(4 * MIB);
    unsigned char *in = filled(MIB, 21);
    uint64_t *other = filled(4 * MIB, 22);
    handle(SIGALRM, jump, SA_RESTART);
    for (volatile int i = 0; i < 150; i++) {
        sigset_t now;
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval once = { { 0, 0 }, { 0, 300 + i * 7 } };
            CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
            for (;;) {
                switch (i % 3) {
                case 0: CHECK(read(ends[0], in, MIB) > 0); break;
                case 1: make_absent(); break;
                default: if (!holds(other, 4 * MIB, 22)) die("a wrong word after %d jumps", jumps);
                }
            }
        }
        jumps++;
        CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && !sigismember(&now, SIGALRM));
    }
    CHECK(holds(other, 4 * MIB, 22) && holds(in, MIB, 21));
    say("%d jumps", jumps);
}

/* ------------------------------------------------------------------------------------------ restart */

static int pair[2];

static void answer(int number, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    make_absent();
    if (number == SIGUSR2) CHECK(write(pair[1], "late", 4) == 4);
}

static pthread_t main_thread;

static volatile int pestered;

/* Until the call has ended: the first signal may come before it. */
static void *pester(void *argument)
{
    int number = *(int *)argument;
    sleep_ms(20);
    for (int ms = 0; !pestered; ms++) {
        if (ms % 500 == 0) CHECK(pthread_kill(main_thread, number) == 0);
        sleep_ms(1);
    }
    return NULL;
}

static void end(pthread_t pesterer)
{
    pestered = 1;
    join(pesterer);
    pestered = 0;
}

void section_restart(void)
{
    main_thread = pthread_self();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char *in = fresh(MIB);
    int number = SIGUSR1;
    handle(SIGUSR1, answer, 0);
    make_absent();
    pthread_t thread = start(pester, &number);
    ssize_t n = read(pair[0], in, MIB);
    say("without SA_RESTART: %s", n < 0 ? strerror(errno) : "bytes");
    end(thread);
    number = SIGUSR2;
    handle(SIGUSR2, answer, SA_RESTART);
    make_absent();
    thread = start(pester, &number);
    n = read(pair[0], in, MIB);
    say("with SA_RESTART: %zd bytes, %.4s", n, in);
    end(thread);
    /* Never restarted, whatever the action says. */
    thread = start(pester, &number);
    struct timespec long_time = { 20, 0 }, left;
    int slept = nanosleep(&long_time, &left);
    say("nanosleep: %s, %s", slept < 0 ? strerror(errno) : "slept", left.tv_sec >= 15 ? "most is left" : "WRONG");
    end(thread);
}

/* ------------------------------------------------------------------------------------------ context */

extern char after_the_load[];

/* A handler changes what it returns to: registers, and the mask. */
static void change(int number, siginfo_t *info, void *context)
{
    ucontext_t *saved = context;
    (void)number;
    CHECK(info->si_code == SEGV_MAPERR && info->si_addr == (void *)64);
    make_absent();
    saved->uc_mcontext.gregs[REG_RIP] = (greg_t)after_the_load;
    saved->uc_mcontext.gregs[REG_RAX] = 4711;
    sigaddset(&saved->uc_sigmask, SIGUSR2);
    sigaddset(&saved->uc_sigmask, SIGBUS);
    /* The first register of the vectors, in the 512 bytes of the old form. */
    memset(saved->uc_mcontext.fpregs->_xmm[3].element, 0x21, 16);
}

void section_context(void)
{
    handle(SIGSEGV, change, 0);
    uint64_t value, low;
    __asm__ volatile(
        "pxor %%xmm3, %%xmm3\n\t"
        "mov $64, %%ecx\n\t"
        "mov (%%rcx), %%rax\n\t"
        ".globl after_the_load\n"
        "after_the_load:\n\t"
        "movq %%xmm3, %1"
        : "=&a"(value), "=r"(low) : : "rcx", "xmm3", "memory");
    sigset_t now;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    say("rax %llu, xmm3 %llx, SIGUSR2 blocked %d, SIGBUS blocked %d, SIGSEGV blocked %d", (unsigned long long)value,
        (unsigned long long)low, sigismember(&now, SIGUSR2), sigismember(&now, SIGBUS), sigismember(&now, SIGSEGV));
}
