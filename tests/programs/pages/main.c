/* What the kernel does to pages, and what a program may ask it to do: with memory that leaves and comes back.
 *
 *     pages BALLAST_MIB SECTION     run one section
 *     pages --list                  print the names of all sections
 *     pages --merge PROGRAM …       PR_SET_MEMORY_MERGE, then become PROGRAM
 *
 * The output and the way in which the program ends are the same natively and under Farshore. */
#include "pages.h"
#include <sys/prctl.h>

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "merged", section_merged }, { "advised", section_advised }, { "inherited", section_inherited },
    { "device", section_device }, { "devicewrite", section_devicewrite }, { "devicefull", section_devicefull }, { "knowndevices", section_knowndevices },
    { "growsdown", section_growsdown }, { "droppable", section_droppable }, { "softdirty", section_softdirty }, { "high", section_high },
    { "holes", section_holes }, { "grown", section_grown }, { "mlocklimit", section_mlocklimit }, { "mlockmore", section_mlockmore },
    { "mlockpieces", section_mlockpieces },
    { "mapfails", section_mapfails }, { "movefails", section_movefails }, { "overlaps", section_overlaps },
    { "advisedpart", section_advisedpart }, { "guards", section_guards }, { "guardsmove", section_guardsmove },
    { "adviceanswers", section_adviceanswers }, { "shrinks", section_shrinks },
    { "children", section_children }, { "childrenguards", section_childrenguards }, { "childrenleave", section_childrenleave },
    { "huge", section_huge }, { "hugeleaves", section_hugeleaves }, { "hugebefore", section_hugebefore },
    { "hugefiltered", section_hugefiltered }, { "small", section_small }, { "smallbefore", section_smallbefore },
    { "smallguarded", section_smallguarded }, { "smallguardedbefore", section_smallguardedbefore }, { "smallgrows", section_smallgrows },
    { "readonly", section_readonly }, { "code", section_code }, { "codestarts", section_codestarts },
};

long number_in(const char *path, const char *name)
{
    char line[4096];
    long number = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0) number = strtol(line + strlen(name), NULL, 10);
    }
    fclose(file);
    return number;
}

const char *flags_at(const void *at)
{
    static char line[4096];
    unsigned long from = 0, to = 0, a, b;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) from = a, to = b;
        if (strncmp(line, "VmFlags: ", 9) == 0 && from <= (unsigned long)at && (unsigned long)at < to) {
            fclose(file);
            line[strcspn(line, "\n")] = 0;
            return line + 9;
        }
    }
    fclose(file);
    return "";
}

int has_flag(const void *at, const char *flag)
{
    return strstr(flags_at(at), flag) != NULL;
}

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc > 2 && strcmp(argv[1], "--merge") == 0) {
        CHECK(prctl(67, 1, 0, 0, 0) == 0);
        execvp(argv[2], argv + 2);
        die("cannot start %s", argv[2]);
    }
    if (argc != 3) die("usage: pages BALLAST_MIB SECTION | pages --list | pages --merge PROGRAM …");
    make_ballast(argv[1]);
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
