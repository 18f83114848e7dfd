/* Results in structures on the heap, paths on the heap, directories, stdio, and what libc does inside itself. */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

/* A fresh place for a result, absent in turn: never touched, or evicted. */
static void *result(size_t length, int touched)
{
    return touched ? filled(length, 77) : fresh(length);
}

static void status_calls(int touched)
{
    int fd = file_of("status", 4321, 1);
    char *path = placed_text(path_of("status"));
    struct stat *a = result(sizeof *a, touched), *b = result(sizeof *b, touched), *c = result(sizeof *c, touched);
    struct statx *x = result(sizeof *x, touched);
    struct statfs *f = result(sizeof *f, touched);
    make_absent();
    CHECK(stat(path, a) == 0 && fstat(fd, b) == 0 && lstat(path, c) == 0);
    CHECK(a->st_size == 4321 && b->st_size == 4321 && c->st_ino == a->st_ino);
    CHECK(statx(AT_FDCWD, path, 0, STATX_ALL, x) == 0 && x->stx_size == 4321);
    CHECK(statfs(path, f) == 0 && f->f_bsize > 0);
    close(fd);
}

static void system_calls(int touched)
{
    struct utsname *u = result(sizeof *u, touched);
    struct sysinfo *s = result(sizeof *s, touched);
    struct rusage *r = result(sizeof *r, touched);
    struct rlimit *l = result(sizeof *l, touched);
    struct tms *t = result(sizeof *t, touched);
    struct timespec *ts = result(sizeof *ts, touched);
    cpu_set_t *set = result(sizeof *set, touched);
    char *name = result(16, touched);
    int *ends = result(2 * sizeof(int), touched);
    char *where = result(PAGE, touched);
    make_absent();
    CHECK(uname(u) == 0 && strcmp(u->sysname, "Linux") == 0);
    CHECK(sysinfo(s) == 0 && s->totalram > 0);
    CHECK(getrusage(RUSAGE_SELF, r) == 0 && r->ru_maxrss > 0);
    CHECK(getrlimit(RLIMIT_NOFILE, l) == 0 && l->rlim_cur > 0);
    CHECK(times(t) != (clock_t)-1);
    CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, ts) == 0 && ts->tv_sec > 1000000000);
    CHECK(sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0);
    CHECK(prctl(PR_SET_NAME, "checker") == 0 && prctl(PR_GET_NAME, name) == 0 && strcmp(name, "checker") == 0);
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && write(ends[1], "x", 1) == 1);
    int *available = result(sizeof *available, touched);
    make_absent();
    CHECK(ioctl(ends[0], FIONREAD, available) == 0 && *available == 1);
    CHECK(getcwd(where, PAGE) != NULL && where[0] == '/');
    close(ends[0]);
    close(ends[1]);
    ts->tv_sec = 0;
    ts->tv_nsec = 1000000;
    struct timespec *rest = result(sizeof *rest, touched);
    make_absent();
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, ts, rest) == 0);
}

static void event_calls(int touched)
{
    uint64_t *count = result(8, touched), *ticks = result(8, touched);
    int event = eventfd(3, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0), notify = inotify_init();
    struct itimerspec in_1ms = { .it_value = { 0, 1000000 } };
    struct itimerspec *when = placed(&in_1ms, sizeof in_1ms), *old = result(sizeof *old, touched);
    char *watched = placed_text(path_of("")), *events = result(PAGE, touched);
    make_absent();
    CHECK(read(event, count, 8) == 8 && *count == 3);
    CHECK(timerfd_settime(timer, 0, when, old) == 0 && read(timer, ticks, 8) == 8 && *ticks == 1);
    CHECK(inotify_add_watch(notify, watched, IN_CREATE) >= 0);
    close(file_of("noticed", 1, 1));
    make_absent();
    ssize_t n = read(notify, events, PAGE);
    struct inotify_event *first = (struct inotify_event *)events;
    CHECK(n >= (ssize_t)sizeof *first && strcmp(first->name, "noticed") == 0);
    unlink(path_of("noticed"));
    close(event);
    close(timer);
    close(notify);
}

static void path_calls(void)
{
    char *file = placed_text(path_of("a-file")), *link_path = placed_text(path_of("a-link")), *folder = placed_text(path_of("a-folder"));
    char *moved = placed_text(path_of("a-folder/moved")), *hard = placed_text(path_of("hard")), *target = fresh(PAGE);
    make_absent();
    int fd = open(file, O_CREAT | O_WRONLY, 0644);
    CHECK(fd >= 0 && mkdir(folder, 0755) == 0 && symlink(file, link_path) == 0 && link(file, hard) == 0);
    make_absent();
    ssize_t n = readlink(link_path, target, PAGE);
    CHECK(n == (ssize_t)strlen(file) && memcmp(target, file, (size_t)n) == 0);
    make_absent();
    CHECK(access(file, R_OK) == 0 && truncate(file, 100) == 0 && rename(file, moved) == 0 && chmod(moved, 0600) == 0);
    make_absent();
    CHECK(access(file, F_OK) == -1 && errno == ENOENT);
    char *key = placed_text("user.check"), *value = placed_text("some value"), *got = fresh(PAGE);
    make_absent();
    if (setxattr(moved, key, value, 11, 0) == 0) {
        make_absent();
        CHECK(getxattr(moved, key, got, PAGE) == 11 && strcmp(got, value) == 0);
    }
    make_absent();
    CHECK(unlink(moved) == 0 && unlink(hard) == 0 && unlink(link_path) == 0 && rmdir(folder) == 0);
    close(fd);
}

void section_structs(void)
{
    for (int touched = 0; touched < 2; touched++) {
        status_calls(touched);
        system_calls(touched);
        event_calls(touched);
        say("%s results ok", touched ? "evicted" : "untouched");
    }
    path_calls();
    say("paths ok");
}

/* -------------------------------------------------------------------------------------- directories */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void directories(void)
{
    char *folder = path_of("many");
    CHECK(mkdir(folder, 0700) == 0);
    for (int i = 0; i < 300; i++) {
        char name[64];
        snprintf(name, sizeof name, "many/entry-%d-%x", i, i * 2654435761u);
        close(file_of(name, 0, 0));
    }
    unsigned char *raw = fresh(64 * 1024);
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    make_absent();
    long total = 0, n;
    while ((n = syscall(SYS_getdents64, fd, raw, 64 * 1024)) > 0) {
        for (long at = 0; at < n; at += *(unsigned short *)(raw + at + 16)) total++;
        make_absent();
    }
    CHECK(n == 0);
    close(fd);
    DIR *d = opendir(folder);
    CHECK(d != NULL);
    char **names = fresh(302 * sizeof *names);
    size_t count = 0;
    make_absent();
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        names[count++] = strdup(e->d_name);
        if (count % 100 == 0) make_absent();
    }
    closedir(d);
    qsort(names, count, sizeof *names, by_text);
    uint64_t h = 0;
    for (size_t i = 0; i < count; i++) h = digest(h, names[i], strlen(names[i]));
    say("%ld raw entries, %zu names, digest %016llx", total, count, (unsigned long long)h);
}

static void lookups(void)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found = NULL;
    char *host = placed_text("localhost"), *service = placed_text("80");
    make_absent();
    int error = getaddrinfo(host, service, &hints, &found);
    say("getaddrinfo: %d%s", error, error == 0 && ((struct sockaddr_in *)found->ai_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK) ? " loopback" : "");
    if (error == 0) freeaddrinfo(found);
    make_absent();
    struct passwd *root = getpwuid(0);
    say("uid 0: %s", root ? root->pw_name : "unknown");
    make_absent();
    struct group *group = getgrgid(0);
    say("gid 0: %s", group ? group->gr_name : "unknown");
}

void section_names(void)
{
    directories();
    lookups();
}

/* -------------------------------------------------------------------------------------------- stdio */

static void lines_of_file(void)
{
    char *path = path_of("lines");
    FILE *out = fopen(path, "w");
    char *buffer = fresh(256 * 1024);
    CHECK(out != NULL && setvbuf(out, buffer, _IOFBF, 256 * 1024) == 0);
    for (int i = 0; i < 40000; i++) {
        if (i % 8000 == 0) make_absent();
        fprintf(out, "%d %016llx %.*s\n", i, (unsigned long long)mix((uint64_t)i), i % 50, "the quick brown fox jumps over the lazy dog, and on and on");
    }
    char *long_line = fresh(700000);
    memset(long_line, 'x', 699998);
    long_line[699998] = '\n';
    make_absent();
    CHECK(fwrite(long_line, 1, 699999, out) == 699999 && fclose(out) == 0);
    FILE *in = fopen(path, "r");
    CHECK(in != NULL && setvbuf(in, buffer, _IOFBF, 200 * 1024) == 0);
    char *line = NULL;
    size_t room = 0, longest = 0, count = 0;
    uint64_t h = 0;
    for (ssize_t n; (n = getline(&line, &room, in)) > 0; count++) {
        h = digest(h, line, (size_t)n);
        if ((size_t)n > longest) longest = (size_t)n;
        if (count % 10000 == 0) make_absent();
    }
    CHECK(!ferror(in));
    rewind(in);
    make_absent();
    size_t whole = fread(long_line, 1, 699999, in);
    say("%zu lines, longest %zu, digest %016llx, fread %zu %016llx", count, longest, (unsigned long long)h, whole, (unsigned long long)digest(0, long_line, whole));
    fclose(in);
    free(line);
}

static void other_streams(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    for (int i = 0; i < 100000; i++) fprintf(memory, "%d,", i);
    make_absent();
    fclose(memory);
    FILE *temporary = tmpfile();
    CHECK(temporary != NULL);
    make_absent();
    CHECK(fwrite(text, 1, length, temporary) == length);
    rewind(temporary);
    char *back = fresh(length + 1);
    make_absent();
    CHECK(fread(back, 1, length, temporary) == length && memcmp(back, text, length) == 0);
    fclose(temporary);
    char *format = placed_text("%d %15s %lf"), *input = placed_text("42 fifteen-letters 2.5");
    char *word = fresh(16);
    int number;
    double fraction;
    make_absent();
    CHECK(sscanf(input, format, &number, word, &fraction) == 3);
    say("memory stream %zu bytes, scanned %d %s %.1f", length, number, word, fraction);
    free(text);
}

void section_stdio(void)
{
    lines_of_file();
    other_streams();
}
