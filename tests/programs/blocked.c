/* Many threads that wait in system calls, and one that works.
 *
 *     blocked THREADS MIB         THREADS threads block, each in one of twelve kinds of call with buffers of 64 KiB; meanwhile
 *                                 MIB of memory are written and checked, over and over; then all threads get what they wait for
 *     blocked --busy THREADS      THREADS threads read and write a file in pieces of 1 MiB at the same time, and check
 *
 * What calls pin cannot be evicted. If every blocked call kept its buffers, or calls that are begun at the same time waited for
 * each other's pages, nothing would be left for the others. The output is the same natively and under Farshore. */
#include "common.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) die("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

enum { BUFFER = 64 * 1024, EVENTS = 5000, POLLED = 1000, PARTS = 4 };
enum kind { PIPE, STREAM, DATAGRAM, VECTOR, MESSAGE, POLL, EPOLL, SELECT, CONDITION, WORD, WRITER, SEMAPHORE, KINDS };

struct waiter {
    pthread_t thread;
    unsigned number;
    enum kind kind;
    int ends[2];
    int id;
    /* In managed memory: the buffer, and a page for the words. */
    unsigned char *buffer;
    struct words { pthread_mutex_t mutex; pthread_cond_t condition; int go; uint32_t word; } *words;
};

static unsigned count;
static volatile unsigned waiting;

static void fill(unsigned char *at, size_t length, uint64_t salt)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        memcpy(at + i, &word, length - i < 8 ? length - i : 8);
    }
}

static void check(const unsigned char *at, size_t length, uint64_t salt)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        CHECK(memcmp(at + i, &word, length - i < 8 ? length - i : 8) == 0);
    }
}

/* Reads on until so many bytes are there: how many come at a time is the kernel's business. */
static void read_all(int fd, unsigned char *at, size_t length)
{
    for (size_t have = 0; have < length;) {
        ssize_t n = read(fd, at + have, length - have);
        CHECK(n > 0);
        have += (size_t)n;
    }
}

static void wait_for_events(struct waiter *w)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x1122334455667788 };
    int fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, w->ends[0], &event) == 0);
    struct epoll_event *events = (struct epoll_event *)w->buffer;
    CHECK(epoll_wait(fd, events, EVENTS, -1) == 1 && events[0].data.u64 == event.data.u64);
    close(fd);
}

static void wait_by_poll(struct waiter *w)
{
    struct pollfd *polled = (struct pollfd *)w->buffer;
    for (int i = 0; i < POLLED; i++) polled[i] = (struct pollfd){ i == 700 ? w->ends[0] : -1, POLLIN, -1 };
    CHECK(poll(polled, POLLED, -1) == 1);
    for (int i = 0; i < POLLED; i++) CHECK(polled[i].revents == (i == 700 ? POLLIN : 0));
}

static void wait_by_select(struct waiter *w)
{
    fd_set *set = (fd_set *)(w->buffer + PAGE - 32);
    FD_ZERO(set);
    FD_SET(w->ends[0], set);
    CHECK(select(w->ends[0] + 1, set, NULL, NULL, NULL) == 1 && FD_ISSET(w->ends[0], set));
}

static void wait_for_parts(struct waiter *w)
{
    /* A pipe gives what it has: two writes of half a buffer may come in two reads. */
    struct iovec parts[PARTS];
    for (int i = 0; i < PARTS; i++) parts[i] = (struct iovec){ w->buffer + i * (BUFFER / PARTS), BUFFER / PARTS };
    ssize_t n = readv(w->ends[0], parts, PARTS);
    CHECK(n > 0);
    read_all(w->ends[0], w->buffer + n, BUFFER - (size_t)n);
}

static void wait_for_message(struct waiter *w)
{
    struct iovec part = { w->buffer, BUFFER };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    CHECK(recvmsg(w->ends[0], &message, 0) == BUFFER / 2 && message.msg_flags == 0);
}

static void wait_for_words(struct waiter *w)
{
    struct words *words = w->words;
    if (w->kind == WORD) {
        while (__atomic_load_n(&words->word, __ATOMIC_ACQUIRE) == 0) {
            long done = syscall(SYS_futex, &words->word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
            CHECK(done == 0 || errno == EAGAIN);
        }
        return;
    }
    CHECK(pthread_mutex_lock(&words->mutex) == 0);
    while (!words->go) CHECK(pthread_cond_wait(&words->condition, &words->mutex) == 0);
    CHECK(pthread_mutex_unlock(&words->mutex) == 0);
}

static void *run(void *argument)
{
    struct waiter *w = argument;
    __atomic_add_fetch(&waiting, 1, __ATOMIC_RELAXED);
    switch (w->kind) {
    case PIPE: read_all(w->ends[0], w->buffer, BUFFER); break;
    case STREAM: read_all(w->ends[0], w->buffer, BUFFER); break;
    case DATAGRAM: CHECK(recv(w->ends[0], w->buffer, BUFFER, 0) == BUFFER / 2); break;
    case VECTOR: wait_for_parts(w); break;
    case MESSAGE: wait_for_message(w); break;
    case POLL: wait_by_poll(w); break;
    case EPOLL: wait_for_events(w); break;
    case SELECT: wait_by_select(w); break;
    case CONDITION: case WORD: wait_for_words(w); break;
    /* Twice what a pipe holds: it is full long before the end. */
    case WRITER: CHECK(write(w->ends[1], w->buffer, 2 * BUFFER) == 2 * BUFFER); break;
    case SEMAPHORE: {
        struct sembuf *operation = (struct sembuf *)(w->buffer + PAGE - 3);
        *operation = (struct sembuf){ 0, -1, 0 };
        CHECK(semop(w->id, operation, 1) == 0);
        break;
    }
    default: break;
    }
    return NULL;
}

static void prepare(struct waiter *w, unsigned number)
{
    w->number = number;
    w->kind = number % KINDS;
    w->buffer = map_anonymous(2 * BUFFER);
    w->words = map_anonymous(2 * BUFFER);
    fill(w->buffer, 2 * BUFFER, number);
    pthread_mutex_init(&w->words->mutex, NULL);
    pthread_cond_init(&w->words->condition, NULL);
    int type = w->kind == DATAGRAM || w->kind == MESSAGE ? SOCK_SEQPACKET : SOCK_STREAM;
    if (w->kind == STREAM || w->kind == DATAGRAM || w->kind == MESSAGE) CHECK(socketpair(AF_UNIX, type, 0, w->ends) == 0);
    else if (w->kind == SEMAPHORE) CHECK((w->id = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    else if (w->kind != CONDITION && w->kind != WORD) CHECK(pipe(w->ends) == 0);
}

static void send_all(int fd, const unsigned char *at, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, at + done, length - done);
        CHECK(n > 0);
        done += (size_t)n;
    }
}

/* Gives a thread what it waits for. */
static void release(struct waiter *w)
{
    static unsigned char data[2 * BUFFER];
    fill(data, BUFFER, ~(uint64_t)w->number);
    switch (w->kind) {
    case DATAGRAM: case MESSAGE: CHECK(send(w->ends[1], data, BUFFER / 2, 0) == BUFFER / 2); break;
    case PIPE: case STREAM: case VECTOR: send_all(w->ends[1], data, BUFFER / 2); send_all(w->ends[1], data + BUFFER / 2, BUFFER / 2); break;
    case POLL: case EPOLL: case SELECT: send_all(w->ends[1], data, 1); break;
    case WORD:
        __atomic_store_n(&w->words->word, 1, __ATOMIC_RELEASE);
        CHECK(syscall(SYS_futex, &w->words->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0);
        break;
    case CONDITION:
        CHECK(pthread_mutex_lock(&w->words->mutex) == 0);
        w->words->go = 1;
        CHECK(pthread_cond_signal(&w->words->condition) == 0 && pthread_mutex_unlock(&w->words->mutex) == 0);
        break;
    case WRITER: read_all(w->ends[0], data, 2 * BUFFER); check(data, 2 * BUFFER, w->number); break;
    case SEMAPHORE: CHECK(semop(w->id, &(struct sembuf){ 0, 1, 0 }, 1) == 0); break;
    default: break;
    }
}

/* What a thread has received. */
static void inspect(struct waiter *w)
{
    switch (w->kind) {
    case PIPE: case STREAM: case VECTOR: check(w->buffer, BUFFER, ~(uint64_t)w->number); break;
    case DATAGRAM: case MESSAGE: check(w->buffer, BUFFER / 2, ~(uint64_t)w->number); break;
    case WRITER: check(w->buffer, 2 * BUFFER, w->number); break;
    default: break;
    }
    if (w->kind == SEMAPHORE) CHECK(semctl(w->id, 0, IPC_RMID) == 0);
}

/* Writes memory, a file, and checks both. */
static uint64_t work(size_t mib, int file)
{
    unsigned char *memory = map_anonymous(mib * MIB);
    uint64_t h = 0;
    for (unsigned round = 0; round < 3; round++) {
        fill(memory, mib * MIB, round);
        CHECK(pwrite(file, memory, 3 * MIB + 5, 0) == (ssize_t)(3 * MIB + 5));
        check(memory, mib * MIB, round);
        memset(memory, 0, 4 * MIB);
        CHECK(pread(file, memory, 3 * MIB + 5, 0) == (ssize_t)(3 * MIB + 5));
        check(memory, 3 * MIB, round);
        h = digest(h, memory, 3 * MIB + 5);
    }
    return h;
}

static int file_at(const char *name)
{
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && unlink(name) == 0);
    return fd;
}

static int blocked(size_t mib)
{
    struct rlimit limit = { 0, 0 };
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct waiter *waiters = map_anonymous((count * sizeof *waiters + PAGE) / PAGE * PAGE);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (unsigned i = 0; i < count; i++) {
        prepare(&waiters[i], i);
        int error = pthread_create(&waiters[i].thread, &small, run, &waiters[i]);
        if (error != 0) die("pthread_create: %s", strerror(error));
    }
    while (waiting < count) usleep(1000);
    usleep(100 * 1000);
    printf("%u threads wait\n", count);
    printf("work done: %016llx\n", (unsigned long long)work(mib, file_at("blocked-work")));
    fflush(stdout);
    for (unsigned i = 0; i < count; i++) release(&waiters[(i * 7) % count]);
    for (unsigned i = 0; i < count; i++) CHECK(pthread_join(waiters[i].thread, NULL) == 0);
    for (unsigned i = 0; i < count; i++) inspect(&waiters[i]);
    puts("all threads have what they waited for");
    return 0;
}

static int shared_file;
static pthread_barrier_t all;

static void *busy(void *argument)
{
    unsigned number = *(unsigned *)argument;
    unsigned char *buffer = map_anonymous(MIB);
    fill(buffer, MIB, number);
    for (unsigned round = 0; round < 4; round++) {
        /* All at one time: each has some of the pages that it wants when the others want theirs. */
        pthread_barrier_wait(&all);
        CHECK(pwrite(shared_file, buffer, MIB, (off_t)(number * MIB)) == (ssize_t)MIB);
        memset(buffer, 0, PAGE);
        pthread_barrier_wait(&all);
        CHECK(pread(shared_file, buffer, MIB, (off_t)(number * MIB)) == (ssize_t)MIB);
        check(buffer, MIB, number);
    }
    return NULL;
}

static int busy_threads(void)
{
    pthread_t *threads = calloc(count, sizeof *threads);
    unsigned *numbers = calloc(count, sizeof *numbers);
    CHECK(threads && numbers && pthread_barrier_init(&all, NULL, count) == 0);
    shared_file = file_at("blocked-shared");
    for (unsigned i = 0; i < count; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, busy, &numbers[i]) == 0);
    }
    for (unsigned i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%u threads have read what they wrote\n", count);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: blocked THREADS MIB | blocked --busy THREADS");
    if (strcmp(argv[1], "--busy") == 0) {
        count = (unsigned)atoi(argv[2]);
        return busy_threads();
    }
    count = (unsigned)atoi(argv[1]);
    return blocked((size_t)atoi(argv[2]));
}
