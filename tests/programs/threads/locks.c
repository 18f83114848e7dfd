/* Mutexes, conditions, semaphores, barriers and read-write locks in memory that is absent when the kernel looks at their words. */
#include "threads.h"
#include <stdatomic.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { THREADS = 4, ROUNDS = 1500 };

struct all {
    pthread_mutex_t mutex;
    char apart1[8192];
    pthread_cond_t condition;
    char apart2[8192];
    sem_t semaphore;
    char apart3[8192];
    pthread_barrier_t barrier;
    char apart4[8192];
    pthread_rwlock_t rwlock;
    char apart5[8192];
    pthread_spinlock_t spin;
    char apart6[8192];
    volatile uint64_t counter, spun, turn, readers;
};

static struct all *all;

static void *use_mutex(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        int error = pthread_mutex_lock(&all->mutex);
        if (error != 0) die("pthread_mutex_lock: %s", strerror(error));
        all->counter++;
        if (i % 64 == 0) sched_yield();
        CHECK(pthread_mutex_unlock(&all->mutex) == 0);
    }
    return unused;
}

static void *use_condition(void *argument)
{
    uint64_t me = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < 100; i++) {
        CHECK(pthread_mutex_lock(&all->mutex) == 0);
        while (all->turn % THREADS != me) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 60;
            int error = i % 2 ? pthread_cond_wait(&all->condition, &all->mutex) : pthread_cond_timedwait(&all->condition, &all->mutex, &until);
            if (error != 0) die("pthread_cond_wait: %s", strerror(error));
        }
        all->turn++;
        all->counter += me;
        CHECK(pthread_cond_broadcast(&all->condition) == 0);
        CHECK(pthread_mutex_unlock(&all->mutex) == 0);
    }
    return NULL;
}

static void *use_rest(void *argument)
{
    uint64_t me = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < 150; i++) {
        CHECK(sem_wait(&all->semaphore) == 0);
        CHECK(pthread_spin_lock(&all->spin) == 0);
        all->spun++;
        CHECK(pthread_spin_unlock(&all->spin) == 0);
        CHECK(sem_post(&all->semaphore) == 0);
        if (me == 0 || i % 8 == 0) {
            CHECK(pthread_rwlock_wrlock(&all->rwlock) == 0);
            all->counter++;
        } else {
            CHECK(pthread_rwlock_rdlock(&all->rwlock) == 0);
            all->readers += all->counter & 0;
        }
        CHECK(pthread_rwlock_unlock(&all->rwlock) == 0);
        if (i % 10 == 0) {
            int last = pthread_barrier_wait(&all->barrier);
            if (last != 0 && last != PTHREAD_BARRIER_SERIAL_THREAD) die("pthread_barrier_wait: %s", strerror(last));
        }
    }
    return NULL;
}

static void run_all(void *(*body)(void *), int count)
{
    pthread_t threads[16];
    for (int i = 0; i < count; i++) threads[i] = start(body, (void *)(uintptr_t)i);
    for (int i = 0; i < count; i++) join(threads[i]);
}

static void init_all(const pthread_mutexattr_t *attributes, int shared)
{
    pthread_condattr_t condition;
    CHECK(pthread_condattr_init(&condition) == 0 && pthread_condattr_setpshared(&condition, shared) == 0);
    CHECK(pthread_mutex_init(&all->mutex, attributes) == 0 && pthread_cond_init(&all->condition, &condition) == 0);
    CHECK(sem_init(&all->semaphore, shared, 2) == 0 && pthread_barrier_init(&all->barrier, NULL, THREADS) == 0);
    CHECK(pthread_rwlock_init(&all->rwlock, NULL) == 0 && pthread_spin_init(&all->spin, shared) == 0);
    all->counter = all->turn = all->spun = 0;
}

void section_locks(void)
{
    static const struct { const char *name; int type, protocol, robust, shared; } kinds[] = {
        { "plain", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 0 }, { "recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, 0, 0 },
        { "inheriting", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 0 }, { "robust", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, 1, 0 },
        { "robust inheriting", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 1, 0 }, { "shared", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, 0, 1 },
        { "shared inheriting", PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, 0, 1 },
    };
    churn_start();
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        /* In a mapping, and on the heap. */
        all = k % 2 ? malloc(sizeof *all) : fresh(sizeof *all);
        pthread_mutexattr_t attributes;
        CHECK(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_settype(&attributes, kinds[k].type) == 0);
        CHECK(pthread_mutexattr_setprotocol(&attributes, kinds[k].protocol) == 0);
        if (kinds[k].robust) CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
        if (kinds[k].shared) CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
        init_all(&attributes, kinds[k].shared);
        run_all(use_mutex, THREADS);
        uint64_t counted = all->counter;
        all->counter = 0;
        run_all(use_condition, THREADS);
        uint64_t turns = all->turn, sum = all->counter;
        all->counter = 0;
        run_all(use_rest, THREADS);
        say("%s: %llu, turns %llu, sum %llu, rest %llu", kinds[k].name, (unsigned long long)counted, (unsigned long long)turns,
            (unsigned long long)sum, (unsigned long long)(all->counter * 1000 + all->spun));
    }
    churn_stop();
}

/* ------------------------------------------------------------------------------------------- robust */

static pthread_mutex_t *robust[64];

static void *dies_with_locks(void *unused)
{
    for (int i = 0; i < 64; i++) CHECK(pthread_mutex_lock(robust[i]) == 0);
    make_absent();
    return unused;
}

static void *waits_for_lock(void *argument)
{
    int error = pthread_mutex_lock(argument);
    if (error == EOWNERDEAD) CHECK(pthread_mutex_consistent(argument) == 0 && pthread_mutex_unlock(argument) == 0);
    return (void *)(uintptr_t)error;
}

static void *holds_for_a_while(void *argument)
{
    CHECK(pthread_mutex_lock(argument) == 0);
    sleep_ms(60);
    make_absent();
    return NULL;
}

/* The kernel walks the list of a thread that died, through words on pages that are absent. */
void section_robust(void)
{
    unsigned char *memory = fresh(4 * MIB);
    for (int inherit = 0; inherit < 2; inherit++) {
        pthread_mutexattr_t attributes;
        CHECK(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
        CHECK(pthread_mutexattr_setprotocol(&attributes, inherit ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE) == 0);
        for (int i = 0; i < 64; i++) {
            robust[i] = (pthread_mutex_t *)(memory + (size_t)i * 16 * PAGE);
            CHECK(pthread_mutex_init(robust[i], &attributes) == 0);
        }
        join(start(dies_with_locks, NULL));
        int dead = 0;
        for (int i = 0; i < 64; i++) {
            dead += pthread_mutex_lock(robust[i]) == EOWNERDEAD;
            CHECK(pthread_mutex_consistent(robust[i]) == 0 && pthread_mutex_unlock(robust[i]) == 0);
        }
        /* Somebody is waiting when the owner dies. */
        pthread_t owner = start(holds_for_a_while, robust[0]);
        sleep_ms(20);
        pthread_t waiters[3];
        for (int i = 0; i < 3; i++) waiters[i] = start(waits_for_lock, robust[0]);
        join(owner);
        int told = 0;
        for (int i = 0; i < 3; i++) told += (int)(uintptr_t)join(waiters[i]) == EOWNERDEAD;
        say("%s: %d of 64 owners died, %d waiters were told", inherit ? "inheriting" : "plain", dead, told);
    }
}

/* --------------------------------------------------------------------------------------- wild lists */

struct entry {
    struct robust_list list;
    uint32_t word;
};

/* Where a list leads whose third entry is wild: the numbers of the list it ends in. */
enum wild { UNMAPPED, UNALIGNED, KERNEL, ITSELF, NO_ACCESS, NULL_NEXT, WILD_PENDING, WILD_OFFSET, WILD_HEAD, KINDS };

struct wild_list {
    enum wild kind;
    unsigned char *memory;
};

static void *ends_with_wild_list(void *argument)
{
    struct wild_list *wild = argument;
    unsigned char *memory = wild->memory;
    struct robust_list_head *head = (struct robust_list_head *)memory;
    struct entry *entries[3];
    for (int i = 0; i < 3; i++) {
        entries[i] = (struct entry *)(memory + (size_t)(i + 1) * 16 * PAGE);
        entries[i]->word = (uint32_t)syscall(SYS_gettid);
    }
    head->list.next = &entries[0]->list;
    head->futex_offset = (long)offsetof(struct entry, word);
    head->list_op_pending = NULL;
    entries[0]->list.next = &entries[1]->list;
    entries[1]->list.next = &entries[2]->list;
    entries[2]->list.next = &head->list;
    void *gone = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct robust_list **next = &entries[1]->list.next;
    switch (wild->kind) {
    case UNMAPPED: munmap(gone, PAGE); *next = gone; break;
    case UNALIGNED: *next = (struct robust_list *)((char *)entries[2] + 2); break;
    case KERNEL: *next = (struct robust_list *)0xffff800000000000; break;
    case ITSELF: *next = &entries[1]->list; break;
    case NO_ACCESS: *next = gone; break;
    case NULL_NEXT: *next = NULL; break;
    case WILD_PENDING: head->list_op_pending = (struct robust_list *)0x10; break;
    case WILD_OFFSET: head->futex_offset = (long)0x7000000000000000; break;
    case WILD_HEAD: munmap(gone, PAGE); head = gone; break;
    case KINDS: break;
    }
    CHECK(syscall(SYS_set_robust_list, head, sizeof *head) == 0);
    make_absent();
    return NULL;
}

/* A thread ends with a list that leads astray: what comes before that is given up, the rest is left alone, and nobody else is hurt. */
void section_wild_lists(void)
{
    static const char *names[] = { "unmapped", "unaligned", "kernel", "itself", "no access", "null", "pending", "offset", "head" };
    for (int kind = 0; kind < KINDS; kind++) {
        struct wild_list wild = { kind, fresh(4 * 16 * PAGE) };
        join(start(ends_with_wild_list, &wild));
        char marks[4] = "";
        for (int i = 0; i < 3; i++) {
            uint32_t word = ((struct entry *)(wild.memory + (size_t)(i + 1) * 16 * PAGE))->word;
            marks[i] = (word & FUTEX_OWNER_DIED) != 0 ? 'd' : word != 0 ? 'h' : '?';
        }
        say("%s: %s", names[kind], marks);
    }
}

/* ------------------------------------------------------------------------------------------ inherit */

static long futex(uint32_t *word, int operation, uint32_t value, void *time, uint32_t *other, uint32_t value3)
{
    return syscall(SYS_futex, word, operation, value, time, other, value3);
}

static uint32_t *words;
static volatile int asleep;

static void *wait_requeue(void *unused)
{
    struct timespec *until = fresh(sizeof *until);
    clock_gettime(CLOCK_MONOTONIC, until);
    until->tv_sec += 60;
    __atomic_fetch_add(&asleep, 1, __ATOMIC_RELAXED);
    long result = futex(words, FUTEX_WAIT_REQUEUE_PI_PRIVATE, 0, until, words + 4096, 0);
    if (result != 0) die("FUTEX_WAIT_REQUEUE_PI");
    words[8192]++;
    CHECK(futex(words + 4096, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    return unused;
}

static void *wait_plain(void *argument)
{
    __atomic_fetch_add(&asleep, 1, __ATOMIC_RELAXED);
    long result = futex(words, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, (uint32_t)(uintptr_t)argument);
    if (result != 0 && errno != EAGAIN) die("FUTEX_WAIT_BITSET");
    __atomic_fetch_add(words + 8192, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* The kernel's own locks, each operation with its words absent. */
void section_inherit(void)
{
    words = fresh(MIB);
    memset(words, 0, MIB);
    make_absent();
    CHECK(futex(words + 4096, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    say("locked by us: %d", (words[4096] & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) threads[i] = start(wait_requeue, NULL);
    while (asleep < 4) sleep_ms(1);
    sleep_ms(50);
    make_absent();
    long moved = futex(words, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, (void *)(uintptr_t)100, words + 4096, 0);
    make_absent();
    CHECK(futex(words + 4096, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    for (int i = 0; i < 4; i++) join(threads[i]);
    say("requeued %ld, all have had it %u, word %u", moved, words[8192], words[4096]);
    make_absent();
    CHECK(futex(words + 4096, FUTEX_TRYLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    make_absent();
    CHECK(futex(words + 4096, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == 0);
    words[8192] = 0;
    asleep = 0;
    for (int i = 0; i < 4; i++) threads[i] = start(wait_plain, (void *)(uintptr_t)(i < 2 ? 1 : 6));
    while (asleep < 4) sleep_ms(1);
    sleep_ms(50);
    make_absent();
    long woken = futex(words, FUTEX_WAKE_BITSET_PRIVATE, 1, NULL, NULL, 2);
    make_absent();
    moved = futex(words, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)(uintptr_t)1, words + 2048, 0);
    say("woken %ld, requeued %ld", woken, moved);
    make_absent();
    /* words[2048] becomes 5, and since it was 0 its waiters are woken too. */
    long both = futex(words, FUTEX_WAKE_OP_PRIVATE, 10, (void *)(uintptr_t)10, words + 2048, FUTEX_OP(FUTEX_OP_SET, 5, FUTEX_OP_CMP_EQ, 0));
    for (int i = 0; i < 4; i++) join(threads[i]);
    say("wake by operation %ld, word %u", both, words[2048]);
    long wild = futex((uint32_t *)64, FUTEX_WAIT, 0, NULL, NULL, 0);
    say("on memory that is not there: %ld %s", wild, strerror(errno));
}

/* ------------------------------------------------------------------------------------------- shared */

struct between {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    sem_t semaphore;
    uint64_t counter;
};

/* Between processes, in memory that both have mapped: a child that dies with the mutex. */
void section_shared(void)
{
    struct between *both = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(both != MAP_FAILED);
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 && pthread_mutex_init(&both->mutex, &attributes) == 0);
    CHECK(sem_init(&both->semaphore, 1, 0) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < 1000; i++) {
            if (pthread_mutex_lock(&both->mutex) != 0) _exit(9);
            both->counter++;
            if (i == 999) {
                sem_post(&both->semaphore);
                _exit(3);
            }
            pthread_mutex_unlock(&both->mutex);
        }
    }
    for (int i = 0; i < 500; i++) {
        int error = pthread_mutex_lock(&both->mutex);
        if (error == EOWNERDEAD) {
            CHECK(pthread_mutex_consistent(&both->mutex) == 0);
        } else {
            CHECK(error == 0);
        }
        both->counter++;
        CHECK(pthread_mutex_unlock(&both->mutex) == 0);
    }
    CHECK(sem_wait(&both->semaphore) == 0);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    int error = pthread_mutex_lock(&both->mutex);
    if (error == EOWNERDEAD) CHECK(pthread_mutex_consistent(&both->mutex) == 0);
    say("counter %llu", (unsigned long long)both->counter);
}

static pthread_mutex_t undisturbed;
static atomic_int inside;
static atomic_int signals;

static void on_usr1(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
    signals++;
}

static void *holds_a_while(void *with)
{
    CHECK(pthread_mutex_lock(&undisturbed) == 0);
    inside = 1;
    sleep_ms(600);
    inside = 0;
    CHECK(pthread_mutex_unlock(&undisturbed) == 0);
    return with;
}

static void *signals_often(void *thread)
{
    for (int i = 0; i < 10; i++) {
        sleep_ms(30);
        CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
    }
    return thread;
}

/* A lock that no handler ends, although the kernel makes the call again behind each. */
void section_undisturbed(void)
{
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0 && pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
    CHECK(pthread_mutex_init(&undisturbed, &attributes) == 0);
    handle(SIGUSR1, on_usr1, 0);
    make_absent();
    pthread_t self = pthread_self(), holder = start(holds_a_while, NULL);
    while (!inside) sleep_ms(1);
    pthread_t other = start(signals_often, &self);
    CHECK(pthread_mutex_lock(&undisturbed) == 0);
    say("locked, with the other inside: %d, signals came: %d", (int)inside, signals > 0);
    join(holder);
    join(other);
    CHECK(pthread_mutex_unlock(&undisturbed) == 0);
}
