/* Loaded before AddressSanitizer into a server that opens modules with RTLD_DEEPBIND, which it does not stand: the flag is
 * taken away. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *dlopen(const char *file, int mode) {
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return next(file, mode & ~RTLD_DEEPBIND);
}
