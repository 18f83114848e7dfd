/* What the sections of `threads` share: memory that is absent when it is needed, threads and signals.
 *
 * A section is run by itself, natively and under Farshore, and must print the same lines and end with the same status. */
#ifndef FARSHORE_TESTS_THREADS_H
#define FARSHORE_TESTS_THREADS_H

#include "absent/absent.h"
#include <signal.h>

/* Installs a handler with SA_SIGINFO and `flags`, that blocks nothing else. */
void handle(int number, void (*handler)(int, siginfo_t *, void *), int flags);
/* Blocks or unblocks one signal of this thread. */
void block(int number);
void unblock(int number);
sigset_t set_of(int number);

/* Sections, by file. */
void section_nested(void);
void section_storm(void);
void section_flags(void);
void section_onstack(void);
void section_jumps(void);
void section_restart(void);
void section_context(void);

void section_masks(void);
void section_unblock(void);
void section_whole(void);
void section_ignored(void);
void section_suspend(void);
void section_twice(void);
void section_waiting(void);
void section_offered(void);
void section_timers(void);
void section_rawclone(void);

void section_cancel(void);
void section_short(void);
void section_exits(void);

void section_locks(void);
void section_undisturbed(void);
void section_robust(void);
void section_wild_lists(void);
void section_inherit(void);
void section_shared(void);

void section_collector(void);
void section_arenas(void);
void section_faults(void);
void section_overflow(void);
void section_sigsys(void);
void section_coroutines(void);
void section_smallstack(void);
void section_handed(void);

void section_stacks(void);

void section_setxid(void);
void section_limits(void);
void section_space(void);
void section_nofile(void);
void section_mlock(void);
void section_prctl(void);
void section_plugins(void);

void section_vforked(void);
void section_guests(void);
void section_cleared(void);

void section_buffers(void);
void section_remapped(void);

void section_filter(void);
void section_filterkill(void);
void section_filtertrap(void);
void section_filterthreads(void);
void section_strict(void);
void section_allowlist(void);
void section_exact(void);
void section_listener(void);

#endif
