/* Shuts itself in (chroot), and looks whether a descriptor that it has not opened itself leads out again. Root only.
 *
 *     jail DIRECTORY MIB
 *
 * DIRECTORY/inside is a file; DIRECTORY/proc may have /proc mounted. Outside, nothing is called "inside". Then, in the jail, its memory must be right, and that of
 * children, their children, and many of them one after the other. One line each. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUMBERS 256

static int number[NUMBERS], numbers;

/* Descriptors that are open and not ours: all but the standard ones and that of the list. */
static void look(void)
{
    DIR *list = opendir("/proc/self/fd");
    if (!list) { perror("/proc/self/fd"); exit(2); }
    for (struct dirent *entry; (entry = readdir(list)) && numbers < NUMBERS; ) {
        int fd = atoi(entry->d_name);
        if (fd > 2 && fd != dirfd(list)) number[numbers++] = fd;
    }
    closedir(list);
}

/* Whether the directory that `path` leads to from `at` is one outside: there is something in it, and it is not the jail's. */
static int leads_out(int at, const char *path)
{
    struct stat here, root;
    int fd = openat(at, path, O_PATH | O_DIRECTORY);
    if (fd < 0) return 0;
    int out = fstat(fd, &here) == 0 && stat("/", &root) == 0 && (here.st_dev != root.st_dev || here.st_ino != root.st_ino)
        && faccessat(fd, "etc/passwd", F_OK, 0) == 0;
    close(fd);
    return out;
}

/* A duplicate that came by a message to ourselves, or -1. */
static int by_message(int fd)
{
    int pair[2], got = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return -1;
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) == 1) {
        message.msg_controllen = sizeof control;
        if (recvmsg(pair[1], &message, 0) == 1 && CMSG_FIRSTHDR(&message)) memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    }
    close(pair[0]);
    close(pair[1]);
    return got;
}

static void escapes(void)
{
    static const char *const UP[] = {".", "..", "../..", "../../..", "1/root", "self/root", "../1/root"};
    int out = 0, had = 0;
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    for (int n = 0; n < numbers; n++) {
        int fd = number[n], came = by_message(fd), fetched = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
        had += came >= 0 || fetched >= 0 || fcntl(fd, F_GETFD) >= 0;
        for (size_t up = 0; up < sizeof UP / sizeof *UP; up++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d/%s", fd, UP[up]);
            if (leads_out(fd, UP[up])) printf("out by %d, %s\n", fd, UP[up]), out++;
            if (came >= 0 && leads_out(came, UP[up])) printf("out by a message with %d, %s\n", fd, UP[up]), out++;
            if (fetched >= 0 && leads_out(fetched, UP[up])) printf("out by a pidfd and %d, %s\n", fd, UP[up]), out++;
            if (leads_out(AT_FDCWD, path)) printf("out by %s\n", path), out++;
        }
        if (fchdir(fd) == 0 && leads_out(AT_FDCWD, "..")) printf("out by fchdir to %d\n", fd), out++;
        if (chdir("/")) _exit(3);
        if (came >= 0) close(came);
        if (fetched >= 0) close(fetched);
    }
    printf("jail: %d ways out, %d descriptors to be had\n", out, had);
}

static uint64_t *memory;
static size_t words;

static uint64_t right(size_t word, uint64_t who) { return (word + 1) * 0x9e3779b97f4a7c15u ^ who; }

static void fill(uint64_t who)
{
    for (size_t word = 0; word < words; word += 64) memory[word] = right(word, who);
}

static void check(uint64_t who)
{
    for (size_t word = 0; word < words; word += 64)
        if (memory[word] != right(word, who)) { printf("word %zu of %llu is wrong\n", word, (unsigned long long)who); fflush(stdout); _exit(9); }
}

static void wait_for(pid_t child)
{
    int status;
    if (child < 0) { perror("fork"); exit(4); }
    if (waitpid(child, &status, 0) != child || status) { printf("a child ends with %#x\n", status); exit(5); }
}

int main(int count, char **argument)
{
    if (count != 3) return 2;
    words = strtoull(argument[2], NULL, 0) << 17;
    memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) { perror("mmap"); return 2; }
    fill(1);
    look();
    if (chroot(argument[1]) || chdir("/")) { perror("chroot"); return 2; }
    if (access("inside", F_OK) || access("/etc/passwd", F_OK) == 0) { puts("that is no jail"); return 2; }
    escapes();
    check(1);
    puts("jail: memory right");
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) { check(1); _exit(0); }
            wait_for(grandchild);
            check(1);
            _exit(0);
        }
        /* What the child has stays as it was, whatever the parent writes meanwhile. */
        fill(2);
        check(2);
        wait_for(child);
        fill(1);
    }
    for (int n = 0; n < 60; n++) {
        pid_t child = fork();
        if (child == 0) _exit(memory[64] != right(64, 1));
        wait_for(child);
    }
    check(1);
    puts("jail: children right");
    return 0;
}
