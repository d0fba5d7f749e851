/* Lanes and readiness tokens: the twin of lua/include/lane.lua. */
#ifndef EMQ_LANES_H
#define EMQ_LANES_H

#include "common.h"

/* emq:{q}:g:<group>:pending */
Str *lane_key(Call *c, const Str *group);

/* Reads every key that offer, free_slots and leave_lane may write. */
void touch_lane(Call *c, const Str *group);

/* `count` tokens for flat jobs. The first one sets the expiry, so that a queue without a consumer of ours keeps no list. */
void wake_flat(Call *c, size_t count);

/* Puts the lane on the ring if it can be served, and one token with it. Where only a slot was freed (`quiet`) a lane that
 * is on the ring already gets none. */
void offer(Call *c, Str *group, bool quiet);

/* Gives `count` slots of the lane back; for ids only that the caller took from active itself. */
void free_slots(Call *c, Str *group, size_t count);

/* Drops the ring entries of a lane that is empty. */
void leave_ring(Call *c, Str *group);

/* Takes an id out of its lane; whoever empties a lane drops its ring entry. */
void leave_lane(Call *c, Str *group, Str *id);

#endif
