/* Other programs started from here, and fork. */
#include "check.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

/* An argument vector and its strings, each on pages of its own so that all can be absent. */
static char **vector(size_t count, const char *prefix, const char *first, const char *second)
{
    char **v = fresh((count + 3) * sizeof *v);
    size_t n = 0;
    if (first) v[n++] = placed_text(first);
    if (second) v[n++] = placed_text(second);
    char *strings = fresh(count * 300);
    for (size_t i = 0; i < count; i++) {
        char *s = strings + i * 300;
        snprintf(s, 300, "%s%zu=%.*s", prefix, i, (int)(i % 200),
                 "a long text that fills the argument a long text that fills the argument a long text that fills the argument "
                 "a long text that fills the argument a long text that fills the argument a long text that fills the argument");
        v[n++] = s;
    }
    v[n] = NULL;
    return v;
}

static char **environment_with(size_t count)
{
    size_t have = 0;
    while (environ[have] != NULL) have++;
    char **own = vector(count, "CHECK_", NULL, NULL), **all = fresh((have + count + 1) * sizeof *all);
    memcpy(all, environ, have * sizeof *all);
    memcpy(all + have, own, (count + 1) * sizeof *all);
    return all;
}

static void show(const char *what, int status)
{
    say("%s: %s %d", what, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void section_spawn(void)
{
    char **arguments = vector(500, "argument", self, "--child"), **environment = environment_with(300);
    int status;
    pid_t pid, *heap_pid = fresh(sizeof *heap_pid);
    make_absent();
    CHECK(posix_spawn(heap_pid, self, NULL, NULL, arguments, environment) == 0);
    CHECK(waitpid(*heap_pid, &status, 0) == *heap_pid);
    show("posix_spawn", status);
    make_absent();
    pid = vfork();
    if (pid == 0) {
        execve(self, arguments, environment);
        _exit(50);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    show("vfork and execve", status);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    char *path = path_of("spawned");
    posix_spawn_file_actions_addopen(&actions, 1, path, O_CREAT | O_WRONLY, 0600);
    make_absent();
    CHECK(posix_spawnp(&pid, "sh", &actions, NULL, (char *[]){ "sh", "-c", "echo through a file action", NULL }, environ) == 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    show("posix_spawnp", status);
    char *command = placed_text("test -n \"$HOME\" || true; exit 9");
    make_absent();
    show("system", system(command));
    char *question = placed_text("cat; echo and more");
    make_absent();
    FILE *out = popen(question, "w");
    CHECK(out != NULL && fprintf(out, "popen takes ") > 0);
    show("popen for writing", pclose(out));
    make_absent();
    FILE *in = popen("seq 1 20000 | cksum", "r");
    char *line = fresh(200);
    CHECK(in != NULL && fgets(line, 200, in) != NULL);
    line[strcspn(line, "\n")] = 0;
    say("popen for reading: %s", line);
    show("pclose", pclose(in));
    int no = posix_spawn(&pid, "/nonexistent/program", NULL, NULL, arguments, environment);
    say("posix_spawn of nothing: %s", strerror(no));
}

void section_fork(void)
{
    unsigned char *memory = filled(2 * MIB, 110);
    int *status = fresh(sizeof *status);
    struct rusage *usage = fresh(sizeof *usage);
    siginfo_t *info = fresh(sizeof *info);
    fflush(stdout);
    churn_start();
    for (int i = 0; i < 30; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(i);
        CHECK(pid > 0);
        if (i % 10 == 0) make_absent();
        CHECK(wait4(pid, status, 0, usage) == pid && WIFEXITED(*status) && WEXITSTATUS(*status) == i);
    }
    churn_stop();
    say("30 children that only exit ok");
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* Arguments on the stack: the child must not touch memory that may be absent. */
            char *arguments[] = { "true", NULL };
            execvp("true", arguments);
            _exit(60);
        }
        make_absent();
        CHECK(waitid(P_PID, (id_t)pid, info, WEXITED) == 0 && info->si_code == CLD_EXITED && info->si_status == 0);
    }
    CHECK(holds(memory, 2 * MIB, 110));
    say("5 children that exec ok");
    fill(memory, 2 * MIB, 111);
    make_absent();
    CHECK(holds(memory, 2 * MIB, 111));
    say("the parent's memory is right");
}

/* A child that touches absent memory. Natively it reads the right bytes; under Farshore it may be stopped with a message
 * until fork is fully supported; what it must never see is zeros. The line on stdout is the same in both good cases, and
 * stderr tells the driver which it was. */
void section_forkabsent(void)
{
    unsigned char *memory = filled(8 * MIB, 120);
    int ends[2];
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    make_absent();
    pid_t pid = fork();
    if (pid == 0) {
        char verdict = holds(memory, 8 * MIB, 120) ? 'r' : 'w';
        if (write(ends[1], &verdict, 1) != 1) _exit(61);
        _exit(0);
    }
    close(ends[1]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    char verdict = 's';
    ssize_t n = read(ends[0], &verdict, 1);
    if (n == 1 && verdict == 'w') say("WRONG: the child saw other bytes");
    else if (n == 1 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) say("the child saw no wrong bytes");
    else say("WRONG: the child ended as if all was well, and said nothing");
    fprintf(stderr, "marker forkabsent: verdict %c, %s %d\n", verdict, WIFSIGNALED(status) ? "signal" : "exit",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    CHECK(holds(memory, 8 * MIB, 120));
}

/* The last section of a run: it does not come back. */
void section_exec(void)
{
    char **arguments = vector(500, "last", self, "--child"), **environment = environment_with(100);
    say("errors: %s", execve("/nonexistent/program", arguments, environment) < 0 ? strerror(errno) : "");
    make_absent();
    say("becoming another program");
    execve(self, arguments, environment);
    die("execve of %s", self);
}
