/* A static array to which a library's constructor has given attributes before anything else ran.
 *
 *     CONSTRUCTED=wipe|gone|plain constructed SIZE_MIB
 *
 * Compiled with -DLIBRARY it is the library. The program maps SIZE_MIB of memory, goes over it, and forks: what the array holds, here and there. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 << 20, PAGE = 4096 };

unsigned char *constructed(void);

#ifdef LIBRARY
static unsigned char array[BYTES] __attribute__((aligned(PAGE)));

unsigned char *constructed(void) { return array; }

__attribute__((constructor)) static void construct(void)
{
    const char *how = getenv("CONSTRUCTED");
    memset(array, 7, BYTES);
    if (how != NULL && strcmp(how, "plain") != 0 && madvise(array + BYTES / 2, BYTES / 2, strcmp(how, "wipe") == 0 ? 18 : MADV_DONTFORK) != 0) abort();
}
#else
static void count(const char *who, size_t from)
{
    size_t sevens = 0, zeros = 0;
    for (size_t i = from; i < from + BYTES / 2; i++) sevens += constructed()[i] == 7, zeros += constructed()[i] == 0;
    printf("%s: %zu sevens, %zu zeros\n", who, sevens, zeros);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 2 ? strtoul(argv[1], NULL, 10) << 20 : 0;
    unsigned char *more = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) return 2;
    for (int round = 0; round < 2; round++) for (size_t i = 0; i < bytes; i += PAGE) more[i] = i / PAGE + round;
    count("first half", 0);
    count("second half", BYTES / 2);
    pid_t child = fork();
    if (child == 0) {
        count("child, first half", 0);
        /* Without this half it ends here. */
        count("child, second half", BYTES / 2);
        _exit(0);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child) return 3;
    printf("child: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    count("first half", 0);
    count("second half", BYTES / 2);
    return 0;
}
#endif
