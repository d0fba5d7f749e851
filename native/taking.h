/* The writing pass of EMQ.CLAIM.MANY: the twin of lua/include/taking.lua. What is buried, moved and taken. */
#ifndef EMQ_TAKING_H
#define EMQ_TAKING_H

#include "candidates.h"
#include "rotation.h"

/* Reads the keys that only burials and moves write. */
void touch_filed(Claim *claim);

/* What was judged leaves flat pending and the lanes; what was taken from a lane has a slot of it. */
void leave_sets(Claim *claim, const Rotation *rot, Str *pending);

/* Behind the removals: an id that stood in flat pending and in its lane stays in its lane. `offers` gets the lanes that may
 * be served then. */
void move_filed(Claim *claim, List *offers);

/* No slot is freed: whoever took the job from active has done that. Where nobody had, the id is still there with its lease
 * run out, and this takes it from active. */
void bury_filed(Claim *claim, List *offers);

/* Rows and active. */
void hand_out(Claim *claim, Str *active, long long deadline);

#endif
