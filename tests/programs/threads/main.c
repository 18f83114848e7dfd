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
    { "masks", section_masks }, { "unblock", section_unblock }, { "whole", section_whole }, { "ignored", section_ignored }, { "suspend", section_suspend }, { "twice", section_twice }, { "waiting", section_waiting }, { "offered", section_offered },
    { "timers", section_timers }, { "rawclone", section_rawclone },
    { "cancel", section_cancel }, { "short", section_short }, { "exits", section_exits },
    { "locks", section_locks }, { "undisturbed", section_undisturbed }, { "robust", section_robust }, { "wildlists", section_wild_lists },
    { "inherit", section_inherit }, { "shared", section_shared },
    { "collector", section_collector }, { "arenas", section_arenas }, { "faults", section_faults },
    { "overflow", section_overflow }, { "sigsys", section_sigsys },
    { "coroutines", section_coroutines }, { "smallstack", section_smallstack }, { "handed", section_handed }, { "stacks", section_stacks },
    { "setxid", section_setxid }, { "limits", section_limits }, { "space", section_space }, { "nofile", section_nofile }, { "mlock", section_mlock },
    { "prctl", section_prctl }, { "plugins", section_plugins },
    { "vforked", section_vforked }, { "guests", section_guests }, { "cleared", section_cleared },
    { "buffers", section_buffers }, { "remapped", section_remapped },
    { "filter", section_filter }, { "filterkill", section_filterkill }, { "filtertrap", section_filtertrap },
    { "filterthreads", section_filterthreads }, { "strict", section_strict }, { "allowlist", section_allowlist },
    { "exact", section_exact }, { "listener", section_listener },
};

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
    make_ballast(argv[1]);
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
