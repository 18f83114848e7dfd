/* Threads and signals, with memory that is absent.
 *
 *     threads BALLAST_MIB SECTION     run one section
 *     threads --list                  print the names of all sections
 *
 * Each section makes its memory cold by touching BALLAST_MIB of other memory, which must be more than twice the memory limit; natively
 * that changes nothing. The output and the way in which the program ends are the same natively and under Farshore. */
#include "threads.h"

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "nested", section_nested }, { "storm", section_storm }, { "flags", section_flags }, { "onstack", section_onstack },
    { "jumps", section_jumps }, { "restart", section_restart }, { "context", section_context },
    { "masks", section_masks }, { "suspend", section_suspend }, { "waiting", section_waiting }, { "offered", section_offered },
    { "timers", section_timers }, { "rawclone", section_rawclone },
    { "cancel", section_cancel }, { "short", section_short }, { "exits", section_exits },
    { "locks", section_locks }, { "robust", section_robust }, { "wildlists", section_wild_lists },
    { "inherit", section_inherit }, { "shared", section_shared },
    { "collector", section_collector }, { "faults", section_faults }, { "overflow", section_overflow }, { "sigsys", section_sigsys },
    { "coroutines", section_coroutines }, { "smallstack", section_smallstack },
    { "setxid", section_setxid }, { "limits", section_limits }, { "space", section_space }, { "nofile", section_nofile }, { "mlock", section_mlock },
    { "prctl", section_prctl }, { "plugins", section_plugins },
    { "filter", section_filter }, { "filterkill", section_filterkill }, { "filtertrap", section_filtertrap },
    { "filterthreads", section_filterthreads }, { "strict", section_strict }, { "allowlist", section_allowlist },
    { "exact", section_exact }, { "listener", section_listener },
};

static const char *section = "";
static volatile unsigned char *ballast;
static size_t ballast_pages;
static volatile int churning;
static pthread_t churner;

void say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("%s: %s\n", section, line);
    fflush(stdout);
}

void make_absent(void)
{
    for (size_t i = 0; i < ballast_pages; i++) __atomic_fetch_add(&ballast[i * PAGE], 1, __ATOMIC_RELAXED);
}

static void *churn(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    while (churning) {
        for (size_t i = 0; i < ballast_pages && churning; i++) __atomic_fetch_add(&ballast[i * PAGE], 1, __ATOMIC_RELAXED);
    }
    return unused;
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

void *filled(size_t length, uint64_t salt)
{
    uint64_t *at = fresh(length);
    for (size_t i = 0; i < length / 8; i++) at[i] = mix(salt ^ i);
    return at;
}

int holds(const void *at, size_t length, uint64_t salt)
{
    const uint64_t *words = at;
    for (size_t i = 0; i < length / 8; i++) {
        if (words[i] != mix(salt ^ i)) return 0;
    }
    return 1;
}

pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    int error = pthread_create(&thread, NULL, body, argument);
    if (error != 0) die("pthread_create: %s", strerror(error));
    return thread;
}

void *join(pthread_t thread)
{
    void *result;
    int error = pthread_join(thread, &result);
    if (error != 0) die("pthread_join: %s", strerror(error));
    return result;
}

void sleep_ms(long milliseconds)
{
    struct timespec t = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0);
}

sigset_t set_of(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

void block(int number)
{
    sigset_t set = set_of(number);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
}

void unblock(int number)
{
    sigset_t set = set_of(number);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
}

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 3) die("usage: threads BALLAST_MIB SECTION | threads --list");
    ballast_pages = (size_t)atoi(argv[1]) * MIB / PAGE;
    ballast = map_anonymous(ballast_pages * PAGE);
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
