/* Programs that are started: everything that exec hands on, and every way to exec.
 *
 *     exec child NAME ...    tells on stdout what it was started with; on stderr whether Farshore is in it
 *     exec all DIR           starts itself in every way, in DIR, which is empty; one after the other
 *     exec room DIR          how large an environment may be
 *
 * stdout must be the same natively and under Farshore. stderr has "NAME managed" or "NAME native" for each child. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;
static char self[4096], directory[4096];

/* ---------------------------------------------------------------------------------------------------- the child */

static int has_farshore(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) die("/proc/self/maps");
    char line[8192];
    int found = 0;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "libfarshore.so") != NULL;
    fclose(maps);
    return found;
}

/* Long lists are told by their digest. */
static void tell_list(const char *what, char **list)
{
    size_t count = 0, bytes = 0;
    uint64_t hash = 1469598103934665603u;
    for (; list && list[count]; count++) {
        for (const char *at = list[count];; at++) {
            hash = (hash ^ (uint8_t)*at) * 1099511628211u;
            bytes++;
            if (!*at) break;
        }
    }
    printf("  %s: %zu entries, %zu bytes, %016llx\n", what, count, bytes, (unsigned long long)hash);
    for (size_t i = 0; i < count && count < 20; i++) printf("    %.200s\n", list[i]);
}

static void tell_signals(void)
{
    printf("  blocked");
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (int s = 1; s < 32; s++)
        if (sigismember(&mask, s)) printf(" %d", s);
    printf("; ignored");
    for (int s = 1; s < 32; s++) {
        struct sigaction action;
        if (sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN) printf(" %d", s);
    }
    printf("\n");
}

static int child(int argc, char **argv, char **envp)
{
    const char *name = argc > 2 ? argv[2] : "nameless";
    printf("%s: argc %d\n", name, argc);
    tell_list("arguments", argv);
    if (envp != environ) printf("  main's environment is another\n");
    tell_list("environment", environ);
    tell_signals();
    char comm[17] = "";
    prctl(PR_GET_NAME, comm);
    const char *executed = (const char *)getauxval(AT_EXECFN);
    printf("  comm %s, executed %s, secure %lu\n", comm, executed, getauxval(AT_SECURE));
    printf("  descriptors");
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0) printf(" %d", fd);
    printf("\n");
    /* It works: memory that goes round, system calls on it. */
    size_t size = 3 * MIB;
    char *memory = malloc(size);
    memset(memory, 0x5a, size);
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (read(zero, memory + MIB, MIB) != (ssize_t)MIB) die("read");
    size_t sum = 0;
    for (size_t i = 0; i < size; i += 512) sum += (uint8_t)memory[i];
    printf("  sum %zu\n", sum);
    fflush(stdout);
    fprintf(stderr, "%s %s\n", name, has_farshore() ? "managed" : "native");
    return 7;
}

/* ---------------------------------------------------------------------------------------------------- ways to start it */

static const char *in_directory(const char *name)
{
    static char paths[8][4400];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void tell_end(const char *name, pid_t pid)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) die("%s: no child", name);
    if (WIFSIGNALED(status)) printf("%s ended by signal %d\n", name, WTERMSIG(status));
    else if (WEXITSTATUS(status) != 7) printf("%s ended with %d\n", name, WEXITSTATUS(status));
    fflush(stdout);
}

/* In a forked child: what was to replace it has failed. */
static void tell_error(const char *name)
{
    int error = errno;
    printf("%s: %s\n", name, strerrorname_np(error));
    fflush(stdout);
    _exit(7);
}

static void by_fork(const char *name, const char *path, char **argv, char **envp)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        syscall(SYS_execve, path, argv, envp);
        tell_error(name);
    }
    tell_end(name, pid);
}

static void by_fork_at(const char *name, int fd, const char *path, char **argv, char **envp, int flags)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        syscall(SYS_execveat, fd, path, argv, envp, flags);
        tell_error(name);
    }
    tell_end(name, pid);
}

#define ARGS(...) ((char *[]){"exec", "child", __VA_ARGS__, NULL})
#define ENV(...) ((char *[]){__VA_ARGS__, NULL})
#define NO_ENV ((char *[]){NULL})

static void environments(void)
{
    const char *libm = "/lib/x86_64-linux-gnu/libm.so.6";
    char preload[200], two[300];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", libm);
    snprintf(two, sizeof two, "LD_PRELOAD=%s %s", libm, libm);
    by_fork("plain", self, ARGS("plain", "a", "", "b c"), ENV("A=1", "B=2", "A=3", "noequals", "=odd", ""));
    by_fork("cleared", self, ARGS("cleared"), NO_ENV);
    by_fork("null-environment", self, ARGS("null-environment"), NULL);
    by_fork("inherited", self, ARGS("inherited"), ENV("HOME=/", "LANG=C"));
    by_fork("preload-first", self, ARGS("preload-first"), ENV(preload, "A=1"));
    by_fork("preload-middle", self, ARGS("preload-middle"), ENV("A=1", preload, "B=2"));
    by_fork("preload-two", self, ARGS("preload-two"), ENV("A=1", two, "B=2"));
    by_fork("preload-empty", self, ARGS("preload-empty"), ENV("A=1", "LD_PRELOAD=", "B=2"));
    by_fork("preload-twice", self, ARGS("preload-twice"), ENV("LD_PRELOAD=", preload, "A=1"));
    by_fork("similar-names", self, ARGS("similar-names"), ENV("LD_PRELOADED=1", "FARSHORE_OPTION=1", "XLD_PRELOAD=2", "FARSHORE_OLD_PRELOAD=3"));
    /* More than one page of pointers, strings of all lengths. */
    char **many = calloc(3001, sizeof *many);
    for (int i = 0; i < 3000; i++) {
        many[i] = malloc(20 + (size_t)i % 300);
        memset(many[i], 'a' + i % 26, 19 + (size_t)i % 300);
        many[i][sprintf(many[i], "V%d=", i)] = 'x';
        many[i][19 + i % 300] = 0;
    }
    by_fork("large", self, ARGS("large"), many);
    char **argv = calloc(3004, sizeof *argv);
    argv[0] = "exec", argv[1] = "child", argv[2] = "many";
    memcpy(argv + 3, many, 3000 * sizeof *argv);
    by_fork("many", self, argv, NO_ENV);
    for (int i = 0; i < 3000; i++) free(many[i]);
    free(many), free(argv);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        syscall(SYS_execve, self, NULL, ENV("A=1"));
        tell_error("null-arguments");
    }
    int status;
    waitpid(pid, &status, 0);
    printf("null-arguments ended with %d\n", WEXITSTATUS(status));
}

static void *execute_here(void *name)
{
    char *argv[] = {"exec", "child", name, NULL};
    execve(self, argv, ENV("A=1"));
    tell_error(name);
    return NULL;
}

static void handler(int number)
{
    (void)number;
    execute_here("in-a-handler");
}

static void ways(void)
{
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        execve(self, ARGS("by-vfork"), ENV("A=1"));
        _exit(98);
    }
    tell_end("by-vfork", pid);
    pid = vfork();
    if (pid == 0) {
        execve("/no/such/program", ARGS("by-vfork-later"), ENV("A=1"));
        execve(self, ARGS("by-vfork-later"), ENV("A=1"));
        _exit(98);
    }
    tell_end("by-vfork-later", pid);
    if (posix_spawn(&pid, self, NULL, NULL, ARGS("by-spawn"), ENV("A=1")) != 0) die("posix_spawn");
    tell_end("by-spawn", pid);
    printf("spawn of nothing: %s\n", strerrorname_np(posix_spawn(&pid, "/no/such/program", NULL, NULL, ARGS("x"), ENV("A=1"))));
    fflush(stdout);
    if ((pid = fork()) == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, execute_here, "by-another-thread");
        pthread_join(thread, NULL);
    }
    tell_end("by-another-thread", pid);
    if ((pid = fork()) == 0) {
        struct sigaction action = {.sa_handler = handler};
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    tell_end("in-a-handler", pid);
    if ((pid = fork()) == 0) {
        sigset_t mask;
        sigemptyset(&mask);
        int blocked[] = {SIGBUS, SIGSEGV, SIGSYS, SIGTERM, SIGPIPE};
        for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++) sigaddset(&mask, blocked[i]);
        sigprocmask(SIG_BLOCK, &mask, NULL);
        signal(SIGUSR2, SIG_IGN), signal(SIGPIPE, SIG_IGN), signal(SIGCHLD, SIG_IGN);
        execute_here("with-signals");
    }
    tell_end("with-signals", pid);
    /* A child that becomes one program after the other. */
    by_fork("by-shell", "/bin/sh", ((char *[]){"sh", "-c", "exec \"$0\" child by-shell-exec", self, NULL}), ENV("A=1"));
    by_fork("by-env", "/usr/bin/env", ((char *[]){"env", "-i", "B=2", self, "child", "by-env-clear", NULL}), ENV("A=1"));
}

static void descriptors(void)
{
    int fd = open(self, O_RDONLY | O_CLOEXEC), handle = open(self, O_PATH | O_CLOEXEC), folder = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || handle < 0 || folder < 0) die("open");
    if (symlink(self, in_directory("link")) != 0) die("symlink");
    by_fork_at("by-descriptor", fd, "", ARGS("by-descriptor"), ENV("A=1"), AT_EMPTY_PATH);
    by_fork_at("by-o-path", handle, "", ARGS("by-o-path"), ENV("A=1"), AT_EMPTY_PATH);
    by_fork_at("by-directory", folder, "link", ARGS("by-directory"), ENV("A=1"), 0);
    by_fork_at("by-absolute", -1, self, ARGS("by-absolute"), ENV("A=1"), 0);
    by_fork_at("nofollow", folder, "link", ARGS("nofollow"), ENV("A=1"), AT_SYMLINK_NOFOLLOW);
    by_fork_at("empty-path", fd, "", ARGS("empty-path"), ENV("A=1"), 0);
    by_fork_at("bad-descriptor", 999, "x", ARGS("bad-descriptor"), ENV("A=1"), 0);
    by_fork_at("bad-flags", fd, "", ARGS("bad-flags"), ENV("A=1"), 0x40000000);
    by_fork_at("a-directory", folder, "", ARGS("a-directory"), ENV("A=1"), AT_EMPTY_PATH);
    by_fork("own-exe", "/proc/self/exe", ARGS("own-exe"), ENV("A=1"));
    by_fork("by-link", in_directory("link"), ARGS("by-link"), ENV("A=1"));
    if (chdir(directory) != 0) die("chdir");
    by_fork("relative", "link", ARGS("relative"), ENV("A=1"));
    by_fork("relative-dot", "./link", ARGS("relative-dot"), ENV("A=1"));
    close(fd), close(handle), close(folder);
}

static void file(const char *name, const char *text, mode_t mode)
{
    const char *path = in_directory(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || fchmod(fd, mode) != 0) die("%s", path);
    close(fd);
}

static void scripts(void)
{
    char text[8300];
    snprintf(text, sizeof text, "#!%s child\n", self);
    file("script", text, 0755);
    by_fork("script", in_directory("script"), ((char *[]){"script", "an argument", NULL}), ENV("A=1", "LD_PRELOAD="));
    snprintf(text, sizeof text, "#! \t%s \t child  two words \t\nmore", self);
    file("blanks", text, 0755);
    by_fork("blanks", in_directory("blanks"), ((char *[]){"blanks", NULL}), ENV("A=1"));
    snprintf(text, sizeof text, "#!/usr/bin/env -S %s child of-env", self);
    file("env", text, 0755);
    by_fork("env", in_directory("env"), ((char *[]){"env", NULL}), ENV("A=1"));
    file("shell", "#!/bin/sh\nexec \"$1\" child of-a-shell-script\n", 0755);
    by_fork("shell", in_directory("shell"), ((char *[]){"shell", self, NULL}), ENV("A=1"));
    const char *before = self;
    for (int level = 1; level <= 7; level++) {
        char name[20];
        snprintf(name, sizeof name, "level%d", level);
        snprintf(text, sizeof text, "#!%s child\n", before);
        file(name, text, 0755);
        by_fork(name, in_directory(name), ((char *[]){name, NULL}), ENV("A=1"));
        static char last[4400];
        strcpy(last, in_directory(name));
        before = last;
    }
    int fd = open(in_directory("script"), O_RDONLY), closed = open(in_directory("script"), O_RDONLY | O_CLOEXEC);
    by_fork_at("script-by-descriptor", fd, "", ((char *[]){"script", NULL}), ENV("A=1"), AT_EMPTY_PATH);
    by_fork_at("script-closed", closed, "", ((char *[]){"script", NULL}), ENV("A=1"), AT_EMPTY_PATH);
    close(fd), close(closed);
}

static void failures(void)
{
    file("plain", "#!/bin/sh\nexit 7\n", 0644);
    file("text", "hello\n", 0755);
    file("nothing", "", 0755);
    file("cut", "\177ELF\2\1\1", 0755);
    file("lost", "#!/no/such/interpreter\n", 0755);
    file("nameless", "#!\n", 0755);
    file("busy", "#!/bin/sh\nexit 7\n", 0755);
    if (symlink("loop", in_directory("loop")) != 0) die("symlink");
    if (mkfifo(in_directory("fifo"), 0755) != 0) die("mkfifo");
    char long_name[5000];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    const char *names[] = {"plain", "text", "nothing", "cut", "lost", "nameless", "loop", "fifo", "missing", "text/below", "."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) by_fork(names[i], in_directory(names[i]), ARGS("x"), ENV("A=1"));
    by_fork("long-name", long_name, ARGS("x"), ENV("A=1"));
    by_fork("empty-name", "", ARGS("x"), ENV("A=1"));
    by_fork("device", "/dev/null", ARGS("x"), ENV("A=1"));
    by_fork("null-path", NULL, ARGS("x"), ENV("A=1"));
    by_fork("wild-path", (char *)8, ARGS("x"), ENV("A=1"));
    by_fork("wild-arguments", self, (char **)8, ENV("A=1"));
    by_fork("wild-argument", self, ((char *[]){"exec", (char *)8, NULL}), ENV("A=1"));
    by_fork("wild-environment", self, ARGS("x"), (char **)8);
    by_fork("wild-variable", self, ARGS("x"), ENV("A=1", (char *)8));
    int fd = open(in_directory("busy"), O_WRONLY | O_CLOEXEC);
    by_fork("busy", in_directory("busy"), ARGS("x"), ENV("A=1"));
    close(fd);
    char *argument = malloc(200000);
    memset(argument, 'y', 200000);
    argument[131072] = 0;
    by_fork("long-argument", self, ARGS(argument), ENV("A=1"));
    argument[131071] = 0;
    by_fork("longest-argument", self, ARGS("longest-argument", argument), ENV("A=1"));
    char **argv = calloc(101, sizeof *argv);
    for (int i = 0; i < 100; i++) argv[i] = argument;
    by_fork("too-much", self, argv, ENV("A=1"));
    free(argv), free(argument);
    /* A process whose exec has failed goes on. */
    for (int i = 0; i < 20; i++)
        if (execve(in_directory("missing"), ARGS("x"), ENV("A=1")) != -1 || errno != ENOENT) die("a missing program was executed");
    printf("goes on\n");
}

static int all(void)
{
    environments();
    ways();
    descriptors();
    scripts();
    failures();
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- room */

static int starts(size_t bytes)
{
    enum { PIECE = 1000 };
    size_t count = bytes / PIECE;
    char **envp = calloc(count + 2, sizeof *envp);
    static char piece[PIECE], rest[PIECE];
    memset(piece, 'p', PIECE - 1), memset(rest, 0, PIECE), memset(rest, 'r', bytes % PIECE);
    for (size_t i = 0; i < count; i++) envp[i] = piece;
    envp[count] = rest;
    pid_t pid = vfork();
    if (pid == 0) {
        execve("/bin/true", ((char *[]){"true", NULL}), envp);
        _exit(errno == E2BIG ? 3 : 4);
    }
    int status;
    waitpid(pid, &status, 0);
    free(envp);
    if (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3) die("true ended with %x", status);
    return WEXITSTATUS(status) == 0;
}

static int room(void)
{
    struct rlimit stack = {.rlim_cur = MIB, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = MIB;
    if (setrlimit(RLIMIT_STACK, &stack) != 0) die("setrlimit");
    size_t low = 100000, high = 400000;
    if (!starts(low) || starts(high)) die("the limit is elsewhere");
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(starts(middle) ? &low : &high) = middle;
    }
    printf("most %zu\n", low);
    return 0;
}

int main(int argc, char **argv, char **envp)
{
    if (argc < 2 || strncmp(argv[1], "child", 5) == 0) return child(argc, argv, envp);
    if (argc < 3) die("exec all DIR | exec room DIR");
    if (!realpath("/proc/self/exe", self) || !realpath(argv[2], directory)) die("where am I");
    return strcmp(argv[1], "all") == 0 ? all() : room();
}
