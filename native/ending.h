/* What the endings of one job share: the twin of lua/include/ending.lua. An ending takes the id out of every set that has it,
 * frees the group's slot when it was this ending that took it from active, and deletes the lock. */
#ifndef EMQ_ENDING_H
#define EMQ_ENDING_H

#include "common.h"

/* Reads every key that end_claim may write. Answers whether the queue has a ceiling (meta.concurrency). */
bool touch_ending(Call *c, Str *id, Str *group);

void end_claim(Call *c, Str *id, Str *group, bool ceiling);

/* A consumer that parked below a full ceiling waits for a token, whichever kind of job is next. */
void wake_ceiling(Call *c, size_t freed);

#endif
