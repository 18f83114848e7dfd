/* A program that fits at first, and what it does at the moment when it does not fit any more.
 *
 *     dormant BALLAST_MIB SECTION   run one section
 *     dormant BALLAST_MIB wait:CALL say so, wait in a call for a second and a half, and then for the end of the standard input
 *     dormant --list                print the names of all sections
 *
 * Under Farshore it is dormant until its mappings could exceed the limit, which the ballast does: what was mapped before must be there afterwards, and nothing may
 * show. The output and the way in which the program ends are the same natively and under Farshore. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <ucontext.h>

#define CHECK(what) do { if (!(what)) die("%s, line %d: %s", section, __LINE__, #what); } while (0)

static const char *section;
static size_t ballast;

static void say(const char *format, ...)
{
    va_list list;
    printf("%s: ", section);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

static unsigned char *map(size_t bytes)
{
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Each page gets its own number, as often as it holds it; `seed` says whose. */
static void fill(unsigned char *at, size_t bytes, unsigned long seed)
{
    for (size_t i = 0; i < bytes; i += sizeof(unsigned long)) *(unsigned long *)(at + i) = seed * 1000003 + i;
}

static int holds(const unsigned char *at, size_t bytes, unsigned long seed)
{
    for (size_t i = 0; i < bytes; i += sizeof(unsigned long)) {
        if (*(const unsigned long *)(at + i) != seed * 1000003 + i) return 0;
    }
    return 1;
}

/* More than the limit, written and read once: what was there before has left by then. */
static void press(void)
{
    unsigned char *at = map(ballast);
    fill(at, ballast, 77);
    CHECK(holds(at, ballast, 77));
    CHECK(munmap(at, ballast) == 0);
}

static int entries(const char *folder, int least)
{
    DIR *directory = opendir(folder);
    int count = 0;
    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.' && atoi(entry->d_name) >= least;
    closedir(directory);
    return count;
}

/* What a program that fits can see of itself: its tasks, descriptors that it has not opened, handlers that it has not installed. */
static void section_unseen(void)
{
    for (int i = 0; i < 2000; i++) {
        unsigned char *at = map(MIB);
        fill(at, MIB, i);
        CHECK(holds(at, MIB, i));
        CHECK(munmap(at, MIB) == 0);
    }
    /* Calls at which a thread could be cancelled. */
    int pair[2];
    char word[5] = "";
    struct timespec moment = { 0, 1000 };
    CHECK(pipe(pair) == 0 && write(pair[1], "word", 4) == 4 && read(pair[0], word, 4) == 4 && strcmp(word, "word") == 0);
    struct pollfd one = { .fd = pair[1], .events = POLLOUT };
    CHECK(poll(&one, 1, 1000) == 1 && nanosleep(&moment, NULL) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    say("tasks %d, high descriptors %d", entries("/proc/self/task", 0), entries("/proc/self/fd", 60));
    /* Who has started us may ignore some. */
    struct sigaction action;
    int ignored = 0;
    for (int number = 1; number < 65; number++) {
        if (sigaction(number, NULL, &action) != 0) continue;
        CHECK((action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) && action.sa_flags == 0);
        ignored += action.sa_handler == SIG_IGN;
    }
    say("ignored signals %d", ignored);
    say("high descriptors %d", entries("/proc/self/fd", 60));
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0);
    say("alternate stack %d", !(stack.ss_flags & SS_DISABLE));
}

/* Mappings of several kinds, the heap, and holes in them. */
static void section_stock(void)
{
    enum { COUNT = 24 };
    unsigned char *maps[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = (size_t)(i % 5 + 1) * 96 * 1024;
        maps[i] = map(bytes);
        fill(maps[i], bytes, i);
    }
    unsigned char *heap[400];
    for (int i = 0; i < 400; i++) {
        heap[i] = malloc(5000);
        memset(heap[i], i, 5000);
    }
    /* Only some pages of this one are there; some are read alone. */
    unsigned char *sparse = map(8 * MIB);
    for (size_t i = 0; i < 8 * MIB; i += 3 * PAGE) sparse[i] = (unsigned char)(i / PAGE);
    int sum = 0;
    for (size_t i = PAGE; i < 8 * MIB; i += 3 * PAGE) sum += sparse[i];
    /* Not to be read, and not to be written. */
    unsigned char *closed = map(512 * 1024), *fixed = map(512 * 1024);
    fill(closed, 512 * 1024, 900);
    fill(fixed, 512 * 1024, 901);
    CHECK(mprotect(closed, 512 * 1024, PROT_NONE) == 0 && mprotect(fixed, 512 * 1024, PROT_READ) == 0);
    /* A hole, and something else in the middle. */
    unsigned char *broken = map(2 * MIB);
    fill(broken, 2 * MIB, 902);
    CHECK(munmap(broken + 64 * PAGE, 32 * PAGE) == 0);
    int file = open("/proc/self/exe", O_RDONLY);
    unsigned char first[16];
    CHECK(pread(file, first, 16, 0) == 16);
    CHECK(mmap(broken + 128 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == broken + 128 * PAGE);
    unsigned char *grown = map(256 * 1024);
    fill(grown, 256 * 1024, 903);
    grown = mremap(grown, 256 * 1024, 1024 * 1024, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED);
    for (int round = 0; round < 3; round++) press();
    CHECK(mprotect(closed, 512 * 1024, PROT_READ) == 0);
    for (int i = 0; i < COUNT; i++) CHECK(holds(maps[i], (size_t)(i % 5 + 1) * 96 * 1024, i));
    for (int i = 0; i < 400; i++) {
        for (int j = 0; j < 5000; j++) CHECK(heap[i][j] == (unsigned char)i);
    }
    for (size_t i = 0; i < 8 * MIB; i += PAGE) CHECK(sparse[i] == (i / PAGE % 3 == 0 ? (unsigned char)(i / PAGE) : 0));
    CHECK(holds(closed, 512 * 1024, 900) && holds(fixed, 512 * 1024, 901) && holds(grown, 256 * 1024, 903) && grown[700 * 1024] == 0);
    CHECK(holds(broken, 64 * PAGE, 902) && memcmp(broken + 128 * PAGE, first, 16) == 0);
    say("bytes 1, read %d", sum);
}

/* Huge pages, whose halves must be able to leave. */
static void section_huge(void)
{
    unsigned char *at = map(16 * MIB);
    madvise(at, 16 * MIB, MADV_HUGEPAGE);
    fill(at, 16 * MIB, 5);
    for (int round = 0; round < 3; round++) {
        press();
        CHECK(holds(at, 16 * MIB, 5));
        fill(at, 8 * MIB, 5);
    }
    say("bytes 1");
}

static int ends[2];
static volatile sig_atomic_t runs;
static volatile int on_stack;

static void on_signal(int number)
{
    char here;
    stack_t stack;
    (void)number;
    if (!runs++) press();
    sigaltstack(NULL, &stack);
    on_stack = !(stack.ss_flags & SS_DISABLE) && &here > (char *)stack.ss_sp && &here < (char *)stack.ss_sp + stack.ss_size;
    if (ends[1]) CHECK(write(ends[1], "answer", 6) == 6);
}

static void alarms(long first, long every, int flags)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
    struct itimerval timer = { { 0, every }, { 0, first } };
    runs = 0;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void alarm_in(long microseconds, int flags)
{
    alarms(microseconds, 0, flags);
}

/* Waits for the handler, in a call. The alarm comes again until it has run: a process that just wakes, or has no processor, may come to the wait after the first. */
static void await_alarm(long every, int flags)
{
    struct itimerval none = { { 0, 0 }, { 0, 0 } };
    alarms(every, every, flags);
    while (!runs) pause();
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
}

/* The handler that interrupts a call wakes; the call goes on, or ends, as natively. */
static void section_handler(void)
{
    unsigned char *buffer = map(MIB);
    fill(buffer, MIB, 6);
    CHECK(pipe(ends) == 0);
    alarm_in(200000, SA_RESTART);
    ssize_t got = read(ends[0], buffer + 3 * PAGE, 6);
    say("read %zd %.6s", got, buffer + 3 * PAGE);
    CHECK(holds(buffer, 3 * PAGE, 6));
}

static void section_interrupted(void)
{
    struct timespec time = { 5, 0 }, left = { 9, 9 };
    /* Again and again: the first may come before the call. */
    alarms(50000, 400000, 0);
    int answer = nanosleep(&time, &left);
    say("nanosleep %d %s, left %ld", answer, strerror(errno), (long)left.tv_sec);
    struct pollfd nothing = { .fd = -1 };
    alarms(50000, 400000, SA_RESTART);
    answer = poll(&nothing, 1, 5000);
    say("poll %d %s", answer, strerror(errno));
    alarms(0, 0, SA_RESTART);
}

static void section_otherstack(void)
{
    static char memory[64 * 1024];
    stack_t stack = { .ss_sp = memory, .ss_size = sizeof memory }, now;
    CHECK(sigaltstack(&stack, NULL) == 0);
    await_alarm(20000, SA_ONSTACK);
    say("on it %d", on_stack);
    CHECK(sigaltstack(NULL, &now) == 0);
    say("same %d, flags %d", now.ss_sp == (void *)memory && now.ss_size == sizeof memory, now.ss_flags);
    await_alarm(20000, SA_ONSTACK);
    say("on it again %d", on_stack);
}

static sigjmp_buf away;

static void on_jump(int number)
{
    (void)number;
    press();
    siglongjmp(away, 1);
}

static void section_jump(void)
{
    struct sigaction action = { .sa_handler = on_jump };
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    unsigned char *at = map(MIB);
    fill(at, MIB, 8);
    if (sigsetjmp(away, 1) == 0) {
        alarm(1);
        for (;;) pause();
    }
    press();
    say("bytes %d", holds(at, MIB, 8));
}

static volatile int caught;

static void on_caught(int number)
{
    caught |= 1 << number;
}

/* Signals that Farshore takes for itself when it wakes: what the program has said of them is the same afterwards. */
static void section_masks(void)
{
    sigset_t all, before, after, pending;
    struct sigaction action = { .sa_handler = on_caught }, now;
    sigfillset(&all);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0 && sigprocmask(SIG_SETMASK, NULL, &before) == 0);
    CHECK(raise(SIGBUS) == 0 && raise(SIGSYS) == 0 && raise(SIGUSR1) == 0);
    press();
    CHECK(sigprocmask(SIG_SETMASK, NULL, &after) == 0 && sigpending(&pending) == 0);
    say("same mask %d; pending %d %d %d", memcmp(&before, &after, 8) == 0, sigismember(&pending, SIGBUS), sigismember(&pending, SIGSYS),
        sigismember(&pending, SIGUSR1));
    CHECK(sigaction(SIGBUS, NULL, &now) == 0);
    say("same handler %d; caught %d", now.sa_handler == on_caught, caught);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSYS);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    say("caught %d", caught == (1 << SIGBUS | 1 << SIGSYS));
}

static void *in_thread(void *at)
{
    CHECK(holds(at, MIB, 9));
    press();
    fill((unsigned char *)at + MIB, MIB, 10);
    return at;
}

/* What makes threads and processes. */
static void section_thread(void)
{
    unsigned char *at = map(2 * MIB);
    pthread_t thread;
    fill(at, MIB, 9);
    CHECK(pthread_create(&thread, NULL, in_thread, at) == 0 && pthread_join(thread, NULL) == 0);
    press();
    say("bytes %d", holds(at, MIB, 9) && holds(at + MIB, MIB, 10));
}

static void section_fork(void)
{
    unsigned char *at = map(2 * MIB);
    int status = -1;
    fill(at, MIB, 9);
    pid_t child = fork();
    if (child == 0) {
        press();
        _exit(holds(at, MIB, 9) ? 3 : 4);
    }
    fill(at, MIB, 11);
    press();
    CHECK(waitpid(child, &status, 0) == child);
    say("child %d, bytes %d", WEXITSTATUS(status), holds(at, MIB, 11));
}

static void section_spawn(void)
{
    char *const argv[] = { "sh", "-c", "exit 7", NULL };
    char *const none[] = { NULL };
    unsigned char *at = map(MIB);
    pid_t child;
    int status = -1;
    fill(at, MIB, 9);
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, argv, none) == 0 && waitpid(child, &status, 0) == child);
    say("spawned %d, system %d", WEXITSTATUS(status), WEXITSTATUS(system("exit 8")));
    press();
    say("bytes %d", holds(at, MIB, 9));
}

static void section_vfork(void)
{
    unsigned char *at = map(MIB);
    int status = -1;
    fill(at, MIB, 9);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 9", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    press();
    say("child %d, bytes %d", WEXITSTATUS(status), holds(at, MIB, 9));
}

/* Code that was not there at the start, with a system call of its own. */
static void section_code(void)
{
    /* mov eax, edi; mov rdi, rsi; mov rsi, rdx; mov edx, 3; mov r10d, 0x22; mov r8, -1; xor r9d, r9d; syscall; ret */
    static const unsigned char code[] = { 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0xba, 3, 0, 0, 0, 0x41, 0xba, 0x22, 0, 0, 0,
        0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, 0x45, 0x31, 0xc9, 0x0f, 0x05, 0xc3 };
    unsigned char *room = map(PAGE), *kept = map(MIB);
    fill(kept, MIB, 12);
    memcpy(room, code, sizeof code);
    CHECK(mprotect(room, PAGE, PROT_READ | PROT_EXEC) == 0);
    unsigned char *(*call)(int, void *, size_t) = (unsigned char *(*)(int, void *, size_t))(void *)room;
    unsigned char *at = call(SYS_mmap, NULL, ballast);
    CHECK(at != MAP_FAILED);
    fill(at, ballast, 13);
    say("bytes %d", holds(at, ballast, 13) && holds(kept, MIB, 12));
}

/* Signals all the time, whose handlers map, while the program grows beyond the limit. */
static void on_storm(int number)
{
    (void)number;
    unsigned char *at = map(132 * 1024);
    fill(at, 8 * PAGE, 14);
    CHECK(holds(at, 8 * PAGE, 14) && munmap(at, 132 * 1024) == 0);
    runs++;
}

static void section_storm(void)
{
    enum { COUNT = 48 };
    struct sigaction action = { .sa_handler = on_storm, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { { 0, 0 }, { 0, 0 } };
    unsigned char *maps[COUNT], line[64];
    size_t each = ballast / COUNT;
    each -= each % PAGE;
    CHECK(pipe(ends) == 0 && sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < COUNT; i++) {
        maps[i] = map(each);
        fill(maps[i], each, i);
        for (int j = 0; j < 20; j++) {
            CHECK(write(ends[1], "0123456789", 10) == 10 && read(ends[0], line, 10) == 10 && memcmp(line, "0123456789", 10) == 0);
            free(malloc(300 * 1024));
        }
    }
    for (int i = 0; i < COUNT; i++) CHECK(holds(maps[i], each, i));
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    say("bytes 1, signals %d", runs > 0);
}

static void section_heap(void)
{
    unsigned char *start = sbrk(0);
    CHECK(sbrk(MIB) != (void *)-1);
    fill(start, MIB, 15);
    CHECK(sbrk(ballast) != (void *)-1);
    fill(start + MIB, ballast, 16);
    CHECK(holds(start, MIB, 15) && holds(start + MIB, ballast, 16));
    CHECK(sbrk(-(long)ballast) != (void *)-1);
    say("bytes %d", holds(start, MIB, 15));
}

/* A mapping in the middle of the heap, and a part of the heap that becomes a mapping. */
static void section_heapparts(void)
{
    unsigned char *start = sbrk(0);
    CHECK(sbrk(4 * MIB) != (void *)-1);
    start = (unsigned char *)(((uintptr_t)start + PAGE - 1) / PAGE * PAGE);
    fill(start, 3 * MIB, 18);
    unsigned char *middle = mmap(start + MIB, 256 * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(middle == start + MIB);
    fill(middle, 256 * 1024, 19);
    unsigned char *moved = mremap(start + 2 * MIB, 512 * 1024, ballast, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    memset(moved + 512 * 1024, 20, ballast - 512 * 1024);
    press();
    CHECK(holds(start, MIB, 18) && holds(middle, 256 * 1024, 19) && moved[ballast - 1] == 20);
    fill(start + 2 * MIB - 4096, 4096, 21);
    say("bytes %d", *(unsigned long *)(moved + 8) == 18ul * 1000003 + 2 * MIB + 8);
}

/* Calls on stacks of a program's own: small ones, and one that is managed when it has woken. */
static ucontext_t back, there;
static size_t near_limit;

static void on_coroutine(void)
{
    unsigned char *more = mmap(NULL, near_limit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    swapcontext(&there, &back);
    fill(more, near_limit, 22);
    CHECK(holds(more, near_limit, 22));
    swapcontext(&there, &back);
}

static void on_small(void)
{
    syscall(SYS_mmap, NULL, ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    swapcontext(&there, &back);
}

static void section_stacks(void)
{
    unsigned char *stack = map(MIB), *kept = map(34 * MIB);
    fill(kept, 34 * MIB, 23);
    near_limit = 8 * MIB;
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = MIB, there.uc_link = NULL;
    makecontext(&there, on_coroutine, 0);
    CHECK(swapcontext(&back, &there) == 0);
    press();
    CHECK(swapcontext(&back, &there) == 0);
    CHECK(holds(kept, 34 * MIB, 23));
    say("bytes 1");
}

static void section_smallstack(void)
{
    static unsigned char room[3 * 2048];
    /* The loader looks a symbol up on the stack of who calls first: both here. */
    syscall(SYS_getppid);
    static volatile int again;
    CHECK(getcontext(&back) == 0);
    if (!again++) swapcontext(&there, &back);
    memset(room, 0x5a, sizeof room);
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = room + 2048, there.uc_stack.ss_size = 2048, there.uc_link = NULL;
    makecontext(&there, on_small, 0);
    CHECK(swapcontext(&back, &there) == 0);
    int below = 0;
    for (int i = 0; i < 2048; i++) below += room[i] != 0x5a;
    say("%d bytes below the stack were changed", below);
}

/* Handlers at any moment of a call that is counted: the call is the one that was made. */
static void on_nothing(int number)
{
    (void)number;
    runs++;
}

static void section_entries(void)
{
    struct sigaction action = { .sa_handler = on_nothing, .sa_flags = SA_RESTART };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
    struct itimerspec often = { { 0, 30011 }, { 0, 30011 } };
    timer_t timer;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    for (uint64_t end = now_ns() + 6000000000; now_ns() < end;) {
        unsigned char *at = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && at != NULL);
        at[3 * PAGE] = 1;
        CHECK(mprotect(at, PAGE, PROT_READ) == 0 && munmap(at, 64 * PAGE) == 0);
    }
    CHECK(timer_delete(timer) == 0);
    press();
    say("signals %d", runs > 0);
}

/* A handler that needs much of the program's stack, in a call whose number nobody knows before. */
static void on_deep(int number)
{
    volatile unsigned char much[3 * MIB];
    (void)number;
    for (size_t i = 0; i < sizeof much; i += PAGE) much[i] = 1;
    runs++;
}

static void section_deep(void)
{
    struct sigaction action = { .sa_handler = on_deep };
    char byte;
    CHECK(pipe(ends) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    /* Again and again: one may come before the call has begun. */
    struct itimerval often = { { 0, 300000 }, { 0, 300000 } };
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    long answer = syscall(SYS_read, ends[0], &byte, 1);
    say("read %ld %s, runs %d", answer, strerror(errno), runs > 0);
}

/* Text that ends before its mapping does. */
static void section_shortcode(void)
{
    char name[] = "/tmp/farshore-dormant-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    CHECK(mmap(NULL, MIB, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) != MAP_FAILED);
    CHECK(write(file, "\x7f" "ELF\2\1\1", 7) == 7);
    unsigned char *at = mmap(NULL, MIB, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    CHECK(at != MAP_FAILED && at[1] == 'E');
    press();
    say("bytes 1");
}

/* Registers that a call leaves alone and C code does not: the last that the kernel saves on a signal's stack. Waits by poll; `bytes` go through them. */
int polls_with_vectors(long (*call)(long, ...), unsigned char *bytes, int wide, long time);
__asm__(".text\n"
        "polls_with_vectors:\n"
        "push %rbx\n push %r12\n push %r13\n"
        "mov %rsi, %rbx\n mov %edx, %r12d\n mov %rdi, %r13\n"
        "test %edx, %edx\n jz 1f\n"
        "vmovdqu64 (%rbx), %zmm30\n vmovdqu64 64(%rbx), %zmm31\n jmp 2f\n"
        "1: vmovdqu (%rbx), %ymm13\n vmovdqu 32(%rbx), %ymm14\n vmovdqu 64(%rbx), %ymm15\n"
        "2: mov $7, %edi\n xor %esi, %esi\n xor %edx, %edx\n xor %eax, %eax\n call *%r13\n"
        "test %r12d, %r12d\n jz 3f\n"
        "vmovdqu64 %zmm30, (%rbx)\n vmovdqu64 %zmm31, 64(%rbx)\n jmp 4f\n"
        "3: vmovdqu %ymm13, (%rbx)\n vmovdqu %ymm14, 32(%rbx)\n vmovdqu %ymm15, 64(%rbx)\n"
        "4: vzeroupper\n pop %r13\n pop %r12\n pop %rbx\n ret\n");

static int vectors(void)
{
    unsigned char bytes[128];
    for (int i = 0; i < 128; i++) bytes[i] = 0xa0 + i;
    int answer = __builtin_cpu_supports("avx") ? polls_with_vectors(syscall, bytes, __builtin_cpu_supports("avx512f") != 0, 1500) : poll(NULL, 0, 1500);
    for (int i = 0; i < 128; i++) answer += bytes[i] != (unsigned char)(0xa0 + i);
    return answer;
}

/* Calls that only wait, for somebody who asks meanwhile. */
static void waits(const char *what)
{
    struct timespec time = { 1, 500000000 }, left = { 7, 7 };
    struct timeval short_time = { 1, 500000 };
    struct pollfd nothing = { .fd = -1 };
    int answer = -2, word = 0;
    say("waits");
    uint64_t start = now_ns();
    if (strcmp(what, "nanosleep") == 0) answer = nanosleep(&time, &left);
    if (strcmp(what, "poll") == 0) answer = poll(&nothing, 1, 1500);
    if (strcmp(what, "ppoll") == 0) answer = ppoll(&nothing, 1, &time, NULL);
    if (strcmp(what, "select") == 0) answer = select(0, NULL, NULL, NULL, &short_time);
    if (strcmp(what, "futex") == 0) answer = (int)syscall(SYS_futex, &word, 0, 0, &time, NULL, 0);
    if (strcmp(what, "vectors") == 0) answer = vectors();
    uint64_t took = now_ns() - start;
    say("%s %d %s, in time %d", what, answer, answer < 0 ? strerror(errno) : "", took > 1400000000);
    while (getchar() != EOF) continue;
}

/* What Farshore needs cannot be had: what does not fit is refused, all else goes on. */
static void section_refused(void)
{
    unsigned char *kept = map(2 * MIB), *more;
    fill(kept, 2 * MIB, 17);
    while (dup(0) >= 0) {}
    more = mmap(NULL, ballast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("more %d, %s", more != MAP_FAILED, more == MAP_FAILED ? strerror(errno) : "there");
    errno = 0;
    unsigned char *top = sbrk(0);
    int grown = sbrk((long)ballast) != (void *)-1;
    say("heap %d, %s", grown, strerror(errno));
    CHECK(sbrk(0) == (void *)top || brk(top) == 0);
    for (int i = 0; i < 200; i++) {
        unsigned char *at = map(8 * MIB);
        fill(at, MIB, i);
        CHECK(holds(at, MIB, i) && munmap(at, 8 * MIB) == 0);
    }
    ballast = MIB;
    await_alarm(1000, SA_ONSTACK);
    pid_t child = fork();
    if (child == 0) _exit(0);
    say("bytes %d, child %d", holds(kept, 2 * MIB, 17), child > 0 && waitpid(child, NULL, 0) == child);
}

/* A program that closes whatever it did not open, in each way, and takes all numbers for its own. */
static void section_closes(void)
{
    enum { NUMBERS = 4200 };
    unsigned char *at = map(MIB);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int numbers = limit.rlim_cur < NUMBERS ? (int)limit.rlim_cur : NUMBERS;
    fill(at, MIB, 18);
    for (int fd = 3; fd < numbers; fd++) close(fd);
    CHECK(close_range(3, ~0U, 0) == 0);
    /* What is Farshore's own stays, as if the number were beyond the limit. */
    for (int fd = 3; fd < numbers; fd++) CHECK(dup2(1, fd) == fd || errno == EBADF);
    for (int fd = 3; fd < numbers; fd++) CHECK(dup3(1, fd, O_CLOEXEC) == fd || errno == EBADF);
    closefrom(3);
    CHECK(open("/dev/null", O_RDONLY) == 3);
    press();
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(holds(at, MIB, 18) ? 19 : 1);
    CHECK(waitpid(child, &status, 0) == child);
    say("bytes %d, child %d, system %d", holds(at, MIB, 18), WEXITSTATUS(status), WEXITSTATUS(system("exit 20")));
}

/* Memory that is there until somebody says so. */
static void section_hold(void)
{
    char byte;
    unsigned char *at = map(ballast);
    fill(at, ballast, (unsigned long)getpid());
    say("ready");
    CHECK(read(0, &byte, 1) == 0);
    CHECK(holds(at, ballast, (unsigned long)getpid()));
}

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "unseen", section_unseen }, { "stock", section_stock }, { "huge", section_huge }, { "handler", section_handler },
    { "interrupted", section_interrupted }, { "otherstack", section_otherstack }, { "jump", section_jump }, { "masks", section_masks },
    { "thread", section_thread }, { "fork", section_fork }, { "spawn", section_spawn }, { "vfork", section_vfork }, { "code", section_code },
    { "storm", section_storm }, { "heap", section_heap }, { "refused", section_refused },
    { "heapparts", section_heapparts }, { "stacks", section_stacks }, { "smallstack", section_smallstack },
    { "shortcode", section_shortcode }, { "entries", section_entries }, { "deep", section_deep },
    { "closes", section_closes }, { "hold", section_hold },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 3) die("usage: dormant BALLAST_MIB SECTION | dormant --list");
    ballast = strtoul(argv[1], NULL, 10) * MIB;
    if (strncmp(argv[2], "wait:", 5) == 0) {
        section = "wait";
        waits(argv[2] + 5);
        return 0;
    }
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
