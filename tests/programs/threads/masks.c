/* Masks, and waiting for signals: also for SIGBUS, SIGSEGV and SIGSYS, which Farshore needs itself. */
#include "threads.h"
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

static const int four[] = { SIGUSR1, SIGBUS, SIGSEGV, SIGSYS };
enum { FOUR = 4 };

static volatile int got, got_code, got_value, got_count;
static volatile pthread_t got_thread;

static void note(int number, siginfo_t *info, void *context)
{
    (void)context;
    /* Other pages each time. */
    static unsigned char *touched;
    static size_t at;
    if (touched == NULL) touched = fresh(16 * MIB);
    for (int i = 0; i < 40; i++) touched[(at += 5 * PAGE) % (16 * MIB)]++;
    got = number;
    got_code = info->si_code;
    got_value = info->si_value.sival_int;
    got_thread = pthread_self();
    got_count++;
}

static const char *code_name(int code)
{
    return code == SI_USER ? "user" : code == SI_QUEUE ? "queue" : code == SI_TKILL ? "tkill" : code == SI_TIMER ? "timer" : "other";
}

static void queue(int number, int value)
{
    CHECK(sigqueue(getpid(), number, (union sigval){ .sival_int = value }) == 0);
}

/* ---------------------------------------------------------------------------------------- ignored */

static volatile int interrupted;

static void *waits_for_events(void *fd)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, *(int *)fd, &event) == 0);
    /* Without a time, and with one. */
    for (int round = 0;; round++) {
        int found = epoll_wait(epoll, &event, 1, round % 2 ? -1 : 20);
        if (found < 0 && errno == EINTR) interrupted++;
        if (found == 1) break;
    }
    close(epoll);
    return NULL;
}

/* A signal that the program ignores, sent while a thread of it is in a fault, ends no wait of another one. */
void section_ignored(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pthread_t waiter = start(waits_for_events, ends);
    pid_t me = getpid(), child = fork();
    if (child == 0) {
        for (int i = 0; i < 400; i++) {
            kill(me, SIGWINCH);
            usleep(500);
        }
        _exit(0);
    }
    unsigned char *memory = fresh(16 * MIB);
    while (waitpid(child, NULL, WNOHANG) == 0) for (size_t at = 0; at < 16 * MIB; at += PAGE) memory[at]++;
    CHECK(write(ends[1], "x", 1) == 1);
    join(waiter);
    say("interrupted %d times", interrupted);
}

/* ---------------------------------------------------------------------------------------- unblock */

static void count_it(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    got_count++;
}

/* A signal that waits comes in the middle of the call that lets it in: what the call has set stays. */
void section_unblock(void)
{
    handle(SIGALRM, count_it, SA_RESTART);
    struct itimerval every = { { 0, 100 }, { 0, 100 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    sigset_t all, before, now;
    sigfillset(&all);
    got_count = 0;
    for (int round = 0; got_count < 3000; round++) {
        CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0);
        for (int i = 0; i < FOUR; i++) if (sigismember(&before, four[i])) die("round %d: signal %d was blocked", round, four[i]);
        for (volatile int i = 0; i < round % 40 * 100; i++) { }
        CHECK(sigprocmask(SIG_SETMASK, &before, &now) == 0);
        for (int i = 0; i < FOUR; i++) if (!sigismember(&now, four[i])) die("round %d: signal %d was open", round, four[i]);
        CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
        for (int i = 0; i < FOUR; i++) if (sigismember(&now, four[i])) die("round %d: signal %d stays blocked", round, four[i]);
    }
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    say("3000 signals");
}

/* ---------------------------------------------------------------------------------------- whole */

/* A file is read and written as a whole, however many signals come meanwhile. */
void section_whole(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL);
    unsigned char *memory = fresh(4 * MIB);
    for (size_t at = 0; at < 4 * MIB; at++) memory[at] = (unsigned char)(at * 7 >> 3);
    handle(SIGALRM, count_it, SA_RESTART);
    struct itimerval every = { { 0, 100 }, { 0, 100 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int part = 0;
    for (int round = 0; round < 30; round++) {
        part += pwrite(fileno(file), memory, 4 * MIB, 0) != 4 * MIB;
        part += pread(fileno(file), memory, 4 * MIB, 0) != 4 * MIB;
    }
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    for (size_t at = 0; at < 4 * MIB; at++) CHECK(memory[at] == (unsigned char)(at * 7 >> 3));
    say("%d in part", part);
}

/* -------------------------------------------------------------------------------------------- masks */

static void *mask_of_thread(void *number)
{
    sigset_t now, pending;
    make_absent();
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && sigpending(&pending) == 0);
    return (void *)(uintptr_t)(sigismember(&now, *(int *)number) + 2 * sigismember(&pending, *(int *)number));
}

void section_masks(void)
{
    uint64_t *memory = filled(4 * MIB, 30);
    for (int i = 0; i < FOUR; i++) {
        int number = four[i];
        sigset_t pending;
        handle(number, note, 0);
        block(number);
        got = got_count = 0;
        raise(number);
        queue(number, 41);
        queue(number, 42);
        make_absent();
        CHECK(holds(memory, 4 * MIB, 30) && sigpending(&pending) == 0);
        int was_pending = sigismember(&pending, number), early = got_count;
        /* A new thread inherits the mask, and sees what waits for the process and not what waits for this thread. */
        int inherited = (int)(uintptr_t)join(start(mask_of_thread, &number));
        unblock(number);
        CHECK(sigpending(&pending) == 0);
        say("signal %d: early %d, pending %d, inherited %d, came %d, last value %d, pending %d", number, early, was_pending, inherited,
            got_count, got_value, sigismember(&pending, number));
    }
}

/* ------------------------------------------------------------------------------------------ suspend */

static void *send_soon(void *number)
{
    sleep_ms(15);
    kill(getpid(), *(int *)number);
    return NULL;
}

/* The main thread alone has it unblocked while it waits: the mask of the call decides. */
void section_suspend(void)
{
    for (int i = 0; i < FOUR; i++) {
        int number = four[i];
        handle(number, note, 0);
        block(number);
        sigset_t open_set, now;
        CHECK(pthread_sigmask(SIG_SETMASK, NULL, &open_set) == 0);
        sigdelset(&open_set, number);
        /* Sent before: the call does not wait at all. */
        got = 0;
        kill(getpid(), number);
        make_absent();
        int before = got, result = sigsuspend(&open_set), error = errno;
        CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
        say("signal %d sent before: %d, then %d, %d %s, blocked after %d", number, before, got, result, strerror(error), sigismember(&now, number));
        /* While it waits, in each call that takes a mask. */
        struct timespec long_time = { 20, 0 };
        struct epoll_event event;
        int epoll = epoll_create1(EPOLL_CLOEXEC), answers[4];
        for (int way = 0; way < 4; way++) {
            got = 0;
            pthread_t sender = start(send_soon, &number);
            switch (way) {
            case 0: answers[way] = sigsuspend(&open_set); break;
            case 1: answers[way] = ppoll(NULL, 0, &long_time, &open_set); break;
            case 2: answers[way] = pselect(0, NULL, NULL, NULL, &long_time, &open_set); break;
            default: answers[way] = epoll_pwait(epoll, &event, 1, 20000, &open_set);
            }
            if (answers[way] != -1 || errno != EINTR || got != number) die("signal %d, way %d: answer %d, got %d", number, way, answers[way], got);
            join(sender);
            CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, number));
        }
        close(epoll);
        /* A mask that blocks it: the call waits to its end, and the signal comes then. */
        unblock(number);
        sigset_t closed = set_of(number);
        struct timespec short_time = { 0, 60000000 };
        got = 0;
        pthread_t sender = start(send_soon, &number);
        int polled = ppoll(NULL, 0, &short_time, &closed);
        join(sender);
        say("signal %d: %d %d %d %d; with a mask that blocks it %d, got %d", number, answers[0], answers[1], answers[2], answers[3], polled, got == number);
    }
}

/* ------------------------------------------------------------------------------------------- twice */

static volatile int stop_flipping;

/* A thread whose mask changes all the time takes signals for the process that the kernel has woken another thread for. */
static void *flips(void *unused)
{
    (void)unused;
    sigset_t one = set_of(SIGUSR2);
    while (!stop_flipping) CHECK(pthread_sigmask(SIG_BLOCK, &one, NULL) == 0 && pthread_sigmask(SIG_UNBLOCK, &one, NULL) == 0);
    return NULL;
}

static void *sends_in_turn(void *number)
{
    for (int round = 0; round < 300; round++) {
        int seen = got_count;
        kill(getpid(), *(int *)number);
        for (int ms = 0; got_count == seen; ms++) {
            if (ms == 10000) die("signal %d, round %d: it has not come", *(int *)number, round);
            sleep_ms(1);
        }
    }
    return NULL;
}

/* Two of a kind wait, the thread's and the process's, and both come; and of many that another thread takes first none is lost. */
void section_twice(void)
{
    for (int i = 0; i < FOUR; i++) {
        int number = four[i];
        for (int ways = 0; ways < 4; ways++) {
            sigset_t open_set, pending;
            handle(number, count_it, ways & 1 ? SA_NODEFER : 0);
            block(number);
            CHECK(pthread_sigmask(SIG_SETMASK, NULL, &open_set) == 0);
            sigdelset(&open_set, number);
            got_count = 0;
            raise(number);
            kill(getpid(), number);
            int in_call = 0;
            if (ways & 2) {
                sigsuspend(&open_set);
                in_call = got_count;
            }
            CHECK(sigpending(&pending) == 0);
            int waits = sigismember(&pending, number);
            unblock(number);
            say("signal %d, way %d: %d in the call, then %d waits, %d in all", number, ways, in_call, waits, got_count);
        }
        /* The main thread alone has it open, and only while it waits. */
        struct epoll_event event;
        sigset_t open_set;
        int epoll = epoll_create1(EPOLL_CLOEXEC);
        handle(number, count_it, 0);
        block(number);
        CHECK(pthread_sigmask(SIG_SETMASK, NULL, &open_set) == 0);
        sigdelset(&open_set, number);
        stop_flipping = got_count = 0;
        pthread_t flipping = start(flips, NULL), sender = start(sends_in_turn, &number);
        while (got_count < 300) if (epoll_pwait(epoll, &event, 1, 10000, &open_set) != -1) die("signal %d: lost after %d", number, got_count);
        stop_flipping = 1;
        join(sender);
        join(flipping);
        close(epoll);
        unblock(number);
        say("signal %d: %d in turn", number, got_count);
    }
}

/* ------------------------------------------------------------------------------------------ waiting */

static void *wait_for(void *number)
{
    sigset_t set = set_of(*(int *)number);
    siginfo_t *info = fresh(sizeof *info);
    make_absent();
    int result = sigwaitinfo(&set, info);
    return (void *)(uintptr_t)(result == *(int *)number ? info->si_value.sival_int : -1);
}

static void interrupt(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    make_absent();
    got_count++;
}

void section_waiting(void)
{
    handle(SIGALRM, interrupt, 0);
    for (int i = 0; i < FOUR; i++) {
        int number = four[i];
        handle(number, note, 0);
        block(number);
        sigset_t set = set_of(number);
        siginfo_t *info = fresh(sizeof *info);
        struct timespec *soon = fresh(sizeof *soon);
        *soon = (struct timespec){ 0, 20000000 };
        got = 0;
        /* Sent before. */
        queue(number, 7);
        make_absent();
        int result = sigwaitinfo(&set, info);
        say("signal %d: %d, %s, value %d, sender %d", number, result, code_name(info->si_code), info->si_value.sival_int, info->si_pid == getpid());
        pthread_kill(pthread_self(), number);
        result = sigtimedwait(&set, info, soon);
        say("signal %d to the thread: %d, %s", number, result, code_name(info->si_code));
        make_absent();
        result = sigtimedwait(&set, info, soon);
        say("signal %d, none: %d %s", number, result, strerror(errno));
        /* Sent while another thread waits. */
        for (int round = 0; round < 5; round++) {
            pthread_t waiter = start(wait_for, &number);
            if (round % 2) sleep_ms(10);
            queue(number, 50 + round);
            CHECK((int)(uintptr_t)join(waiter) == 50 + round);
        }
        /* Another signal interrupts. */
        got_count = 0;
        /* Again, and not before the handler has ended: the first may come before the call. */
        struct itimerval often = { { 5, 0 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        result = sigwaitinfo(&set, info);
        int error = errno;
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
        say("signal %d, interrupted: %d %s, handlers %d; handled %d", number, result, strerror(error), got_count > 0, got);
        unblock(number);
    }
    /* A descriptor for signals, in the way of event loops. */
    sigset_t set = set_of(SIGUSR2);
    sigaddset(&set, SIGRTMIN + 1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    queue(SIGUSR2, 3);
    for (int i = 0; i < 20; i++) queue(SIGRTMIN + 1, 100 + i);
    struct signalfd_siginfo *records = fresh(32 * sizeof *records);
    make_absent();
    struct pollfd ready = { fd, POLLIN, 0 };
    CHECK(poll(&ready, 1, 1000) == 1);
    ssize_t n = read(fd, records, 32 * sizeof *records);
    int sum = 0;
    for (ssize_t i = 0; i < n / (ssize_t)sizeof *records; i++) sum += records[i].ssi_int * (int)(i + 1);
    say("signalfd: %zd records, sum %d", n / (ssize_t)sizeof *records, sum);
    close(fd);
}

/* ------------------------------------------------------------------------------------------ offered */

static volatile int open_now, finish;
static int offered;

static void *open_thread(void *unused)
{
    unblock(offered);
    open_now = 1;
    while (!finish) sleep_ms(1);
    return unused;
}

/* A signal for the process goes to a thread that has it unblocked, whichever that is; and waits if there is none. */
void section_offered(void)
{
    for (int i = 0; i < FOUR; i++) {
        offered = four[i];
        handle(offered, note, 0);
        block(offered);
        for (int late = 0; late < 2; late++) {
            open_now = finish = got = got_count = 0;
            pthread_t other;
            if (!late) {
                other = start(open_thread, NULL);
                while (!open_now) sleep_ms(1);
            }
            queue(offered, 9);
            for (int j = 0; j < (late ? 20 : 5000) && !got_count; j++) sleep_ms(1);
            int early = got_count;
            if (late) other = start(open_thread, NULL);
            for (int j = 0; j < 5000 && !got_count; j++) sleep_ms(1);
            say("signal %d %s: early %d, by the other thread %d, value %d", offered, late ? "before" : "after", early,
                pthread_equal(got_thread, other) != 0, got_value);
            finish = 1;
            join(other);
        }
        unblock(offered);
    }
}

/* ------------------------------------------------------------------------------------------- timers */

/* Each has memory of its own: a notification may still run when its timer is gone. */
static uint64_t *in_notify, *in_tick;

static void notify(union sigval value)
{
    if (!holds(in_notify, MIB, 33)) die("a timer's thread reads a wrong word");
    __atomic_fetch_add((volatile int *)value.sival_ptr, 1, __ATOMIC_RELAXED);
}

/* Shorter than the timer's period, or the program would get no further. */
static void tick(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    in_tick[(size_t)got_count * 512 % (MIB / 8)]++;
    got_code = info->si_code;
    got_value = info->si_value.sival_int;
    got_count++;
}

static void set_timer(timer_t timer, long nanoseconds)
{
    struct itimerspec every = { { 0, nanoseconds }, { 0, nanoseconds } };
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
}

void section_timers(void)
{
    in_notify = filled(MIB, 33);
    in_tick = filled(MIB, 34);
    volatile int *expired = fresh(sizeof *expired);
    struct sigevent *event = fresh(sizeof *event);
    *event = (struct sigevent){ .sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify, .sigev_value.sival_ptr = (void *)expired };
    timer_t *timer = fresh(sizeof *timer);
    make_absent();
    CHECK(timer_create(CLOCK_MONOTONIC, event, timer) == 0);
    set_timer(*timer, 3000000);
    while (__atomic_load_n(expired, __ATOMIC_RELAXED) < 20) make_absent();
    CHECK(timer_delete(*timer) == 0);
    say("SIGEV_THREAD ok");
    handle(SIGRTMIN + 2, tick, SA_RESTART);
    *event = (struct sigevent){ .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = 77 };
    make_absent();
    CHECK(timer_create(CLOCK_MONOTONIC, event, timer) == 0);
    got_count = 0;
    set_timer(*timer, 5000000);
    while (got_count < 20) make_absent();
    CHECK(timer_delete(*timer) == 0);
    say("SIGEV_SIGNAL: %s, value %d", code_name(got_code), got_value);
    block(SIGRTMIN + 2);
    *event = (struct sigevent){ .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 2 };
    event->_sigev_un._tid = (int)syscall(SYS_gettid);
    CHECK(timer_create(CLOCK_MONOTONIC, event, timer) == 0);
    set_timer(*timer, 2000000);
    sigset_t set = set_of(SIGRTMIN + 2);
    siginfo_t info;
    for (int i = 0; i < 10; i++) CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 2 && info.si_code == SI_TIMER);
    CHECK(timer_delete(*timer) == 0);
    say("SIGEV_THREAD_ID with sigwaitinfo ok");
}

/* ----------------------------------------------------------------------------------------- rawclone */

static volatile int child_word, child_mask;
static unsigned char *child_memory;

static int raw_child(void *argument)
{
    /* No libc that needs a thread of its own: bare calls. */
    uint64_t mask = 0;
    (void)argument;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8);
    child_mask = (int)((mask >> (SIGBUS - 1) & 1) | (mask >> (SIGSEGV - 1) & 1) << 1 | (mask >> (SIGUSR1 - 1) & 1) << 2);
    uint64_t sum = 0;
    for (size_t i = 0; i < MIB; i += PAGE) sum += child_memory[i];
    return (int)(sum & 63);
}

static int slow_child(void *argument)
{
    struct timespec t = { 0, 60000000 };
    (void)argument;
    syscall(SYS_nanosleep, &t, NULL);
    syscall(SYS_exit, 0);
    return 0;
}

/* A thread made by clone alone has its parent's mask. */
void section_rawclone(void)
{
    child_memory = filled(MIB, 34);
    uint64_t expected = 0;
    for (size_t i = 0; i < MIB; i += PAGE) expected += child_memory[i];
    sigset_t mask = set_of(SIGBUS), old;
    sigaddset(&mask, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &mask, &old) == 0);
    unsigned char *stack = filled(256 * 1024, 35);
    for (int i = 0; i < 3; i++) {
        make_absent();
        child_mask = -1;
        /* Its own files and signals, but our memory; its end is told like a process's. */
        int flags = i == 0 ? CLONE_VM | SIGCHLD : i == 1 ? CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD : CLONE_VM | CLONE_VFORK | SIGCHLD;
        pid_t pid = clone(raw_child, stack + 256 * 1024, flags, NULL);
        CHECK(pid > 0);
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid);
        say("clone %d: mask %d, %s", i, child_mask, WIFEXITED(status) && WEXITSTATUS(status) == (int)(expected & 63) ? "right sum" : "WRONG");
    }
    /* The kernel clears a word of ours at the thread's end, and wakes us. */
    volatile pid_t *word = fresh(sizeof *word);
    for (int i = 0; i < 3; i++) {
        *word = 1;
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_CHILD_CLEARTID;
        CHECK(clone(slow_child, stack + 256 * 1024, flags, NULL, NULL, NULL, (void *)word) > 0);
        make_absent();
        for (pid_t now; (now = *word) != 0;) syscall(SYS_futex, word, 0 /* FUTEX_WAIT */, now, NULL, NULL, 0);
    }
    say("3 threads have cleared their word");
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
}
