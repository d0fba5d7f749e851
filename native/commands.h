/* The bodies of the commands, one file per family. */
#ifndef EMQ_COMMANDS_H
#define EMQ_COMMANDS_H

#include "common.h"

/* schedule.c */
int schedule(Call *c);
int reschedule(Call *c);

/* enqueue.c */
int enqueue(Call *c);
int enqueue_many(Call *c);
int lane_enqueue(Call *c);

/* admit.c */
int admit_many(Call *c);
int admit_traced(Call *c);

/* claim.c */
int claim(Call *c);
int claim_batch(Call *c);
int lane_claim(Call *c);
int lane_claim_weighted(Call *c);

/* claim_many.c */
int claim_many(Call *c);

/* settle.c */
int settle(Call *c);

/* complete.c */
int complete(Call *c);

/* sweeps.c */
int promote(Call *c);
int reap(Call *c);
int stalled_check(Call *c);

/* hands.c */
int delay(Call *c);
int extend_lock(Call *c);
int requeue(Call *c);

/* retry.c */
int retry(Call *c);

/* reprocess.c */
int reprocess(Call *c);

/* keeping.c */
int keep(Call *c);
int disown(Call *c);

/* look.c */
int look(Call *c);

#endif
