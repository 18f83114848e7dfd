/* Faults that are the program's own business, and stacks that it makes itself. */
#include "threads.h"
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/ucontext.h>
#include <ucontext.h>

/* ---------------------------------------------------------------------------------------- collector */

/* What a garbage collector does: closes its heap, and opens each page in the handler at the first write (or at the first touch), on
 * several threads at once. */
enum { HEAP = 6 };
static unsigned char *heap;
static volatile unsigned opened, closed_code;

static void open_page(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr, page = at & ~(PAGE - 1);
    if (number != SIGSEGV || info->si_code != SEGV_ACCERR) die("signal %d, code %d at %p", number, info->si_code, info->si_addr);
    if (page < (uintptr_t)heap || page >= (uintptr_t)heap + HEAP * MIB || at % PAGE != 2048) die("a fault at %p", info->si_addr);
    closed_code = (unsigned)info->si_code;
    CHECK(mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0);
    __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED);
}

static void *mutate(void *argument)
{
    size_t me = (size_t)(uintptr_t)argument;
    for (size_t i = 0; i < HEAP * MIB / PAGE; i++) {
        size_t page = (i * 577 + me * 211) % (HEAP * MIB / PAGE);
        __atomic_fetch_add((uint64_t *)(heap + page * PAGE + 2048), me + 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

void section_collector(void)
{
    heap = filled(HEAP * MIB, 70);
    handle(SIGSEGV, open_page, SA_NODEFER);
    for (int cycle = 0; cycle < 3; cycle++) {
        CHECK(mprotect(heap, HEAP * MIB, cycle == 1 ? PROT_NONE : PROT_READ) == 0);
        make_absent();
        pthread_t threads[3];
        for (size_t i = 0; i < 3; i++) threads[i] = start(mutate, (void *)(uintptr_t)i);
        for (int i = 0; i < 3; i++) join(threads[i]);
    }
    uint64_t wrong = 0;
    for (size_t i = 0; i < HEAP * MIB / 8; i++) {
        uint64_t expected = mix(70 ^ i) + (i % 512 == 256 ? 3 * 6 : 0);
        wrong += ((uint64_t *)heap)[i] != expected;
    }
    say("%s, %llu wrong words", opened >= 3 * HEAP * MIB / PAGE ? "every page was opened" : "TOO FEW FAULTS", (unsigned long long)wrong);
}

/* ------------------------------------------------------------------------------------------- arenas */

/* Memory that is opened in pieces, as glibc's arenas grow: pages that come along with neighbours may lie beyond. There are more of them than
 * fit, so they must leave as others do. */
void section_arenas(void)
{
    enum { ARENA = 64, PIECE = 512 << 10, STEP = 4 };
    size_t wrong = 0;
    char *arena = mmap(NULL, ARENA * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(arena != MAP_FAILED);
    for (int step = 0; step < 3; step++) {
        for (size_t at = 0; at < ARENA * MIB; at += PIECE) {
            char *piece = arena + at + (size_t)step * STEP * PAGE;
            CHECK(mprotect(piece, STEP * PAGE, PROT_READ | PROT_WRITE) == 0);
            for (size_t word = 0; word < STEP * PAGE / 8; word++) {
                uint64_t *place = (uint64_t *)piece + word;
                wrong += *place != 0;
                *place = mix(at ^ word);
            }
        }
    }
    for (size_t at = 0; at < ARENA * MIB; at += PIECE) {
        for (size_t word = 0; word < 3 * STEP * PAGE / 8; word++) {
            wrong += ((uint64_t *)(arena + at))[word] != mix(at ^ word % (STEP * PAGE / 8));
        }
    }
    say("%zu wrong words", wrong);
}

/* ------------------------------------------------------------------------------------------- faults */

static sigjmp_buf back;
static siginfo_t seen;
static volatile greg_t seen_error, seen_cr2, seen_trap;

static void look(int number, siginfo_t *info, void *context)
{
    (void)number;
    const ucontext_t *saved = context;
    seen = *info;
    seen_error = saved->uc_mcontext.gregs[REG_ERR];
    seen_trap = saved->uc_mcontext.gregs[REG_TRAPNO];
    seen_cr2 = saved->uc_mcontext.gregs[REG_CR2];
    siglongjmp(back, 1);
}

static void touch_wrongly(const char *name, volatile char *at, int write)
{
    memset(&seen, 0, sizeof seen);
    make_absent();
    if (sigsetjmp(back, 1) == 0) {
        if (write) *at = 1;
        else (void)*at;
        die("%s: nothing happened", name);
    }
    /* The lowest bit of the error says whether the page was there, which is the system's business. */
    say("%s: signal %d, code %d, address %s, error %d, trap %d", name, seen.si_signo, seen.si_code, seen.si_addr == (void *)at ? "right" : "WRONG",
        (int)(seen_error & ~1), (int)seen_trap);
}

static void *in_thread(void *memory)
{
    touch_wrongly("null, read by a thread", NULL, 0);
    touch_wrongly("closed page, write by a thread", (char *)memory + 3 * PAGE + 5, 1);
    return NULL;
}

void section_faults(void)
{
    char *memory = filled(MIB, 71), *hole = filled(MIB, 72), *untouched = fresh(MIB);
    CHECK(mprotect(memory + 2 * PAGE, 2 * PAGE, PROT_READ) == 0 && mprotect(memory + 8 * PAGE, 2 * PAGE, PROT_NONE) == 0);
    CHECK(mprotect(untouched, 2 * PAGE, PROT_NONE) == 0 && mprotect(untouched + 2 * PAGE, 2 * PAGE, PROT_READ) == 0);
    CHECK(munmap(hole + 16 * PAGE, 4 * PAGE) == 0);
    handle(SIGSEGV, look, 0);
    handle(SIGBUS, look, 0);
    handle(SIGFPE, look, 0);
    handle(SIGILL, look, 0);
    handle(SIGTRAP, look, 0);
    touch_wrongly("null, read", NULL, 0);
    touch_wrongly("null, write", (char *)8, 1);
    touch_wrongly("closed page, write", memory + 3 * PAGE + 5, 1);
    touch_wrongly("closed page, read", memory + 9 * PAGE + 7, 0);
    touch_wrongly("closed page, never touched, read", untouched + 9, 0);
    touch_wrongly("closed page, never touched, write", untouched + 3 * PAGE + 9, 1);
    touch_wrongly("unmapped, read", hole + 17 * PAGE + 1, 0);
    touch_wrongly("unmapped, write", hole + 17 * PAGE + 1, 1);
    touch_wrongly("not canonical", (char *)0x1234567800000000, 0);
    say("not canonical: address %p", seen.si_addr);
    join(start(in_thread, memory));
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("xor %%edx, %%edx; mov $1, %%eax; xor %%ecx, %%ecx; div %%ecx" : : : "eax", "ecx", "edx");
    say("division: signal %d, code %d", seen.si_signo, seen.si_code);
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("ud2");
    say("ud2: signal %d, code %d", seen.si_signo, seen.si_code);
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("int3");
    say("int3: signal %d, code %d", seen.si_signo, seen.si_code);
    CHECK(memcmp(memory + 2 * PAGE, memory + 2 * PAGE, 2 * PAGE) == 0 && mprotect(memory, MIB, PROT_READ | PROT_WRITE) == 0 && holds(memory, MIB, 71));
    signal(SIGSEGV, SIG_IGN);
    fflush(stdout);
    /* A fault that is ignored ends the process all the same. */
    volatile char *volatile wild = (volatile char *)16;
    *wild = 1;
}

/* ----------------------------------------------------------------------------------------- overflow */

static volatile int depth, deepest_wanted = 1 << 30;

static __attribute__((noinline)) int recurse(int level)
{
    volatile char room[1024];
    room[level & 1023] = (char)level;
    depth = level;
    if (level == deepest_wanted) return 0;
    int deeper = recurse(level + 1);
    return deeper + room[(level + 1) & 1023];
}

static void overflowed(int number, siginfo_t *info, void *context)
{
    (void)number;
    uintptr_t sp = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP], at = (uintptr_t)info->si_addr;
    say("overflow: code %d, %s", info->si_code, at > sp - 65536 && at < sp + 65536 ? "near the stack pointer" : "ELSEWHERE");
    make_absent();
    siglongjmp(back, 1);
}

static void *overflow(void *unused)
{
    size_t size = 64 * 1024;
    stack_t stack = { .ss_sp = filled(size, 73), .ss_size = size };
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(back, 1) == 0) recurse(0);
        say("depth %s", depth > 40 ? "enough" : "TOO SMALL");
    }
    return unused;
}

void section_overflow(void)
{
    handle(SIGSEGV, overflowed, SA_ONSTACK);
    struct rlimit stack = { 1 << 20, RLIM_INFINITY };
    CHECK(setrlimit(RLIMIT_STACK, &stack) == 0);
    overflow(NULL);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 128 * 1024) == 0);
    CHECK(pthread_create(&thread, &attributes, overflow, NULL) == 0);
    join(thread);
    /* Without a stack to handle it on, it ends the process. */
    stack_t none = { .ss_flags = SS_DISABLE };
    CHECK(sigaltstack(&none, NULL) == 0);
    fflush(stdout);
    recurse(0);
}

/* ------------------------------------------------------------------------------------------- sigsys */

static void sys(int number, siginfo_t *info, void *context)
{
    (void)context;
    make_absent();
    say("signal %d, code %s, value %d", number, info->si_code == SI_QUEUE ? "queue" : info->si_code == SI_TKILL ? "tkill" : "other",
        info->si_value.sival_int);
}

static long bare_getppid(void)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    return result;
}

void section_sigsys(void)
{
    handle(SIGSYS, sys, 0);
    long parent = bare_getppid();
    CHECK(parent == getppid());
    raise(SIGSYS);
    CHECK(sigqueue(getpid(), SIGSYS, (union sigval){ .sival_int = 12 }) == 0);
    /* Blocked or ignored: the calls of the program go on. */
    block(SIGSYS);
    for (int i = 0; i < 100; i++) CHECK(bare_getppid() == parent);
    unblock(SIGSYS);
    signal(SIGSYS, SIG_IGN);
    for (int i = 0; i < 100; i++) CHECK(bare_getppid() == parent);
    say("bare calls ok");
    errno = 0;
    long result = syscall(450 + 1000);
    say("a call that does not exist: %ld %s", result, strerror(errno));
    signal(SIGSYS, SIG_DFL);
    raise(SIGSYS);
    die("SIGSYS did not end the process");
}

/* --------------------------------------------------------------------------------------- coroutines */

enum { COROUTINES = 40, COROUTINE_STACK = 160 * 1024 };
static ucontext_t *contexts, *scheduler;
static int current, living;
static uint64_t *results;
static volatile unsigned alarms;

static void on_alarm(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    volatile char room[9000];
    for (size_t i = 0; i < sizeof room; i += 512) room[i] = (char)i;
    __atomic_fetch_add(&alarms, 1, __ATOMIC_RELAXED);
}

static void yield_now(void)
{
    int me = current;
    CHECK(swapcontext(&contexts[me], scheduler) == 0);
}

static void coroutine(int me)
{
    uint64_t local[4096], sum = 0;
    for (size_t i = 0; i < 4096; i++) local[i] = mix((uint64_t)me * 4096 + i);
    for (int round = 0; round < 12; round++) {
        yield_now();
        for (size_t i = 0; i < 4096; i += 7) local[i] = mix(local[i]);
        /* Calls from a stack that may be absent: by libc, bare, blocking ones. */
        CHECK(bare_getppid() == getppid());
        char text[64];
        int ends[2];
        CHECK(pipe(ends) == 0 && write(ends[1], local, 64) == 64 && read(ends[0], text, 64) == 64 && memcmp(text, local, 64) == 0);
        close(ends[0]);
        close(ends[1]);
        sigset_t old;
        CHECK(sigprocmask(SIG_BLOCK, NULL, &old) == 0);
        /* More calls that change mappings, on top. */
        void *room = mmap(NULL, 256 * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(room != MAP_FAILED && munmap(room, 256 * 1024) == 0);
    }
    for (size_t i = 0; i < 4096; i++) sum = sum * 31 + local[i];
    results[me] = sum;
    living--;
}

static void *schedule(void *unused)
{
    (void)unused;
    contexts = fresh(COROUTINES * sizeof *contexts);
    scheduler = fresh(sizeof *scheduler);
    results = fresh(COROUTINES * 8);
    unsigned char *stacks = filled((size_t)COROUTINES * COROUTINE_STACK, 75);
    living = COROUTINES;
    for (int i = 0; i < COROUTINES; i++) {
        CHECK(getcontext(&contexts[i]) == 0);
        contexts[i].uc_stack.ss_sp = stacks + (size_t)i * COROUTINE_STACK;
        contexts[i].uc_stack.ss_size = COROUTINE_STACK;
        contexts[i].uc_link = scheduler;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    for (int round = 0; living > 0; round++) {
        for (current = 0; current < COROUTINES; current++) {
            if (round <= 12) CHECK(swapcontext(scheduler, &contexts[current]) == 0);
        }
    }
    uint64_t all = digest(0, results, COROUTINES * 8);
    say("%d coroutines, digest %016llx", COROUTINES, (unsigned long long)all);
    return NULL;
}

/* Stacks in managed memory, while signals come and pages leave. */
void section_coroutines(void)
{
    handle(SIGALRM, on_alarm, SA_RESTART);
    struct itimerval every = { { 0, 700 }, { 0, 700 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    churn_start();
    schedule(NULL);
    join(start(schedule, NULL));
    churn_stop();
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    say("%s", alarms > 10 ? "alarms came" : "NO ALARMS");
}

/* --------------------------------------------------------------------------------------- smallstack */

static volatile int handled;

static void in_little_room(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    handled++;
    int saved = errno;
    if (write(-1, "x", 1) != -1 || errno != EBADF) _exit(7);
    getppid();
    uint64_t mask = 0;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8);
    errno = saved;
}

/* An alternate stack of the size that <signal.h> used to recommend, with other data right below it. */
void section_smallstack(void)
{
    size_t size = 8192, minimum = getauxval(AT_MINSIGSTKSZ);
    if (size < 2 * minimum) size = 2 * minimum;
    unsigned char *memory = filled(MIB, 76);
    stack_t stack = { .ss_sp = memory + 64 * 1024, .ss_size = size };
    CHECK(sigaltstack(&stack, NULL) == 0);
    handle(SIGUSR1, in_little_room, SA_ONSTACK);
    handle(SIGSEGV, in_little_room, SA_ONSTACK);
    for (int i = 0; i < 20; i++) {
        if (i % 4 == 0) make_absent();
        raise(i % 2 ? SIGUSR1 : SIGSEGV);
    }
    say("%d handlers, %s below, %s above", handled, holds(memory, 64 * 1024, 76) ? "nothing changed" : "CHANGED",
        *(uint64_t *)(memory + MIB - 8) == mix(76 ^ (MIB - 8)) ? "nothing changed" : "CHANGED");
}

/* ------------------------------------------------------------------------------------------- handed */

/* Whole 2 MiB units of memory that is left to the kernel while threads use it, pages that nobody has touched among them. */
enum { HANDED = 6, HANDED_ROUNDS = 60 };
static unsigned char *volatile handed_over;
static volatile int handed_round, handed_busy;

static void *use_handed(void *argument)
{
    size_t me = (size_t)(uintptr_t)argument, state = me + 1;
    for (int seen = 0; seen < HANDED_ROUNDS;) {
        while (__atomic_load_n(&handed_round, __ATOMIC_ACQUIRE) == seen) sched_yield();
        seen = __atomic_load_n(&handed_round, __ATOMIC_ACQUIRE);
        for (int i = 0; i < 4000; i++) {
            state = mix(state);
            /* Each thread has words of its own. */
            uint64_t *word = (uint64_t *)(handed_over + state % (HANDED * MIB / PAGE) * PAGE) + me;
            if (*word != 0 && *word != mix((uint64_t)(uintptr_t)word)) die("round %d: %p holds %llx", seen, (void *)word, (unsigned long long)*word);
            if (i % 3 == 0) *word = mix((uint64_t)(uintptr_t)word);
        }
        __atomic_fetch_sub(&handed_busy, 1, __ATOMIC_ACQ_REL);
    }
    return NULL;
}

void section_handed(void)
{
    static const int advices[] = { MADV_DONTFORK, MADV_WIPEONFORK };
    pthread_t users[3];
    for (size_t i = 0; i < 3; i++) users[i] = start(use_handed, (void *)(uintptr_t)i);
    for (int round = 1; round <= HANDED_ROUNDS; round++) {
        unsigned char *all = fresh((HANDED + 2) * MIB), *from = (unsigned char *)(((uintptr_t)all + 2 * MIB - 1) & ~(2 * MIB - 1));
        handed_over = from;
        __atomic_store_n(&handed_busy, 3, __ATOMIC_RELEASE);
        __atomic_store_n(&handed_round, round, __ATOMIC_RELEASE);
        for (int i = 0; i < round % 4 * 20; i++) sched_yield();
        /* What was locked is the kernel's; what is kept from children stays managed. */
        if (round % 3 == 2) CHECK(mlock(from, MIB) == 0);
        else CHECK(madvise(from, HANDED * MIB, advices[round % 3]) == 0);
        while (__atomic_load_n(&handed_busy, __ATOMIC_ACQUIRE) > 0) sched_yield();
        CHECK(munmap(all, (HANDED + 2) * MIB) == 0);
        /* Managed anew where it was: nothing may be left of its life before. */
        unsigned char *again = mmap(from, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == from);
        for (size_t i = 0; i < MIB; i += PAGE) CHECK(again[i] == 0);
        CHECK(munmap(again, MIB) == 0);
    }
    for (size_t i = 0; i < 3; i++) join(users[i]);
    say("%d rounds", HANDED_ROUNDS);
}
