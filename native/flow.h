/* What a job's end means to others: the twin of lua/include/flow.lua. Its dedup key is released, and the parent of a flow
 * hears of it. */
#ifndef EMQ_FLOW_H
#define EMQ_FLOW_H

#include "common.h"

/* A job as its end concerns others; what its row does not say is NULL. */
typedef struct {
    Str *id, *dedup, *parent, *parent_queue, *policy;
} Child;

/* From the job's row. */
Child read_child(Call *c, Str *id);

/* Reads what `completed` and `died` may write for this child: the dedup key, the outbox, and the parents above it. */
void touch_ended(Call *c, const Child *child);

/* The dedup key goes where it still stands for this id. */
void release_dedup(Call *c, const Child *child);

/* A job of this queue is done; without a result (NULL) its id stands for it. */
void completed(Call *c, const Child *child, Str *result);

/* A job of this queue is dead, whoever buried it; the death climbs every level of the tree. */
void died(Call *c, const Child *child, Str *reason);

#endif
