/* Records of malloc with strings and arrays, gone through twice; the argument is how many. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    struct row *next;
    char *name;
    uint64_t *parts;
    uint64_t sum;
};

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    struct row *first = NULL, **last = &first;
    for (uint64_t number = 1; number <= count; number++) {
        struct row *row = calloc(1, sizeof *row);
        char name[64];
        snprintf(name, sizeof name, "row number %llu", (unsigned long long)number);
        if (row == NULL || (row->name = strdup(name)) == NULL || (row->parts = malloc(12 * sizeof(uint64_t))) == NULL) return 1;
        for (uint64_t part = 0; part < 12; part++) row->parts[part] = number * (part + 1);
        *last = row;
        last = &row->next;
    }
    for (struct row *row = first; row != NULL; row = row->next) {
        for (int part = 0; part < 12; part++) row->sum += row->parts[part];
    }
    uint64_t sum = 0, letters = 0;
    for (struct row *row = first; row != NULL; row = row->next) {
        sum = (sum * 31 + row->sum) % 1000000007;
        letters += strlen(row->name);
    }
    printf("%llu %llu\n", (unsigned long long)sum, (unsigned long long)letters);
    return 0;
}
