/* Run-at instants: `in` is priced on the server's clock, `at` is the caller's literal. */
#ifndef EMQ_DUE_H
#define EMQ_DUE_H

#include "common.h"

/* The score, or what is wrong with the two arguments. */
const char *due_at(const Call *c, const Str *mode, const Str *due, double *score);

#endif
