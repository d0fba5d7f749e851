/* The twin of lua/include/kept.lua. While there may be a lock that a keeper wrote beside a job in hand by its first claim, the
 * queue's `kept` stands: where it does not, who settles such jobs need not look for one of each. */
#ifndef EMQ_KEPT_H
#define EMQ_KEPT_H

#include "common.h"

/* How long it stands, in ms; below 0 where it does not. */
long long kept_for(Call *c);

bool is_first(const Str *attempts, const Str *held);

/* `lasts` is the time of the lock that was written, `stands` what kept_for said before. */
void note_kept(Call *c, long long stands, long long lasts);

#endif
