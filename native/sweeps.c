/* EMQ.PROMOTE, EMQ.REAP and EMQ.STALLED.CHECK: bounded passes over what is due or whose lease ran out. */
#include "commands.h"
#include "flow.h"
#include "lanes.h"
#include "recovery.h"
#include "store.h"

enum { REAP_MOST = 100 };

/* ---- promote ---- */

static bool any_grouped(const Members *members) {
    for (size_t i = 0; i < members->n; i++) {
        if (members->at[i].group) return true;
    }
    return false;
}

/* Sorts the due ones: those that go to pending, and of them those whose lease ran out, which leave active too. A ghost (no
 * row), and an id that somebody holds, or that is dead or waits for children, only leaves the schedule. */
static Members releasable(Call *c, const Members *due, Members *expired) {
    Members released = {NULL, 0, 0};
    Str *active = queue_key(c, "active");
    for (size_t i = 0; i < due->n; i++) {
        Member m = due->at[i];
        double lease = 0;
        bool leased = zset_score(c, active, m.id, &lease);
        if (!exists(c, m.row) || (leased && lease > (double)c->now)) continue;
        if (is(m.state, "dead") || is_waiting(c, m.state, m.row)) continue;
        member_add(c, &released, m);
        if (leased) member_add(c, expired, m);
    }
    return released;
}

/* KEYS schedule, pending; ARGV base, batch. Replies how many were due and selected. */
int promote(Call *c) {
    long long batch;
    if (!whole(c->args[1], &batch) || batch == 0) return refuse_shape(c, "batch must be a positive integer");
    List ids = {NULL, 0, 0};
    zset_until(c, c->keys[0], (double)c->now, (size_t)batch, &ids);
    Members due = read_members(c, &ids), expired = {NULL, 0, 0};
    if (any_grouped(&due)) return refuse(c, "EMQSTATE promote lane not native");
    Members released = releasable(c, &due, &expired);
    if (!may_write(c)) return refused(c);
    remove_from(c, "schedule", &due);
    drop_leases(c, &expired);
    put_back(c, &released);
    return answer_integer(c, (long long)ids.n);
}

/* ---- reap ---- */

/* KEYS active, pending; ARGV base. Replies how many leases had run out and were selected, at most 100 a pass. `held` stays on
 * the row: the next claim counts the crash. */
int reap(Call *c) {
    List ids = {NULL, 0, 0};
    zset_until(c, c->keys[0], (double)c->now, REAP_MOST, &ids);
    Members members = read_members(c, &ids), back = recoverable(c, &members);
    if (!may_write(c)) return refused(c);
    drop_leases(c, &members);
    remove_from(c, "schedule", &back);
    put_back(c, &back);
    offer_lanes(c, &members);
    return answer_integer(c, (long long)ids.n);
}

/* ---- the counting sweep ---- */

typedef struct {
    Members back, buried;
    Child *children; /* of the buried ones */
} Sweep;

static double stalled_now(const Member *m) {
    return number_of(m->stalled, 0) + 1;
}

/* Every counted row is read as if it were buried: which keys are looked at does not hang on its count. */
static Sweep sort_sweep(Call *c, const Members *counted, long long max_stalled) {
    Sweep sweep = {.children = pool(c, counted->n, sizeof(Child))};
    touch(c, queue_key(c, "metrics:failed"), TYPE_HASH);
    for (size_t i = 0; i < counted->n; i++) {
        Member m = counted->at[i];
        exists(c, part_key(c, m.row, "lock"));
        Child child = read_child(c, m.id);
        touch_ended(c, &child);
        bool dead = stalled_now(&m) >= (double)max_stalled;
        if (dead) sweep.children[sweep.buried.n] = child;
        member_add(c, dead ? &sweep.buried : &sweep.back, m);
    }
    return sweep;
}

static void bury(Call *c, const Member *m) {
    static const int CLAIM[] = {W_HELD, W_CRASHES};
    Str *stalled = number_str(c, stalled_now(m));
    Pair dead[] = {{W_STATE, word[W_DEAD]}, {W_STALLED, stalled}, {W_LAST_ERROR, word[W_STALLED]}};
    row_write(c, m->row, dead, 3);
    row_clear(c, m->row, CLAIM, 2);
    erase(c, part_key(c, m->row, "lock"));
    if (m->group) leave_lane(c, m->group, m->id);
}

static void bury_all(Call *c, const Sweep *sweep) {
    const Members *buried = &sweep->buried;
    for (size_t i = 0; i < buried->n; i++) bury(c, &buried->at[i]);
    remove_from(c, "pending", buried);
    List ids = ids_of(c, buried);
    zset_add_all(c, queue_key(c, "dead"), 0, &ids);
    for (size_t i = 0; i < buried->n; i++) died(c, &sweep->children[i], word[W_STALLED]);
    if (buried->n) field_add(c, queue_key(c, "metrics:failed"), word[W_COUNT], (double)buried->n);
}

static void answer_ids(Call *c, const Members *members) {
    VM_ReplyWithArray(c->ctx, (long)members->n);
    for (size_t i = 0; i < members->n; i++) VM_ReplyWithString(c->ctx, members->at[i].id);
}

/* KEYS active, pending, dead; ARGV base, max_stalled, limit. Replies {{recovered id, ...}, {dead id, ...}}. */
int stalled_check(Call *c) {
    long long max_stalled, limit;
    if (!whole(c->args[1], &max_stalled) || !max_stalled) return refuse_shape(c, "max_stalled must be a positive integer");
    if (!whole(c->args[2], &limit) || !limit) return refuse_shape(c, "limit must be a positive integer");
    List ids = {NULL, 0, 0};
    zset_until(c, c->keys[0], (double)c->now, (size_t)limit, &ids);
    Members members = read_members(c, &ids), counted = recoverable(c, &members);
    Sweep sweep = sort_sweep(c, &counted, max_stalled);
    if (!may_write(c)) return refused(c);
    drop_leases(c, &members);
    remove_from(c, "schedule", &counted);
    for (size_t i = 0; i < sweep.back.n; i++) {
        const Member *m = &sweep.back.at[i];
        field_write(c, m->row, word[W_STALLED], number_str(c, stalled_now(m)));
    }
    put_back(c, &sweep.back);
    bury_all(c, &sweep);
    offer_lanes(c, &members);
    VM_ReplyWithArray(c->ctx, 2);
    answer_ids(c, &sweep.back);
    answer_ids(c, &sweep.buried);
    return API_OK;
}
