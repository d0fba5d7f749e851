/* Run-at instants: `in` is priced on the server's clock, `at` is the caller's literal. */
#ifndef EMQ_DUE_H
#define EMQ_DUE_H

#include "common.h"

/* The longest lease, about 30,000 years: doubled and added to a clock it is still exact. */
#define LONGEST_MS 1000000000000000LL

/* The score, or what is wrong with the two arguments. */
const char *due_at(const Call *c, const Str *mode, const Str *due, double *score);

#endif
