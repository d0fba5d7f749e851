/* EMQ.DELAY, EMQ.EXTEND and EMQ.REQUEUE: what the holder of one job does with it besides ending it. */
#include "commands.h"
#include "due.h"
#include "ending.h"
#include "held.h"
#include "kept.h"
#include "lanes.h"
#include "store.h"

enum { ATTEMPTS, HELD, SETTLED, STATE, GROUP, FIELD_COUNT };

static void read_hand(Call *c, Str *key, Str **row) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD, W_SETTLED, W_STATE, W_GROUP};
    row_read(c, key, FIELDS, row, FIELD_COUNT);
}

static bool is_active(Call *c, Str *id) {
    double lease;
    return zset_score(c, queue_key(c, "active"), id, &lease);
}

/* ---- delay ---- */

/* The row's side and the schedule's. Sent again with the same token it is known by `settled`. */
static void park(Call *c, double score, bool ceiling) {
    static const int CLAIM[] = {W_HELD, W_CRASHES};
    Str *id = c->args[0];
    Text settled[] = {token_of(c->args[1]), TEXT(":delayed")};
    end_claim(c, id, NULL, ceiling);
    row_clear(c, c->keys[0], CLAIM, 2);
    Pair row[] = {{W_STATE, word[W_SCHEDULED]}, {W_SETTLED, joined(c, settled, 2)}};
    row_write(c, c->keys[0], row, 2);
    zset_add(c, c->keys[2], score, id);
}

/* KEYS row, active, schedule; ARGV id, token, mode, due. Replies 1 delayed. */
int delay(Call *c) {
    double score;
    Str *row[FIELD_COUNT];
    const char *wrong = due_at(c, c->args[2], c->args[3], &score);
    if (wrong) return refuse_shape(c, wrong);
    if (!is_job(c->args[0])) return refuse(c, NOT_A_JOB);
    read_hand(c, c->keys[0], row);
    if (!row[ATTEMPTS]) return refuse(c, "EMQSTALE job gone");
    Text answer = settled_answer(row[SETTLED], token_of(c->args[1]));
    bool again = same(answer, TEXT("delayed"));
    if (is_stale(row[ATTEMPTS], row[HELD], c->args[1]) || is(row[STATE], "dead") || (answer.at && !again)) {
        return refuse(c, "EMQSTALE delay token mismatch");
    }
    if (row[GROUP]) return refuse(c, "EMQSTATE delay lane not native");
    if (again) return answer_integer(c, 1);
    if (!is_active(c, c->args[0])) return refuse(c, "EMQSTATE delay not active");
    bool ceiling = touch_ending(c, c->args[0], NULL);
    if (!may_write(c)) return refused(c);
    park(c, score, ceiling);
    return answer_integer(c, 1);
}

/* ---- extend ---- */

/* KEYS active, row; ARGV id, token, lease_ms. Replies 1 extended, 0 not active, -1 gone. Never shortens a lease, never revives
 * one that was reaped; the lock, twice the lease, tells others that a keeper holds the job. */
int extend_lock(Call *c) {
    static const int FIELDS[] = {W_ATTEMPTS, W_HELD};
    Str *row[2], *lock;
    long long lease;
    if (!whole(c->args[2], &lease) || !lease || lease > LONGEST_MS) {
        return refuse_shape(c, "lease_ms must be a positive integer");
    }
    row_read(c, c->keys[1], FIELDS, row, 2);
    if (!row[0]) return answer_integer(c, -1);
    if (is_stale(row[0], row[1], c->args[1])) return refuse(c, "EMQSTALE extend token mismatch");
    if (!is_active(c, c->args[0])) return answer_integer(c, 0);
    lock = part_key(c, c->keys[1], "lock");
    exists(c, lock);
    long long stands = kept_for(c);
    if (!may_write(c)) return refused(c);
    zset_raise(c, c->keys[0], (double)(c->now + lease), c->args[0]);
    string_write(c, lock, str_of(c, token_of(c->args[1])), c->now + 2 * lease);
    if (is_first(row[0], row[1])) note_kept(c, stands, 2 * lease);
    return answer_integer(c, 1);
}

/* ---- requeue ---- */

static void touch_return(Call *c, Str *id, Str *group) {
    touch(c, queue_key(c, "pending"), TYPE_ZSET);
    touch(c, queue_key(c, "schedule"), TYPE_ZSET);
    touch(c, queue_key(c, "ready"), TYPE_LIST);
    exists(c, part_key(c, row_key(c, id), "lock"));
    if (group) touch_lane(c, group);
}

/* Attempts, failures, stalled and crashes stay as they are; `held` is cleared. */
static void give_back(Call *c, Str *id, Str *group) {
    zset_remove(c, c->keys[1], id);
    zset_remove(c, queue_key(c, "schedule"), id);
    field_write(c, c->keys[0], word[W_STATE], word[W_PENDING]);
    field_clear(c, c->keys[0], word[W_HELD]);
    erase(c, part_key(c, c->keys[0], "lock"));
    zset_add(c, group ? lane_key(c, group) : c->keys[2], 0, id);
    if (group) {
        free_slots(c, group, 1);
        offer(c, group, false);
    } else {
        wake_flat(c, 1);
    }
}

/* KEYS row, active, pending; ARGV id, token. Replies 1: the job is claimable again, in pending or its lane. */
int requeue(Call *c) {
    Str *row[FIELD_COUNT], *id = c->args[0];
    if (!is_job(id)) return refuse(c, NOT_A_JOB);
    read_hand(c, c->keys[0], row);
    if (!row[ATTEMPTS]) return refuse(c, "EMQSTALE job gone");
    /* A verdict that had arrived stands. */
    bool settled = settled_answer(row[SETTLED], token_of(c->args[1])).at;
    if (settled || is_stale(row[ATTEMPTS], row[HELD], c->args[1])) return refuse(c, "EMQSTALE requeue token mismatch");
    if (is(row[STATE], "dead") || !is_active(c, id)) return refuse(c, "EMQSTATE requeue not active");
    touch_return(c, id, row[GROUP]);
    if (!may_write(c)) return refused(c);
    give_back(c, id, row[GROUP]);
    return answer_integer(c, 1);
}
