/* A library to preload, whose constructor writes one page of libc's text and gives it back its rights, as libraries do that patch code while it runs.
 *
 * The kernel then tells of the text as several mappings. With CUT_TEXT=open the page stays writable. */
#include "common.h"
#include <dlfcn.h>

__attribute__((constructor)) static void cut(void)
{
    char *page = (char *)((uintptr_t)dlsym(RTLD_NEXT, "qsort") & ~(uintptr_t)(PAGE - 1));
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) die("mprotect: %m");
    *(volatile char *)page = *(volatile char *)page;
    const char *how = getenv("CUT_TEXT");
    if (how != NULL && strcmp(how, "open") == 0) return;
    if (mprotect(page, PAGE, PROT_READ | PROT_EXEC) != 0) die("mprotect: %m");
}
