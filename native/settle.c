/* EMQ.SETTLE: the twin of lua/settle.lua. Many verdicts in one round trip, once only however often they are sent. */
#include <math.h>

#include "commands.h"
#include "ending.h"
#include "held.h"
#include "lanes.h"
#include "store.h"
#include "table.h"
#include "verdicts.h"

enum { KEY_ACTIVE, KEY_PENDING, KEY_SCHEDULE, KEY_DEAD, SETS };
enum { GROUP = 3, VALUE = 4, VALUE_MS = 5 };

/* What the verdicts of one call do together. */
typedef struct {
    Call *c;
    Verdict *verdicts;
    size_t n;
    bool littered, ceiling;
    Table lanes_by_group, changed;
    Lane **lanes;
    size_t n_lanes;
    size_t completed, failed;
    List ended, erased, due, dead;
    double *due_at;
} Settling;

static const char *const BEHIND[] = {"logs", "dependencies", "lock", "processed", "failed", "unsuccessful"};
enum { BEHIND_COUNT = 6, BEHIND_SEEN = 3 };

/* ---- reading ---- */

static Lane *lane_of(Settling *s, Str *group) {
    void **found = table_at(s->c, &s->lanes_by_group, group);
    if (*found) return *found;
    Lane *lane = pool(s->c, 1, sizeof *lane);
    *lane = (Lane){.group = group};
    lane->busy = number_of(row_field(s->c, queue_key(s->c, "gactive"), group), 0);
    lane->limit = number_of(row_field(s->c, queue_key(s->c, "glimit"), group), NAN);
    touch_lane(s->c, group);
    s->lanes[s->n_lanes++] = lane;
    return *found = lane;
}

/* Whether the row shows the claim that the verdict is of. */
static bool is_ours(const Verdict *v) {
    Str *const *row = v->row;
    return row[ROW_HELD] && row[ROW_ATTEMPTS] && same(text_of(row[ROW_HELD]), text_of(v->held)) &&
           same(text_of(row[ROW_ATTEMPTS]), token_of(v->held));
}

/* The group that the worker was given at the claim frees the slot also where the row is gone. What this very claim has in
 * active it took from the lane, and nobody puts a job back without taking it from active. */
static void read_lane(Settling *s, Verdict *v) {
    Str *group = v->row[ROW_GROUP] ? v->row[ROW_GROUP] : v->words[GROUP];
    double score;
    if (!text_of(group).len) return;
    v->lane = lane_of(s, group);
    v->leased = zset_score(s->c, s->c->keys[KEY_ACTIVE], v->id, &score);
    v->stands = !(v->leased && is_ours(v)) && zset_score(s->c, lane_key(s->c, group), v->id, &score);
}

static void read_verdict(Settling *s, Verdict *v) {
    Call *c = s->c;
    read_verdict_row(c, v);
    read_lane(s, v);
    v->has_kin = v->row[ROW_DEDUP] || v->row[ROW_PARENT];
    if (!v->has_kin) return;
    v->child = v->row[ROW_PARENT] ? read_child(c, v->id) : (Child){.id = v->id, .dedup = v->row[ROW_DEDUP]};
    touch_ended(c, &v->child);
}

/* Nobody before has left a lock beside a job that is completed by its first claim. */
static bool may_be_locked(const Verdict *v) {
    return v->kind != 'c' || !is_ours(v) || !same(token_of(v->held), TEXT("1"));
}

static void read_all(Settling *s) {
    Call *c = s->c;
    bool kept = exists(c, queue_key(c, "kept"));
    for (size_t i = 0; i < s->n; i++) read_verdict(s, &s->verdicts[i]);
    for (size_t i = 0; i < s->n; i++) {
        int seen = kept || may_be_locked(&s->verdicts[i]) ? BEHIND_SEEN : BEHIND_SEEN - 1;
        for (int k = 0; k < seen; k++) s->littered |= exists(c, part_key(c, s->verdicts[i].key, BEHIND[k]));
    }
    for (int i = 0; i < SETS; i++) touch(c, c->keys[i], TYPE_ZSET);
    touch(c, queue_key(c, "metrics:completed"), TYPE_HASH);
    touch(c, queue_key(c, "metrics:failed"), TYPE_HASH);
    s->ceiling = row_field(c, queue_key(c, "meta"), word[W_CONCURRENCY]);
    if (!s->ceiling) return;
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    touch(c, queue_key(c, "ring"), TYPE_LIST);
}

/* ---- one verdict ---- */

/* What is left of a job when it is over: a row, and where there is one its logs, lock and a flow parent's subkeys. */
static void erase_later(Settling *s, const Verdict *v) {
    list_add(s->c, &s->erased, v->key);
    for (int i = 0; s->littered && i < BEHIND_COUNT; i++) list_add(s->c, &s->erased, part_key(s->c, v->key, BEHIND[i]));
}

static void add_due(Settling *s, Verdict *v, double score) {
    s->due_at[s->due.n] = score;
    list_add(s->c, &s->due, v->id);
}

static Str *settled_with(Call *c, const Verdict *v) {
    Text parts[] = {token_of(v->held), TEXT(":"), v->answer};
    return joined(c, parts, 3);
}

static void write_dead(Settling *s, Verdict *v, Str *failures, Str *settled) {
    Call *c = s->c;
    list_add(c, &s->dead, v->id);
    /* A late retry: the reason of the death stays, and it was counted then. */
    if (is(v->row[ROW_STATE], "dead")) {
        Pair late[] = {{W_FAILURES, failures}, {W_SETTLED, settled}};
        row_write(c, v->key, late, 2);
        return;
    }
    Pair dead[] = {
        {W_STATE, word[W_DEAD]}, {W_FAILURES, failures}, {W_LAST_ERROR, reason_of(c, v)}, {W_SETTLED, settled}};
    row_write(c, v->key, dead, 4);
    s->failed++;
}

/* The row's side of an ending that keeps the row; what the sets get is collected. */
static void write_row(Settling *s, Verdict *v) {
    static const int OVER[] = {W_HELD, W_CRASHES};
    Call *c = s->c;
    Str *settled = settled_with(c, v);
    double failed = number_of(v->row[ROW_FAILURES], 0) + (v->kind == 'd' ? 0 : 1);
    row_clear(c, v->key, OVER, 2);
    list_add(c, &s->erased, part_key(c, v->key, "lock"));
    if (same(v->answer, BURIED)) {
        write_dead(s, v, number_str(c, failed), settled);
    } else if (v->kind == 'd') {
        Pair delayed[] = {{W_STATE, word[W_SCHEDULED]}, {W_SETTLED, settled}};
        row_write(c, v->key, delayed, 2);
        add_due(s, v, number_of(v->words[VALUE_MS], 0) + (is(v->words[VALUE], "in") ? (double)c->now : 0));
    } else {
        Pair retried[] = {{W_STATE, word[W_SCHEDULED]},
                          {W_FAILURES, number_str(c, failed)},
                          {W_LAST_ERROR, reason_of(c, v)},
                          {W_SETTLED, settled}};
        row_write(c, v->key, retried, 4);
        add_due(s, v, (double)c->now + number_of(v->words[VALUE], 0));
    }
}

/* `slot`: this ending takes the id from active, so it gives the slot back. */
static void leave_lane_later(Settling *s, Verdict *v, bool slot) {
    if (!v->lane) return;
    v->lane->freed += slot;
    if (v->stands) list_add(s->c, &v->lane->left, v->id);
}

static void settle_one(Settling *s, Verdict *v) {
    static char WRITTEN, ERASED;
    /* The same id twice in one call: the second is decided on what the first left behind. */
    void *before = *table_at(s->c, &s->changed, v->id);
    if (before == &WRITTEN) read_verdict_row(s->c, v);
    if (before == &ERASED) memset(v->row, 0, sizeof v->row);
    if (!decide(v)) return;
    bool done = same(v->answer, DONE), kept = !done && !same(v->answer, GONE);
    /* Who has died before has told of it then. */
    v->tells = done || !is(v->row[ROW_STATE], "dead");
    list_add(s->c, &s->ended, v->id);
    leave_lane_later(s, v, v->leased && !before);
    if (kept) {
        write_row(s, v);
    } else {
        erase_later(s, v);
    }
    s->completed += done;
    *table_at(s->c, &s->changed, v->id) = kept ? &WRITTEN : &ERASED;
}

/* ---- the sets' side of all of them ---- */

static void free_lane(Call *c, Lane *lane) {
    if (lane->left.n) {
        zset_remove_all(c, lane_key(c, lane->group), &lane->left);
        if (!length_of(c, lane_key(c, lane->group), TYPE_ZSET)) leave_ring(c, lane->group);
    }
    if (lane->freed) free_slots(c, lane->group, lane->freed);
}

static void write_endings(Settling *s) {
    Call *c = s->c;
    size_t freed = zset_remove_all(c, c->keys[KEY_ACTIVE], &s->ended);
    for (int i = KEY_PENDING; i < SETS; i++) zset_remove_all(c, c->keys[i], &s->ended);
    if (s->erased.n) VM_Call(c->ctx, "UNLINK", "!v", s->erased.at, s->erased.n);
    zset_add_scored(c, c->keys[KEY_SCHEDULE], s->due_at, &s->due);
    zset_add_all(c, c->keys[KEY_DEAD], 0, &s->dead);
    for (size_t i = 0; i < s->n_lanes; i++) free_lane(c, s->lanes[i]);
    /* A lane that was below its limit was on the ring, if it could be served: nothing is looked for there. */
    for (size_t i = 0; i < s->n_lanes; i++) {
        if (s->lanes[i]->freed && s->lanes[i]->busy >= s->lanes[i]->limit) offer(c, s->lanes[i]->group, true);
    }
    if (s->completed) field_add(c, queue_key(c, "metrics:completed"), word[W_COUNT], (double)s->completed);
    if (s->failed) field_add(c, queue_key(c, "metrics:failed"), word[W_COUNT], (double)s->failed);
    if (s->ceiling && freed) wake_ceiling(c, freed);
}

static void tell_kin(Settling *s) {
    for (size_t i = 0; i < s->n; i++) {
        Verdict *v = &s->verdicts[i];
        if (!v->has_kin || !v->tells) continue;
        if (same(v->answer, DONE)) completed(s->c, &v->child, v->kind == 'v' ? v->words[VALUE] : NULL);
        if (same(v->answer, BURIED)) died(s->c, &v->child, reason_of(s->c, v));
    }
}

/* KEYS active, pending, schedule, dead; ARGV base, verdicts. Replies an answer per verdict. */
int settle(Call *c) {
    Settling s = {.c = c};
    s.verdicts = parse_verdicts(c, c->args + 1, c->n_args - 1, &s.n);
    if (!s.verdicts) {
        return refuse(c, "ERR settle verdicts are not well-formed: expected c, v, r or d and its values");
    }
    s.lanes = pool(c, s.n, sizeof *s.lanes);
    s.due_at = pool(c, s.n, sizeof *s.due_at);
    read_all(&s);
    if (!may_write(c)) return refused(c);
    VM_ReplyWithArray(c->ctx, (long)s.n);
    for (size_t i = 0; i < s.n; i++) {
        settle_one(&s, &s.verdicts[i]);
        VM_ReplyWithStringBuffer(c->ctx, s.verdicts[i].answer.at, s.verdicts[i].answer.len);
    }
    if (s.ended.n) write_endings(&s);
    tell_kin(&s);
    return API_OK;
}
