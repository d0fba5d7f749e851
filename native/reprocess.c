/* EMQ.REPROCESS: a dead job gets a new life, with nothing held against it. `settled` stays, so that a verdict which is sent
 * again is still known. A child of a flow has reported when it died: its parent hears nothing more. */
#include "commands.h"
#include "flow.h"
#include "lanes.h"
#include "store.h"

enum { STATE, GROUP, DEDUP, FIELD_COUNT };

/* How many children of a parent are still out: a child that is dead has not counted down, unless it has completed all the
 * same. */
static double children_out(Call *c, Str *row) {
    double out;
    if (!count_read(c, part_key(c, row, "dependencies"), &out)) out = 0;
    Str *failed = part_key(c, row, "failed"), *processed = part_key(c, row, "processed");
    touch(c, processed, TYPE_HASH);
    if (!length_of(c, failed, TYPE_HASH)) return out;
    Reply *children = VM_Call(c->ctx, "HKEYS", "s", failed);
    for (size_t i = 0; children && i < VM_CallReplyLength(children); i++) {
        Text child;
        child.at = VM_CallReplyStringPtr(VM_CallReplyArrayElement(children, i), &child.len);
        if (!row_field(c, processed, str_of(c, child))) out -= 1;
    }
    return out;
}

static void clear_past(Call *c, Str *row) {
    static const int PAST[] = {W_LAST_ERROR, W_FAILURES, W_STALLED, W_CRASHES, W_HELD, W_CANCEL,
                               W_EXPIRES_AT, W_DEDUP, W_PARENT, W_PARENT_QUEUE, W_PARENT_POLICY};
    row_clear(c, row, PAST, sizeof PAST / sizeof *PAST);
    field_write(c, row, word[W_STATE], word[W_PENDING]);
}

static void put_pending(Call *c, Str *id, Str *group) {
    zset_add(c, group ? lane_key(c, group) : c->keys[2], 0, id);
    if (group) {
        offer(c, group, false);
    } else {
        wake_flat(c, 1);
    }
}

/* KEYS row, dead, pending; ARGV id, and optionally `force`: also a parent whose children are still out. Replies 1, -1 gone. */
int reprocess(Call *c) {
    static const int FIELDS[] = {W_STATE, W_GROUP, W_DEDUP};
    Str *row[FIELD_COUNT], *id = c->args[0];
    double score;
    row_read(c, c->keys[0], FIELDS, row, FIELD_COUNT);
    if (!row[STATE] && !exists(c, c->keys[0])) return answer_integer(c, -1);
    bool dead = zset_score(c, c->keys[1], id, &score);
    touch(c, c->keys[2], TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    if (row[GROUP]) touch_lane(c, row[GROUP]);
    Child child = {.id = id, .dedup = row[DEDUP]};
    touch_ended(c, &child);
    if (!is(row[STATE], "dead") || !dead) return refuse(c, "EMQSTATE not dead");
    bool forced = c->n_args > 1 && is(c->args[1], "force");
    if (children_out(c, c->keys[0]) > 0 && !forced) return refuse(c, "EMQSTATE children still out");
    if (!may_write(c)) return refused(c);
    zset_remove(c, c->keys[1], id);
    release_dedup(c, &child);
    clear_past(c, c->keys[0]);
    put_pending(c, id, row[GROUP]);
    return answer_integer(c, 1);
}
