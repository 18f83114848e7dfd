/* System calls whose memory is absent.
 *
 *     syscalls BALLAST_MIB SECTION...     run sections, in this order
 *     syscalls --list                     print the names of all sections
 *
 * Under Farshore the kernel cannot fetch a page by itself, so each call here would fail with EFAULT (or worse) if nothing
 * brought its memory in. Each section first makes its memory cold by touching BALLAST_MIB of other memory, which must be more
 * than twice the memory limit (a policy may spare a page once for having been touched lately); natively that changes
 * nothing. The output is the same natively and under Farshore. */
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "files", section_files }, { "big", section_big }, { "direct", section_direct }, { "storm", section_storm },
    { "structs", section_structs }, { "stdio", section_stdio }, { "names", section_names },
    { "datagrams", section_datagrams }, { "streams", section_streams }, { "messages", section_messages },
    { "polling", section_polling }, { "futexes", section_futexes }, { "robust", section_robust }, { "threads", section_threads },
    { "stacks", section_stacks }, { "setstack", section_setstack }, { "altstack", section_altstack }, { "masks", section_masks }, { "sigbus", section_sigbus },
    { "handlers", section_handlers }, { "jumps", section_jumps },
    { "efault", section_efault }, { "raw", section_raw }, { "mappings", section_mappings }, { "advice", section_advice },
    { "heap", section_heap }, { "code", section_code }, { "spawn", section_spawn }, { "fork", section_fork },
    { "forkabsent", section_forkabsent }, { "exec", section_exec },
};

const char *self;
static const char *section = "";
static char directory[512];
static volatile unsigned char *ballast;
static size_t ballast_pages;
static volatile int churning;
static pthread_t churner;

void say(const char *format, ...)
{
    char line[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("%s: %s\n", section, line);
    fflush(stdout);
}

void make_absent(void)
{
    for (size_t i = 0; i < ballast_pages; i++) ballast[i * PAGE] += 1;
}

static void *churn(void *unused)
{
    (void)unused;
    while (churning) {
        for (size_t i = 0; i < ballast_pages && churning; i++) ballast[i * PAGE] += 1;
    }
    return NULL;
}

void churn_start(void)
{
    churning = 1;
    churner = start(churn, NULL);
}

void churn_stop(void)
{
    churning = 0;
    join(churner);
}

void *fresh(size_t length)
{
    return map_anonymous(length < 128 * 1024 ? 128 * 1024 : (length + PAGE - 1) / PAGE * PAGE);
}

void fill(void *at, size_t length, uint64_t salt)
{
    unsigned char *p = at;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        memcpy(p + i, &word, length - i < 8 ? length - i : 8);
    }
}

int holds(const void *at, size_t length, uint64_t salt)
{
    const unsigned char *p = at;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = mix(salt ^ i);
        if (memcmp(p + i, &word, length - i < 8 ? length - i : 8) != 0) return 0;
    }
    return 1;
}

void *filled(size_t length, uint64_t salt)
{
    void *at = fresh(length);
    fill(at, length, salt);
    return at;
}

void *placed(const void *data, size_t length)
{
    return memcpy(fresh(length), data, length);
}

char *placed_text(const char *text)
{
    return placed(text, strlen(text) + 1);
}

char *path_of(const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0) die("asprintf");
    return path;
}

int file_of(const char *name, size_t length, uint64_t salt)
{
    int fd = open(path_of(name), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    unsigned char piece[PAGE];
    for (size_t at = 0; at < length; at += sizeof piece) {
        size_t part = length - at < sizeof piece ? length - at : sizeof piece;
        for (size_t i = 0; i < part; i += 8) {
            uint64_t word = mix(salt ^ (at + i));
            memcpy(piece + i, &word, part - i < 8 ? part - i : 8);
        }
        CHECK(write(fd, piece, part) == (ssize_t)part);
    }
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, argument);
    if (error != 0) die("pthread_create: %s", strerror(error));
    return thread;
}

void join(pthread_t thread)
{
    int error = pthread_join(thread, NULL);
    if (error != 0) die("pthread_join: %s", strerror(error));
}

void sleep_ms(long milliseconds)
{
    struct timespec t = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

/* What section_exec and section_spawn start: prints its arguments and the test's variables of its environment. */
static int child(int argc, char **argv)
{
    extern char **environ;
    uint64_t h = 0;
    for (int i = 2; i < argc; i++) h = digest(h, argv[i], strlen(argv[i]) + 1);
    unsigned variables = 0;
    for (char **e = environ; *e != NULL; e++) {
        if (strncmp(*e, "CHECK_", 6) != 0) continue;
        h = digest(h, *e, strlen(*e) + 1);
        variables++;
    }
    printf("child: %d arguments, %u variables, digest %016llx\n", argc - 2, variables, (unsigned long long)h);
    return 7;
}

static void remove_directory(void)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", directory);
}

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc > 1 && strcmp(argv[1], "--child") == 0) return child(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc < 3) die("usage: syscalls BALLAST_MIB SECTION... | syscalls --list");
    self = argv[0];
    ballast_pages = (size_t)atoi(argv[1]) * MIB / PAGE;
    ballast = map_anonymous(ballast_pages * PAGE);
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/farshore-syscalls-XXXXXX", base ? base : "/tmp");
    if (mkdtemp(directory) == NULL) die("cannot make %s", directory);
    for (int i = 2; i < argc; i++) {
        size_t s = 0;
        while (s < count && strcmp(sections[s].name, argv[i]) != 0) s++;
        if (s == count) die("there is no section %s", argv[i]);
        section = sections[s].name;
        /* exec replaces the program: it takes the directory with it beforehand. */
        if (sections[s].run == section_exec) remove_directory();
        sections[s].run();
    }
    remove_directory();
    return 0;
}
