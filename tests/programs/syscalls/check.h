/* What the sections of `syscalls` share. A section is a list of system calls on memory that is absent when the kernel looks at it. */
#ifndef FARSHORE_TESTS_CHECK_H
#define FARSHORE_TESTS_CHECK_H

#include "absent/absent.h"

/* A copy of `data` that lies alone in a managed mapping, so that it can be absent. */
void *placed(const void *data, size_t length);
char *placed_text(const char *text);

/* A path in the test's own directory, in ordinary memory that nobody frees. */
char *path_of(const char *name);
/* Makes a file of `length` bytes of pattern and returns its descriptor, at offset 0. */
int file_of(const char *name, size_t length, uint64_t salt);
/* The path of this program. */
extern const char *self;

void section_files(void);
void section_big(void);
void section_direct(void);
void section_storm(void);
void section_structs(void);
void section_stdio(void);
void section_names(void);
void section_datagrams(void);
void section_streams(void);
void section_messages(void);
void section_polling(void);
void section_futexes(void);
void section_robust(void);
void section_threads(void);
void section_stacks(void);
void section_setstack(void);
void section_altstack(void);
void section_masks(void);
void section_sigbus(void);
void section_handlers(void);
void section_jumps(void);
void section_efault(void);
void section_raw(void);
void section_mappings(void);
void section_advice(void);
void section_heap(void);
void section_code(void);
void section_spawn(void);
void section_fork(void);
void section_forkabsent(void);
void section_exec(void);

#endif
