/* What the sections of `pages` share. */
#ifndef FARSHORE_TESTS_PAGES_H
#define FARSHORE_TESTS_PAGES_H

#include "absent/absent.h"

/* A number behind NAME in a file such as /proc/self/status, in the unit of the file; 0 if there is none. */
long number_in(const char *path, const char *name);
/* The letters of VmFlags of the mapping that begins at `at`, in /proc/self/smaps; empty if there is none. */
const char *flags_at(const void *at);
/* Whether VmFlags has this one. */
int has_flag(const void *at, const char *flag);

void section_merged(void);
void section_advised(void);
void section_inherited(void);

void section_device(void);
void section_devicewrite(void);
void section_devicefull(void);
void section_knowndevices(void);

void section_growsdown(void);
void section_droppable(void);
void section_softdirty(void);
void section_high(void);

void section_holes(void);

void section_grown(void);
void section_mlocklimit(void);
void section_mlockmore(void);
void section_mlockpieces(void);

void section_mapfails(void);
void section_movefails(void);
void section_overlaps(void);
void section_advisedpart(void);
void section_guards(void);
void section_guardsmove(void);
void section_adviceanswers(void);
void section_shrinks(void);

void section_children(void);
void section_childrenguards(void);
void section_childrenleave(void);

void section_huge(void);
void section_hugeleaves(void);
void section_hugebefore(void);
void section_hugefiltered(void);

void section_small(void);
void section_smallbefore(void);
void section_smallguarded(void);
void section_smallguardedbefore(void);
void section_smallgrows(void);
void section_readonly(void);

void section_code(void);
void section_codestarts(void);

#endif
