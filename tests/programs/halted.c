/* Threads of a program that fits at first, and what they do at the moment when it does not fit any more.
 *
 *     halted BALLAST_MIB SECTION   run one section
 *     halted --list                print the names of all sections
 *     halted --started ignored|blocked COMMAND…   run the command as a child of a program that ignores all signals, or blocks them
 *
 * Under Farshore the process is dormant until the ballast is mapped; then all threads stand still while it wakes. Nothing of that may
 * show: no call ends early, no byte is another one. The output and the end are the same natively and under Farshore. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CHECK(what) do { if (!(what)) die("%s, line %d: %s", section, __LINE__, #what); } while (0)

static const char *section;
static size_t ballast;
static atomic_int stop, ready;

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

/* More than the limit: the process wakes, and what was there before leaves. */
static void press(void)
{
    unsigned char *at = map(ballast);
    fill(at, ballast, 77);
    CHECK(holds(at, ballast, 77));
    CHECK(munmap(at, ballast) == 0);
}

static void nap(long microseconds)
{
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    CHECK(nanosleep(&time, NULL) == 0);
}

static pthread_t begin(void *(*work)(void *), void *with)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, with) == 0);
    return thread;
}

static void *end(pthread_t thread)
{
    void *answer;
    CHECK(pthread_join(thread, &answer) == 0);
    return answer;
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

static void *until_stopped(void *with)
{
    atomic_fetch_add(&ready, 1);
    while (!stop) nap(1000);
    return with;
}

/* What a program with threads that fits can see of itself. */
static void section_unseen(void)
{
    pthread_t threads[8];
    for (long i = 0; i < 8; i++) threads[i] = begin(until_stopped, (void *)i);
    while (ready < 8) nap(1000);
    for (int i = 0; i < 500; i++) {
        unsigned char *at = map(MIB);
        fill(at, MIB, i);
        CHECK(holds(at, MIB, i) && munmap(at, MIB) == 0);
    }
    say("tasks %d, high descriptors %d", entries("/proc/self/task", 0), entries("/proc/self/fd", 60));
    stop = 1;
    for (long i = 0; i < 8; i++) CHECK(end(threads[i]) == (void *)i);
}

/* A thread that waits in `call` while the process wakes: what the call answers, and whether it took its time. */
struct wait { const char *name; int (*call)(void); int timed; };

static int ends[2], sockets[2], epoll, queue, semaphores, file;
static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static const struct timespec SOON = { 0, 700000000 };

static struct timespec in_a_while(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_nsec += SOON.tv_nsec;
    if (time.tv_nsec >= 1000000000) time.tv_sec++, time.tv_nsec -= 1000000000;
    return time;
}

static int in_nanosleep(void) { struct timespec left; return nanosleep(&SOON, &left); }
static int in_clock_nanosleep(void) { struct timespec until = in_a_while(); return clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL); }
static int in_poll(void) { struct pollfd one = { ends[0], POLLIN, 0 }; return poll(&one, 1, 700); }
static int in_ppoll(void) { struct pollfd one = { ends[0], POLLIN, 0 }; return ppoll(&one, 1, &SOON, NULL); }
static int in_select(void) { struct timeval time = { 0, 700000 }; return select(0, NULL, NULL, NULL, &time); }
static int in_pselect(void) { return pselect(0, NULL, NULL, NULL, &SOON, NULL); }
static int in_epoll(void) { struct epoll_event event; return epoll_wait(epoll, &event, 1, 700); }
static int in_epoll_pwait(void) { struct epoll_event event; sigset_t none; sigemptyset(&none); return epoll_pwait(epoll, &event, 1, 700, &none); }
static int in_epoll_forever(void) { struct epoll_event event; return epoll_wait(epoll, &event, 1, -1); }
static int in_sem(void) { struct timespec until = in_a_while(); return sem_timedwait(&semaphore, &until); }
static int in_cond(void)
{
    struct timespec until = in_a_while();
    pthread_mutex_lock(&mutex);
    int answer = pthread_cond_timedwait(&condition, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    errno = answer;
    return -1;
}
static int in_futex(void) { int word = 0; return (int)syscall(SYS_futex, &word, 0, 0, &SOON, NULL, 0); }
static int in_semop(void) { struct sembuf down = { 0, -1, 0 }; return semtimedop(semaphores, &down, 1, &SOON); }
static int in_sigwait(void) { sigset_t one; sigemptyset(&one); sigaddset(&one, SIGUSR2); return sigtimedwait(&one, NULL, &SOON); }
static int in_recv(void) { char byte; return (int)recv(sockets[0], &byte, 1, 0); }
static int in_msgrcv(void) { struct { long kind; char text[8]; } message; return (int)msgrcv(queue, &message, 8, 0, 0); }
static int in_read(void) { char bytes[4]; return (int)read(ends[0], bytes, 4); }
static int in_flock(void) { int other = open("/proc/self/exe", O_RDONLY), answer = flock(other, LOCK_EX); close(other); return answer; }

static const struct wait WAITS[] = {
    { "nanosleep", in_nanosleep, 1 }, { "clock_nanosleep", in_clock_nanosleep, 1 }, { "poll", in_poll, 1 }, { "ppoll", in_ppoll, 1 },
    { "select", in_select, 1 }, { "pselect", in_pselect, 1 }, { "epoll_wait", in_epoll, 1 }, { "epoll_pwait", in_epoll_pwait, 1 },
    { "sem_timedwait", in_sem, 1 }, { "pthread_cond_timedwait", in_cond, 1 }, { "futex", in_futex, 1 }, { "semtimedop", in_semop, 1 },
    { "sigtimedwait", in_sigwait, 1 }, { "recv with a time", in_recv, 1 },
    { "epoll_wait for ever", in_epoll_forever, 0 }, { "msgrcv", in_msgrcv, 0 }, { "read", in_read, 0 }, { "flock", in_flock, 0 },
};
enum { WAIT_COUNT = sizeof WAITS / sizeof *WAITS };
static struct { int answer, error; uint64_t took; } answers[WAIT_COUNT];

static void *in_wait(void *with)
{
    long which = (long)with;
    uint64_t start = now_ns();
    atomic_fetch_add(&ready, 1);
    answers[which].answer = WAITS[which].call();
    answers[which].error = errno;
    answers[which].took = now_ns() - start;
    return with;
}

static void section_waits(void)
{
    struct timeval time = { 0, 700000 };
    sigset_t one;
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && (epoll = epoll_create1(0)) >= 0);
    CHECK(setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK((queue = msgget(IPC_PRIVATE, 0600)) >= 0 && (semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0 && sem_init(&semaphore, 0, 0) == 0);
    CHECK((file = open("/proc/self/exe", O_RDONLY)) >= 0 && flock(file, LOCK_EX) == 0);
    struct epoll_event event = { EPOLLIN, { 0 } };
    int other[2];
    CHECK(pipe(other) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, other[0], &event) == 0);
    sigemptyset(&one), sigaddset(&one, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &one, NULL) == 0);
    pthread_t threads[WAIT_COUNT];
    for (long i = 0; i < WAIT_COUNT; i++) threads[i] = begin(in_wait, (void *)i);
    while (ready < WAIT_COUNT) nap(1000);
    nap(100000);
    press();
    nap(900000);
    CHECK(write(other[1], "x", 1) == 1 && write(ends[1], "four", 4) == 4 && flock(file, LOCK_UN) == 0);
    struct { long kind; char text[8]; } message = { 1, "message" };
    CHECK(msgsnd(queue, &message, 8, 0) == 0);
    for (long i = 0; i < WAIT_COUNT; i++) end(threads[i]);
    CHECK(msgctl(queue, IPC_RMID, NULL) == 0 && semctl(semaphores, 0, IPC_RMID) == 0);
    for (int i = 0; i < WAIT_COUNT; i++) {
        const char *error = answers[i].answer < 0 ? strerror(answers[i].error) : "no error";
        say("%s %d, %s, in time %d", WAITS[i].name, answers[i].answer, error, !WAITS[i].timed || answers[i].took > 600000000);
    }
}

/* What threads do while the process wakes. */
static unsigned char *shared;
enum { SHARED = 4 * MIB };

static void *computes(void *with)
{
    unsigned long seed = (unsigned long)with;
    unsigned char *own = map(256 * 1024);
    for (unsigned long round = 0; !stop || round < 2; round++) {
        fill(own, 256 * 1024, seed + round);
        CHECK(holds(own, 256 * 1024, seed + round));
        CHECK(holds(shared + seed % 64 * PAGE, PAGE, 5 + seed % 64));
    }
    return with;
}

static void *maps(void *with)
{
    while (!stop) {
        unsigned char *at = map(256 * 1024);
        fill(at, 256 * 1024, 9);
        at = mremap(at, 256 * 1024, 512 * 1024, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED && holds(at, 256 * 1024, 9) && at[300000] == 0);
        CHECK(mprotect(at, PAGE, PROT_READ) == 0 && madvise(at + PAGE, PAGE, MADV_DONTNEED) == 0 && at[PAGE] == 0);
        CHECK(munmap(at, 512 * 1024) == 0);
    }
    return with;
}

static void *allocates(void *with)
{
    unsigned char *pieces[64] = { NULL };
    for (unsigned i = 0; !stop; i++) {
        unsigned char **piece = &pieces[i * 7 % 64];
        size_t bytes = (i * 2654435761u >> 8) % 60000 + 1;
        if (*piece) CHECK((*piece)[0] == (unsigned char)(uintptr_t)*piece);
        free(*piece);
        CHECK((*piece = malloc(bytes)) != NULL);
        memset(*piece, (unsigned char)(uintptr_t)*piece, bytes);
    }
    for (int i = 0; i < 64; i++) free(pieces[i]);
    return with;
}

static void *sleeps(void *with)
{
    while (!stop) {
        struct pollfd none = { .fd = -1 };
        nap(300);
        CHECK(poll(&none, 1, 1) == 0);
        CHECK(syscall(SYS_gettid) > 0);
    }
    return with;
}

static void *ends_at_once(void *with) { return with; }

static void *makes_threads(void *with)
{
    while (!stop) CHECK(end(begin(ends_at_once, with)) == with);
    return with;
}

static void *talks(void *with)
{
    int pair[2];
    unsigned char *bytes = map(256 * 1024), *back = map(256 * 1024);
    CHECK(pipe(pair) == 0);
    fill(bytes, 256 * 1024, 3);
    while (!stop) {
        for (size_t at = 0; at < 256 * 1024; at += 32768) {
            CHECK(write(pair[1], bytes + at, 32768) == 32768);
            for (size_t got = 0; got < 32768;) {
                ssize_t more = read(pair[0], back + at + got, 32768 - got);
                CHECK(more > 0);
                got += (size_t)more;
            }
        }
        CHECK(holds(back, 256 * 1024, 3));
        memset(back, 0, 256 * 1024);
    }
    return with;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long guarded[2];

static void *locks(void *with)
{
    while (!stop) {
        pthread_mutex_lock(&lock);
        CHECK(guarded[0] == guarded[1]);
        guarded[0]++;
        sched_yield();
        guarded[1]++;
        pthread_mutex_unlock(&lock);
    }
    return with;
}

static atomic_int handled;
static void on_signal(int number) { (void)number; handled++; }

/* Handlers that run natively when the process wakes, on threads that are about to stand still. */
static void *is_signalled(void *with)
{
    stack_t stack = { .ss_sp = malloc(65536), .ss_size = 65536 };
    CHECK(sigaltstack(&stack, NULL) == 0);
    while (!stop) {
        unsigned char *at = map(256 * 1024);
        at[5] = 6;
        CHECK(at[5] == 6 && munmap(at, 256 * 1024) == 0);
    }
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == stack.ss_sp && now.ss_size == 65536 && now.ss_flags == 0);
    return with;
}

static void *(*const KINDS[])(void *) = { computes, maps, allocates, sleeps, makes_threads, talks, locks, is_signalled };
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static void storm(int each, long before)
{
    int count = each * KIND_COUNT;
    pthread_t threads[64];
    shared = map(SHARED);
    for (unsigned i = 0; i < 64; i++) fill(shared + i * PAGE, PAGE, 5 + i);
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (long i = 0; i < count; i++) threads[i] = begin(KINDS[i % KIND_COUNT], (void *)i);
    uint64_t start = now_ns();
    while (now_ns() - start < (uint64_t)before * 1000) CHECK(pthread_kill(threads[KIND_COUNT - 1], SIGUSR1) == 0);
    unsigned char *at = map(ballast);
    for (size_t i = 0; i < ballast; i += PAGE) {
        at[i] = (unsigned char)(i / PAGE);
        if (i % MIB == 0) CHECK(pthread_kill(threads[KIND_COUNT - 1], SIGUSR1) == 0);
    }
    for (size_t i = 0; i < ballast; i += PAGE) CHECK(at[i] == (unsigned char)(i / PAGE));
    stop = 1;
    for (long i = 0; i < count; i++) CHECK(end(threads[i]) == (void *)i);
    CHECK(guarded[0] == guarded[1] && handled > 0);
    for (unsigned i = 0; i < 64; i++) CHECK(holds(shared + i * PAGE, PAGE, 5 + i));
}

static void section_storm(void)
{
    storm(1, 30000);
    say("bytes 1");
}

static void section_crowd(void)
{
    storm(4, 50000);
    say("bytes 1");
}

/* The wake comes early, in the middle of the threads' beginning. */
static void section_early(void)
{
    storm(3, 0);
    say("bytes 1");
}

/* Several threads find at one time that it does not fit. */
static void *presses(void *with)
{
    press();
    return with;
}

static void section_race(void)
{
    pthread_t threads[6];
    ballast /= 2;
    for (long i = 0; i < 6; i++) threads[i] = begin(presses, (void *)i);
    for (long i = 0; i < 6; i++) CHECK(end(threads[i]) == (void *)i);
    say("bytes 1");
}

/* A thread that is not the main one maps, asks for a fork, runs a program. */
static void *forks(void *with)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(holds(shared, PAGE, 5));
        _exit(3);
    }
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    FILE *said = popen("echo spoken", "r");
    char word[16];
    CHECK(said && fgets(word, sizeof word, said) && strcmp(word, "spoken\n") == 0 && pclose(said) == 0);
    return with;
}

static void section_fork(void)
{
    shared = map(SHARED);
    fill(shared, PAGE, 5);
    pthread_t other = begin(until_stopped, NULL);
    CHECK(end(begin(forks, &shared)) == &shared);
    stop = 1;
    end(other);
    press();
    CHECK(holds(shared, PAGE, 5));
    say("bytes 1");
}

/* The main thread ends first: it stays in the list of threads, and never stands still. */
static pthread_t main_thread;

static void *outlives(void *with)
{
    CHECK(pthread_join(main_thread, NULL) == 0);
    nap(20000);
    press();
    CHECK(holds(shared, SHARED, 12));
    say("bytes 1");
    say("done");
    exit(0);
    return with;
}

static void section_leader(void)
{
    main_thread = pthread_self();
    shared = map(SHARED);
    fill(shared, SHARED, 12);
    begin(outlives, NULL);
    pthread_exit(NULL);
}

/* The last thread ends by itself. */
static void *is_last(void *with)
{
    CHECK(pthread_join(main_thread, NULL) == 0);
    say("last");
    return with;
}

static void section_last(void)
{
    main_thread = pthread_self();
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    CHECK(pthread_create(&thread, &attributes, is_last, NULL) == 0);
    pthread_exit(NULL);
}

/* A thread that lets no signal in, not even libc's own. */
static void *lets_nothing_in(void *with)
{
    uint64_t all = UINT64_MAX, before;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, 8) == 0);
    atomic_fetch_add(&ready, 1);
    uint64_t start = now_ns();
    while (now_ns() - start < 2500000000) {}
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8) == 0);
    while (!stop) nap(1000);
    return with;
}

static void section_deaf(void)
{
    shared = map(SHARED);
    fill(shared, SHARED, 13);
    pthread_t thread = begin(lets_nothing_in, &ready);
    while (!ready) nap(1000);
    uint64_t start = now_ns();
    press();
    say("not for ever %d", now_ns() - start < 30000000000);
    nap(2000000);
    press();
    CHECK(holds(shared, SHARED, 13));
    stop = 1;
    CHECK(end(thread) == &ready);
    say("bytes 1");
}

/* Stacks that the program has made itself: they are memory like any other when the process is awake. */
static void section_ownstack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack = map(MIB);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, MIB) == 0);
    CHECK(pthread_create(&thread, &attributes, until_stopped, &stop) == 0);
    while (!ready) nap(1000);
    for (int round = 0; round < 3; round++) press();
    stop = 1;
    CHECK(end(thread) == &stop);
    say("bytes 1");
}

/* Cancelled in a call, and libc's signals from then on. */
static void *is_cancelled(void *with)
{
    char byte;
    atomic_fetch_add(&ready, 1);
    CHECK(read(ends[0], &byte, 1) == 0);
    return with;
}

static void section_cancel(void)
{
    CHECK(pipe(ends) == 0);
    shared = map(SHARED);
    fill(shared, SHARED, 14);
    pthread_t one = begin(is_cancelled, NULL), two = begin(is_cancelled, NULL);
    while (ready < 2) nap(1000);
    nap(20000);
    CHECK(pthread_cancel(one) == 0 && end(one) == PTHREAD_CANCELED);
    press();
    CHECK(pthread_cancel(two) == 0 && end(two) == PTHREAD_CANCELED);
    CHECK(holds(shared, SHARED, 14) && setuid(getuid()) == 0);
    say("bytes 1");
}

/* libc's own signal comes from somebody: what a program started so does natively. */
static void section_stray(void)
{
    pthread_t thread = begin(until_stopped, &ready);
    while (ready < 1) nap(1000);
    CHECK(kill(getpid(), 32) == 0);
    stop = 1;
    CHECK(end(thread) == &ready);
    say("alive, high descriptors %d", entries("/proc/self/fd", 60));
}

static void start_with(const char *how, char **command)
{
    const unsigned long all = ~0UL, ignore[4] = { 1 };
    if (strcmp(how, "blocked") == 0) syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    else for (int signal = 32; signal <= 64; signal++) syscall(SYS_rt_sigaction, signal, ignore, NULL, 8);
    execvp(command[0], command);
    die("%s cannot be run", command[0]);
}

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "threads-unseen", section_unseen }, { "threads-waits", section_waits }, { "threads-storm", section_storm }, { "threads-crowd", section_crowd },
    { "threads-early", section_early }, { "threads-race", section_race }, { "threads-fork", section_fork }, { "threads-leader", section_leader },
    { "threads-last", section_last }, { "threads-deaf", section_deaf }, { "threads-ownstack", section_ownstack }, { "threads-cancel", section_cancel },
    { "threads-stray", section_stray },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc > 3 && strcmp(argv[1], "--started") == 0) start_with(argv[2], argv + 3);
    if (argc != 3) die("usage: halted BALLAST_MIB SECTION | halted --list | halted --started ignored|blocked COMMAND…");
    ballast = strtoul(argv[1], NULL, 10) * MIB;
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
