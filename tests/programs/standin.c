/* Stands in for another program: a suite starts this one, and gets the other.
 *
 * STANDIN_COMMAND is the command, its words apart by newlines; the arguments of this program follow them. The process stays the same one, so
 * its number, its files and its signals are those that the suite expects. STANDIN_COMMAND is left out of the environment. */
#define _GNU_SOURCE
#include "common.h"

int main(int argc, char **argv)
{
    const char *given = getenv("STANDIN_COMMAND");
    if (given == NULL || *given == 0) die("STANDIN_COMMAND is not set");
    char *words = strdup(given);
    size_t count = 1;
    for (const char *at = given; *at; at++) count += *at == '\n';
    char **command = calloc(count + (size_t)argc, sizeof *command);
    if (words == NULL || command == NULL) die("no memory");
    size_t n = 0;
    for (char *word = strtok(words, "\n"); word != NULL; word = strtok(NULL, "\n")) command[n++] = word;
    for (int i = 1; i < argc; i++) command[n++] = argv[i];
    unsetenv("STANDIN_COMMAND");
    execv(command[0], command);
    die("cannot run %s", command[0]);
}
