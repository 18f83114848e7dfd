/* Memory that a process unmaps before it forks, and that its child maps again at the same place: its pages leave there as anywhere. Other
 * threads of the parent have read into it and sleep. */
#include "threads.h"
#include <fcntl.h>
#include <sys/wait.h>

enum { READERS = 8 };

static unsigned char *const PLACE = (unsigned char *)0x100000000000;
static const size_t SIZE = 16 * MIB;
static int zeros;
static pthread_barrier_t begun, over;

static void work(uint64_t seed)
{
    CHECK(mmap(PLACE, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == PLACE);
    for (int round = 0; round < 2; round++) {
        fill(PLACE, SIZE, seed);
        CHECK(holds(PLACE, SIZE, seed));
    }
}

static void *reads(void *argument)
{
    unsigned char *buffer = PLACE + (size_t)(long)argument * (2 * MIB) + BUFSIZ;
    for (int times = 0; times < 4; times++) CHECK(read(zeros, buffer, BUFSIZ) == BUFSIZ);
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&over);
    return NULL;
}

void section_remapped(void)
{
    pthread_t threads[READERS];
    CHECK((zeros = open("/dev/zero", O_RDONLY)) >= 0);
    pthread_barrier_init(&begun, NULL, READERS + 1);
    pthread_barrier_init(&over, NULL, READERS + 1);
    work(1);
    for (long number = 0; number < READERS; number++) threads[number] = start(reads, (void *)number);
    pthread_barrier_wait(&begun);
    CHECK(munmap(PLACE, SIZE) == 0);
    for (int generation = 0; generation < 3; generation++) {
        pid_t child = fork();
        if (child == 0) {
            work((uint64_t)generation + 2);
            CHECK(munmap(PLACE, SIZE) == 0);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                work(9);
                _exit(4);
            }
            int status;
            _exit(waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status) && WEXITSTATUS(status) == 4 ? 3 : 5);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
    pthread_barrier_wait(&over);
    for (long number = 0; number < READERS; number++) join(threads[number]);
    say("children have used what their parent gave up");
}
