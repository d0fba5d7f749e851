/* What EMQ.CLAIM.MANY makes of the members of pending and of lanes: the twin of lua/include/candidates.lua. Reads only;
 * nothing is written before all is decided. */
#ifndef EMQ_CANDIDATES_H
#define EMQ_CANDIDATES_H

#include "common.h"
#include "flow.h"
#include "table.h"

/* A source of jobs: flat pending, or a lane with its name. It is a cursor over a sorted set. */
typedef struct {
    Str *key, *name;
    Key *cursor;
    bool opened, ended; /* nothing is behind the cursor */
    bool passed;        /* a suspect was passed over here */
    List leave;         /* what leaves this set */
    size_t started;     /* jobs that take a slot of the lane */
    double weight, busy, limit;
} Source;

/* A job that is taken. Its row stays open for the writing pass, as an id is judged once; NULL where it has to be opened
 * anew. */
typedef struct {
    Key *open;
    Str *id, *row, *payload, *token, *held, *group, *failures;
    double crashes;
    bool regroup, is_child;
} Taken;

/* A job that is buried, or moved from flat pending to its lane. */
typedef struct {
    Str *id, *group, *reason;
    bool leased;
    Child child;
} Filed;

typedef struct {
    Filed *at;
    size_t n, room;
} Files;

typedef struct {
    Call *c;
    Key *active, *schedule, *dead; /* open for reading */
    Str *random;
    size_t room, count, looked, look, depth;
    double max_crashes, suspects;
    bool lanes, passed;
    Taken *jobs;
    List leave; /* what leaves flat pending */
    Table seen;
    Files bury, move;
    Str *attempts, *token, *held; /* those of the job taken last: most have the same */
} Claim;

/* Whether there is a member behind the cursor. */
bool has_more(Claim *claim, Source *source);

/* Takes the next job that can be taken, going on behind what is passed over; everything else is filed for the writing pass.
 * Answers whether there was one. */
bool next_job(Claim *claim, Source *source);

/* `n:token` of the row field `crashes`: n where the token is the row's attempts, else somebody else had the job meanwhile and
 * the row of crashes is broken: 0. */
double counted_crashes(Call *c, const Str *crashes, const Str *attempts);

/* Behind it the sets may be written. */
void close_source(Source *source);

#endif
