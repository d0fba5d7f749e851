/* The ring as EMQ.CLAIM.MANY walks it: the twin of lua/include/rotation.lua. Each lane's turn takes up to its weight, a lane
 * that can be served again goes to the tail, a hollow, paused or full one falls out. Reads only; write_ring stores it. */
#ifndef EMQ_ROTATION_H
#define EMQ_ROTATION_H

#include "candidates.h"

typedef struct {
    Source **at;
    size_t n, room;
} Sources;

typedef struct {
    Str *ring;
    size_t length, loaded, size, visited; /* entries: in all, read, to be read next, whose first turn is over */
    double lanes;                         /* how many can still be served */
    size_t head;
    Sources queue, later, all;
    Table seen;
    bool wrapped, progress;
    /* A lane whose turn the last claim had no room to finish stands at the head and goes on; `cut` is that of this claim. */
    Text cut_name;
    double cut_taken;
    Str *cut;
} Rotation;

void rotation_start(Rotation *rot, Claim *claim, Str *ring, const Str *cut);

/* Makes the lane whose turn it is the head; false when a whole round has served nobody. */
bool next_lane(Claim *claim, Rotation *rot);

/* One turn of the head. Answers whether it is over: it goes on with the next claim where there is no room to finish it. */
bool serve_lane(Claim *claim, Rotation *rot);

/* How many entries the ring keeps. */
size_t entries_left(const Rotation *rot);

void write_ring(Call *c, const Rotation *rot);

#endif
