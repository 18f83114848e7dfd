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
static char directory[512];
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
    make_ballast(argv[1]);
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
