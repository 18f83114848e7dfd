/* A family in which a process changes its user. Root only.
 *
 *     owner MIB USER
 *
 * Fills memory, forks a child that becomes USER for good, and tells both process ids ("parent N child N"). The child waits for a line on stdin,
 * checks its memory, writes half of it, forks and waits for its own child, and ends. Then the parent checks its own, and waits for a line likewise. */
#include "common.h"
#include <sys/wait.h>

static uint64_t *memory;
static size_t words;

static uint64_t right(size_t word, uint64_t who) { return (word + 1) * 0x9e3779b97f4a7c15u ^ who; }

static void fill(size_t from, uint64_t who)
{
    for (size_t word = from; word < words; word += 64) memory[word] = right(word, who);
}

static void check(size_t from, size_t to, uint64_t who)
{
    for (size_t word = from; word < to; word += 64)
        if (memory[word] != right(word, who)) die("word %zu of %llu is wrong", word, (unsigned long long)who);
}

static void wait_for_driver(void)
{
    fflush(stdout);
    char byte;
    do { if (read(0, &byte, 1) < 0 && errno != EINTR) die("read"); } while (byte != '\n');
}

static void end_of(pid_t child)
{
    int status;
    if (child < 0) die("fork");
    if (waitpid(child, &status, 0) != child || status) die("a child ended with %#x", status);
}

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: owner MIB USER");
    words = strtoull(argv[1], NULL, 0) << 17;
    memory = map_anonymous(words * 8);
    fill(0, 1);
    int ready[2];
    if (pipe(ready)) die("pipe");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        uid_t user = (uid_t)atoi(argv[2]);
        /* To and fro first: whoever can go back has left nothing. */
        if (setresuid(-1, user, 0) || setresuid(-1, 0, 0)) die("setresuid");
        if (setresgid(user, user, user) || setuid(user)) die("setuid");
        if (setuid(0) == 0) die("it can go back");
        check(0, words, 1);
        if (write(ready[1], "x", 1) != 1) die("write");
        wait_for_driver();
        check(0, words, 1);
        fill(words / 2, 2);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            check(0, words / 2, 1);
            check(words / 2, words, 2);
            _exit(0);
        }
        end_of(grandchild);
        check(0, words / 2, 1);
        check(words / 2, words, 2);
        puts("child right");
        fflush(stdout);
        _exit(0);
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) die("the child has ended");
    printf("parent %d child %d\n", (int)getpid(), (int)child);
    fflush(stdout);
    fill(0, 3);
    end_of(child);
    check(0, words, 3);
    puts("parent right");
    wait_for_driver();
    return 0;
}
