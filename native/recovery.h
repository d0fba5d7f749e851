/* What promote, reap and the sweep share: many ids are read before the first write, then go back where they can be claimed. The
 * twin of lua/include/recovery.lua and waiting.lua. */
#ifndef EMQ_RECOVERY_H
#define EMQ_RECOVERY_H

#include "common.h"

typedef struct {
    Str *id, *row, *state, *group, *stalled;
    bool exists; /* a row with a state or a token */
} Member;

typedef struct {
    Member *at;
    size_t n, room;
} Members;

/* Reads the rows, and every key that the functions below may write for them. */
Members read_members(Call *c, const List *ids);
void member_add(Call *c, Members *members, Member member);
/* Those that can run again: not gone, not dead, not waiting in the schedule or for children. */
Members recoverable(Call *c, const Members *members);
/* Whether a row is that of a flow's parent with children out. */
bool is_waiting(Call *c, const Str *state, const Str *row);

List ids_of(Call *c, const Members *members);
void remove_from(Call *c, const char *set, const Members *members);
/* Takes members that are in active out of it and frees their groups' slots. */
void drop_leases(Call *c, const Members *members);
/* A grouped job goes back to its lane, a flat one to pending. */
void put_back(Call *c, const Members *members);
/* Last, when slots are free and jobs are back: each job that did either offers its lane once. */
void offer_lanes(Call *c, const Members *members);

#endif
