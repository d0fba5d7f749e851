#include "taking.h"

#include <stdio.h>

#include "lanes.h"
#include "store.h"

enum { MANY_LANES = 32 };

void touch_filed(Claim *claim) {
    Call *c = claim->c;
    Table lanes = {0};
    for (size_t i = 0; i < claim->move.n; i++) {
        if (!table_mark(c, &lanes, claim->move.at[i].group)) touch_lane(c, claim->move.at[i].group);
    }
    for (size_t i = 0; i < claim->bury.n; i++) {
        Filed *one = &claim->bury.at[i];
        exists(c, part_key(c, row_key(c, one->id), "lock"));
        one->child = read_child(c, one->id);
        touch_ended(c, &one->child);
        if (one->leased && one->group && !table_mark(c, &lanes, one->group)) touch_lane(c, one->group);
    }
    if (claim->bury.n) touch(c, queue_key(c, "metrics:failed"), TYPE_HASH);
}

/* A server searches a small hash from end to end for each of its fields, which many lanes make dear, until a name this long
 * has been in it: then it looks them up. */
static void write_started(Call *c, List *started) {
    static const char LONG_NAME[] = "-----------------------------------------------------------------";
    Str *gactive = queue_key(c, "gactive");
    bool many = started->n > 2 * MANY_LANES;
    Str *name = many ? str_of(c, TEXT(LONG_NAME)) : NULL;
    if (many) {
        list_add(c, started, name);
        list_add(c, started, word[W_EMPTY]);
    }
    fields_write(c, gactive, started);
    if (many) field_clear(c, gactive, name);
}

void leave_sets(Claim *claim, const Rotation *rot, Str *pending) {
    Call *c = claim->c;
    List started = {0};
    if (claim->depth) zset_remove_all(c, pending, &claim->leave);
    for (size_t i = 0; i < rot->all.n; i++) {
        Source *lane = rot->all.at[i];
        zset_remove_all(c, lane->key, &lane->leave);
        if (!lane->started) continue;
        list_add(c, &started, lane->name);
        list_add(c, &started, number_str(c, lane->busy + (double)lane->started));
    }
    write_started(c, &started);
}

void move_filed(Claim *claim, List *offers) {
    for (size_t i = 0; i < claim->move.n; i++) {
        Filed *one = &claim->move.at[i];
        zset_add(claim->c, lane_key(claim->c, one->group), 0, one->id);
        list_add(claim->c, offers, one->group);
    }
}

static void bury(Claim *claim, const Filed *one, List *offers) {
    static const int OVER[] = {W_HELD, W_CRASHES};
    Call *c = claim->c;
    Str *row = row_key(c, one->id);
    Pair dead[] = {{W_STATE, word[W_DEAD]}, {W_LAST_ERROR, one->reason}};
    row_write(c, row, dead, 2);
    row_clear(c, row, OVER, 2);
    erase(c, part_key(c, row, "lock"));
    zset_add(c, queue_key(c, "dead"), 0, one->id);
    zset_remove(c, queue_key(c, "schedule"), one->id);
    if (!one->leased || !zset_remove(c, queue_key(c, "active"), one->id) || !one->group) return;
    free_slots(c, one->group, 1);
    list_add(c, offers, one->group);
}

void bury_filed(Claim *claim, List *offers) {
    Call *c = claim->c;
    if (!claim->bury.n) return;
    for (size_t i = 0; i < claim->bury.n; i++) bury(claim, &claim->bury.at[i], offers);
    field_add(c, queue_key(c, "metrics:failed"), word[W_COUNT], (double)claim->bury.n);
    for (size_t i = 0; i < claim->bury.n; i++) died(c, &claim->bury.at[i].child, claim->bury.at[i].reason);
}

static Str *crashes_of(Call *c, const Taken *job) {
    char text[40];
    int len = snprintf(text, sizeof text, "%.14g:", job->crashes);
    Text parts[] = {{text, (size_t)len}, text_of(job->token)};
    return joined(c, parts, 2);
}

static void write_taken_row(Call *c, const Taken *job) {
    Str *words[10] = {word[W_STATE], word[W_ACTIVE], word[W_ATTEMPTS], job->token, word[W_HELD], job->held};
    size_t n = 6;
    if (job->crashes > 0) {
        words[n++] = word[W_CRASHES];
        words[n++] = crashes_of(c, job);
    }
    if (job->regroup) {
        words[n++] = word[W_GROUP];
        words[n++] = job->group;
    }
    fields_set(job->open ? job->open : open_both(c, job->row, TYPE_HASH), words, n);
    VM_NotifyKeyspaceEvent(c->ctx, NOTIFY_HASH, "hset", job->row);
    VM_Replicate(c->ctx, "HSET", "sv", job->row, words, n);
}

void hand_out(Claim *claim, Str *active, long long deadline) {
    Call *c = claim->c;
    List ids = {0};
    for (size_t i = 0; i < claim->count; i++) {
        write_taken_row(c, &claim->jobs[i]);
        list_add(c, &ids, claim->jobs[i].id);
    }
    zset_add_all(c, active, (double)deadline, &ids);
}
